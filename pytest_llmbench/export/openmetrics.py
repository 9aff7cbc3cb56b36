"""OpenMetrics text, as the textfile collector of node-exporter takes it: valid in Prometheus' own text format as well.

https://prometheus.io/docs/specs/om/open_metrics_spec/. Without times: the collector refuses a file that has any.
"""

from collections.abc import Iterable
from pathlib import Path

from pytest_llmbench.core.files import write_text
from pytest_llmbench.export.samples import ExportedNumber, samples_of
from pytest_llmbench.reporting.base import FinishedSession


def write_metrics(session: FinishedSession, path: Path) -> None:
    """Replace a file by the numbers of a session in one step: a collector sees the old ones or the new ones.

    Raises:
        OSError: it cannot be written.
    """
    write_text(path, openmetrics(samples_of(session)))


def openmetrics(samples: Iterable[ExportedNumber]) -> str:
    """Samples as text, those of a family together."""
    families: dict[str, list[ExportedNumber]] = {}
    for sample in samples:
        families.setdefault(sample.family, []).append(sample)
    lines = []
    for family, members in families.items():
        first = members[0]
        lines += [f"# HELP {family} {_escaped(first.help)}", f"# TYPE {family} gauge"]
        if first.unit:
            lines.append(f"# UNIT {family} {first.unit}")
        lines += [f"{family}{_braced(each)} {each.value!r}" for each in members]
    return "\n".join([*lines, "# EOF", ""])


def _braced(sample: ExportedNumber) -> str:
    inside = ",".join(f'{name}="{_escaped(text)}"' for name, text in sample.labels.items())
    return f"{{{inside}}}" if inside else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
