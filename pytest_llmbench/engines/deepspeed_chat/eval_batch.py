"""Lambda's evaluation of a batch of DeepSpeed-Chat logs, to the byte: a CSV file with a row for each log.

The hosts are those of the hostfile at the head of a log. The first line with a throughput counts, and reading ends
there; the run is a `Success` from the threshold on. A log without such a line has -1 there and is a `Fail`.
"""

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.engines.base import BatchLog
from pytest_llmbench.readers.lines import pieces

_THROUGHPUT = re.compile(r"Throughput: (\d+\.\d+) samples/sec")
_NEEDLES = (b"slots=", b"Throughput: ")


def evaluate(logs: Sequence[BatchLog], threshold: float) -> bytes:
    """Return the CSV file; `threshold` is in samples/s. A run without a log has a row with its recorded hosts.

    Raises ConfigError if a log is unreadable.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(("Hostnames", "Throughput (samples/sec)", "Status"))
    for log in logs:
        hosts, rate = _read(log.path) if log.path.is_file() else (log.hosts, None)
        status = "Success" if rate is not None and rate >= threshold else "Fail"
        writer.writerow((", ".join(hosts), -1 if rate is None else rate, status))
    return text.getvalue().encode()


def _read(path: Path) -> tuple[Sequence[str], float | None]:
    """The hosts of a log, and its samples/s over all of them; None without a throughput."""
    hosts: list[str] = []
    try:
        with path.open("rb") as log:
            for raw, *_ in pieces(log, lambda: _NEEDLES):
                line = raw.decode("utf-8", errors="replace")
                if "slots=" in line:
                    hosts.append(line.split()[0])
                elif match := _THROUGHPUT.search(line):
                    return hosts, float(match[1])
    except OSError as error:
        raise ConfigError(f"cannot evaluate {path}: {error.strerror}; let this user read it") from error
    return hosts, None
