"""Parses the numbers that a step line requires; a missing or damaged one makes the line unreadable."""

import math
import re
from datetime import UTC, datetime

from pytest_llmbench.readers.items import Unreadable

_NUMBER = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)", re.ASCII)
# Lightning pads numbers without decimals: `nan.0`.
_NOT_FINITE = re.compile(r"([+-]?(?:nan|inf(?:inity)?))(?:\.0*)?", re.IGNORECASE | re.ASCII)
_COUNT = re.compile(r"\d{1,15}", re.ASCII)
# Blanks that programs put around a number. All other blanks of Unicode, such as a unit separator, are damage.
_BLANKS = " \t\r\n"


def as_number(value: object) -> float | None:
    """Convert a text or a JSON value to a number, which may be NaN or infinite; None for any other value."""
    if isinstance(value, str):
        text = value.strip(_BLANKS)
        match = _NUMBER.fullmatch(text) or _NOT_FINITE.fullmatch(text)
        return float(match[1]) if match else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def number(name: str, value: object) -> float:
    """Read a number, which may be NaN or infinite. Raises Unreadable: `value` is another type or text."""
    result = as_number(value)
    if result is None:
        raise Unreadable(f"{name} is {_short(value)}, not a number")
    return result


def count(name: str, value: object) -> int:
    """Read a whole number from 1 on. Raises Unreadable: `value` is anything else."""
    text = str(value) if type(value) is int and 0 < value < 10**15 else value
    if not isinstance(text, str) or not _COUNT.fullmatch(text := text.strip(_BLANKS)) or int(text) < 1:
        raise Unreadable(f"{name} is {_short(value)}, not a whole number >= 1")
    return int(text)


def duration(name: str, value: object) -> float:
    """Read a finite number above 0. Raises Unreadable: `value` is anything else."""
    result = number(name, value)
    if not 0.0 < result < math.inf:
        raise Unreadable(f"{name} is {_short(value)}")
    return result


def _short(value: object) -> str:
    if isinstance(value, str):
        return repr(value.strip()[:40])
    return str(value) if isinstance(value, float) else f"a {type(value).__name__}"


def unix_time(stamp: str) -> float | None:
    """Convert the local time of a line to a Unix time as if it were UTC; None for an impossible time."""
    try:
        return datetime.fromisoformat(stamp).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
