"""Lambda's evaluation of a batch of DeepSpeed-Chat logs, to the byte: a CSV file with a row for each log.

The hosts are those of the hostfile at the head of a log. The first line with a throughput counts, and reading ends
there; the run is a `Success` from the threshold on. A log without such a line has -1 there and is a `Fail`.
"""

import csv
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.readers.lines import pieces

_HEADER = ("Hostnames", "Throughput (samples/sec)", "Status")
_THROUGHPUT = re.compile(r"Throughput: (\d+\.\d+) samples/sec")
_NEEDLES = (b"slots=", b"Throughput: ")


@dataclass(frozen=True, slots=True)
class LogRow:
    """One log: its hosts, samples/s over all of them or None, and whether that reaches the threshold."""

    log: Path
    hosts: tuple[str, ...]
    samples_per_s: float | None
    success: bool


def evaluate(logs: Path | Iterable[Path], threshold: float) -> bytes:
    """Return the CSV file for a folder's logs or for the given logs; `threshold` is in samples/s.

    Raises ConfigError if the folder is missing, or a log is unreadable.
    """
    return as_csv(rows(logs, threshold))


def rows(logs: Path | Iterable[Path], threshold: float) -> list[LogRow]:
    """Judge the files `*.log` of a folder, in the order of their names, or the given logs, in the given order.

    Raises ConfigError if the folder is missing, or a log is unreadable.
    """
    try:
        if isinstance(logs, Path):
            logs = sorted((path for path in logs.iterdir() if path.name.endswith(".log")), key=lambda path: path.name)
        return [_judge(path, threshold) for path in logs]
    except OSError as error:
        raise ConfigError(
            f"cannot evaluate {error.filename}: {error.strerror}; name a folder of *.log files"
        ) from error


def as_csv(rows: Iterable[LogRow]) -> bytes:
    """Write rows as Lambda's evaluator does."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(_HEADER)
    for row in rows:
        throughput = -1 if row.samples_per_s is None else row.samples_per_s
        writer.writerow((", ".join(row.hosts), throughput, "Success" if row.success else "Fail"))
    return text.getvalue().encode()


def _judge(path: Path, threshold: float) -> LogRow:
    hosts: list[str] = []
    with path.open("rb") as log:
        for raw, *_ in pieces(log, lambda: _NEEDLES):
            line = raw.decode("utf-8", errors="replace")
            if "slots=" in line:
                hosts.append(line.split()[0])
            elif match := _THROUGHPUT.search(line):
                throughput = float(match[1])
                return LogRow(path, tuple(hosts), throughput, success=throughput >= threshold)
    return LogRow(path, tuple(hosts), None, success=False)
