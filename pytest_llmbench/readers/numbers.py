"""Parse the numbers that a step line requires: without one the line is unreadable."""

import math
import re
from datetime import UTC, datetime

from pytest_llmbench.readers import patterns
from pytest_llmbench.readers.items import Unreadable

_COUNT = re.compile(r"\d{1,15}", re.ASCII)
# Blanks that programs put around a number. Another blank of Unicode, such as a unit separator, is damage.
_BLANKS = " \t\r\n"


def as_number(value: object) -> float | None:
    """Read what a line or a JSON object has for a number, which may be NaN or infinite; None if it is not a number."""
    if isinstance(value, str):
        return patterns.number(value.strip(_BLANKS))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def number(name: str, value: object) -> float:
    """Read a number, which may be NaN or infinite.

    Raises:
        Unreadable: it is not a number.
    """
    result = as_number(value)
    if result is None:
        raise Unreadable(f"{name} is {_short(value)}, not a number")
    return result


def count(name: str, value: object) -> int:
    """Read a whole number from 1 on.

    Raises:
        Unreadable: it is not a number.
    """
    text = str(value) if type(value) is int and 0 < value < 10**15 else value
    if not isinstance(text, str) or not _COUNT.fullmatch(text := text.strip(_BLANKS)) or int(text) < 1:
        raise Unreadable(f"{name} is {_short(value)}, not a whole number >= 1")
    return int(text)


def duration(name: str, value: object) -> float:
    """Read a finite number above 0.

    Raises:
        Unreadable: it is not a number.
    """
    result = number(name, value)
    if not 0.0 < result < math.inf:
        raise Unreadable(f"{name} is {_short(value)}")
    return result


def _short(value: object) -> str:
    if isinstance(value, str):
        return repr(value.strip()[:40])
    return str(value) if isinstance(value, float) else f"a {type(value).__name__}"


def unix_time(stamp: str) -> float | None:
    """Turn the time of a line into a Unix time, as if its place were at zone 0; None where there is no such time."""
    try:
        return datetime.fromisoformat(stamp).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
