"""The evidence of one test in a few lines of text, for CI systems that show the output of a test case alone."""

from collections.abc import Iterator, Mapping
from typing import Any

from pytest_llmbench.core.quantity import bounds_for_people, for_people
from pytest_llmbench.core.text import harmless

_SHARE = 100.0
_DIGITS = 6


def evidence_lines(row: Mapping[str, Any], records: str) -> Iterator[str]:
    """Yield the measured number, bound, interval, hosts and record of a test, then its reasons, if any.

    Args:
        row: the properties of the test's report; from XML, numbers are texts.
        records: path of the session's folder for the reader of the lines.
    """
    unit = str(row.get("unit") or "")
    yield f"verdict: {row.get('verdict')}"
    yield f"measured: {format_measured(row) or 'nothing'}"
    yield f"bound: {format_bound(row) or 'none'}"
    yield f"interval: {_interval(row, unit) or 'none'}"
    yield f"hosts: {', '.join(filter(None, str(row.get('hosts') or '').split(','))) or 'none'}"
    yield f"record: {records}/{row['record']}" if row.get("record") else "record: none"
    for name in ("reason", "cause", "severity", "action", "simulated"):
        if row.get(name):
            yield f"{name}: {' '.join(harmless(str(row[name])).split())}"


def format_measured(row: Mapping[str, Any]) -> str:
    """The measured number with its unit and statistic, or the text of a check; empty without a measurement."""
    value = number(row.get("value"))
    if value is None:
        return str(row.get("measured") or "")
    return f"{for_people(value, _DIGITS)} {row.get('unit') or ''} ({row.get('statistic') or 'no statistic'})"


def format_bound(row: Mapping[str, Any]) -> str:
    """The bound of the test, with as many digits as the measured number; empty without one."""
    return bounds_for_people(str(row.get("threshold") or row.get("bound") or ""), _DIGITS)


def number(value: object) -> float | None:
    """A number, which may be a text from XML; None for anything else."""
    try:
        return float(str(value))
    except ValueError:
        return None


def _interval(row: Mapping[str, Any], unit: str) -> str:
    low, high, alpha = (number(row.get(name)) for name in ("low", "high", "alpha"))
    if low is None or high is None:
        return ""
    sure = f", each end {for_people(_SHARE * (1.0 - alpha), 6)} % sure" if alpha is not None else ""
    return f"{for_people(low, 6)} to {for_people(high, 6)} {unit}{sure}"
