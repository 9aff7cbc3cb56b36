"""Numbers with units. A threshold without a unit, or of another dimension, is an error."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pytest_llmbench.core.errors import UnitError, unknown

# Units of each dimension, with their factors to its base unit. A word is a token: the OPT baselines call their token
# rate "wps", words per second. GiB is 2**30 bytes and GB is 10**9.
_DIMENSIONS: dict[str, dict[str, float]] = {
    "token rate": {"tokens/s": 1.0, "words/s": 1.0},
    "token rate per GPU": {"tokens/s/gpu": 1.0, "words/s/gpu": 1.0},
    "sample rate": {"samples/s": 1.0},
    "time": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "h": 3600.0},
    "compute rate": {"FLOP/s": 1.0, "GFLOP/s": 1e9, "TFLOP/s": 1e12},
    "compute rate per GPU": {"TFLOP/s/gpu": 1e12},
    "size": {"B": 1.0, "GB": 1e9, "MiB": float(2**20), "GiB": float(2**30)},
    "bandwidth": {"B/s": 1.0, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12, "Gb/s": 1e9 / 8},
    "operation rate": {"ops/s": 1.0},
    "power": {"W": 1.0},
    "energy per token": {"J/token": 1.0},
    "tokens per energy": {"tokens/J": 1.0},
    "temperature": {"degC": 1.0},
    "frequency": {"MHz": 1e6},
    "fraction": {"%": 0.01, "1": 1.0},
    "loss": {"nat": 1.0},
}
# Each unit's dimension and factor.
UNITS: dict[str, tuple[str, float]] = {
    unit: (dimension, factor) for dimension, units in _DIMENSIONS.items() for unit, factor in units.items()
}

# Dimensions that mean the same on every machine. A bound in any other one is absolute: it belongs
# to the hardware and the scale it was set for.
PORTABLE_DIMENSIONS = frozenset({"fraction", "loss"})

_PREFIXES = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9}
# A comma only groups thousands: "1,5 %" must not become 15 %.
_LONGEST = 100
_TEXT = re.compile(
    r"\s*([+-]?(?:(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*([KkMG]?)\s*(\S*)\s*"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class BetweenRuns:
    """How runs of one recipe on one system differ from each other."""

    spread: float  # their standard deviation, as a share of their mean; 0 for a bound that contains it
    freedom: float  # degrees of freedom with which it is known
    known: bool = True  # from runs of this system, which had its changes of speed, too


# Healthy clusters have 0.15 to 0.35 %. This holds where a reference does not name its own.
USUAL_BETWEEN_RUNS = BetweenRuns(spread=0.003, freedom=4.0, known=False)


@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """A finite number with a unit, comparable with any quantity of the same dimension.

    Args:
        value: the number, or the whole text: `Quantity("200K words/s")`.
        unit: one of `UNITS`; left out when `value` is a text that holds it.

    Raises UnitError for a missing or unknown unit, a value that is not finite, and a comparison with a bare number or
    another dimension.
    """

    value: float
    unit: str

    def __init__(self, value: float | str, unit: str | None = None) -> None:
        if isinstance(value, str):
            if unit is not None:
                raise UnitError(f"give {value!r} and {unit!r} as one text, or the value as a number")
            number, unit = _split(value)
        elif unit is None:
            raise UnitError(f"{value!r} has no unit; legal units: {', '.join(UNITS)}")
        else:
            try:
                number = float(value)
            except OverflowError:  # an int beyond every float
                number = math.inf
        if unit not in UNITS:
            raise UnitError(unknown("unit", unit, UNITS))
        if not math.isfinite(number * UNITS[unit][1]):
            raise UnitError(f"{number!r} {unit} is not a finite number; a missing measurement is an error, not a value")
        object.__setattr__(self, "value", number)
        object.__setattr__(self, "unit", unit)

    @property
    def dimension(self) -> str:
        """Kind of this number, such as `token rate` or `time`."""
        return UNITS[self.unit][0]

    @property
    def base(self) -> float:
        """The value in the base unit of its dimension."""
        return self.value * UNITS[self.unit][1]

    def to(self, unit: str) -> Quantity:
        """Return the same quantity in another unit of its dimension.

        Raises UnitError if `unit` is unknown or of another dimension.
        """
        dimension = Quantity(0.0, unit).dimension
        if dimension != self.dimension:
            raise UnitError(f"{self} is a {self.dimension}; {unit} is for a {dimension}")
        return self if unit == self.unit else Quantity(self.base / UNITS[unit][1], unit)

    def difference_percent(self, threshold: Quantity) -> float | None:
        """Distance above (+) or below (-) `threshold`, in % of it; None for a threshold of 0."""
        self._check(threshold)
        return None if threshold.base == 0 else 100.0 * (self.base - threshold.base) / abs(threshold.base)

    @property
    def exact(self) -> str:
        """A text that `Quantity` reads back as this very number; `str()` rounds it, for people."""
        return f"{repr(self.value).removesuffix('.0')} {self.unit}"

    @property
    def plain(self) -> str:
        """For records and JUnit properties, which programs read: six digits, and no sign between them."""
        return _with_unit(f"{self.value:.6g}", self.unit)

    def __str__(self) -> str:
        return self.shown()

    def shown(self, digits: int = 4) -> str:
        """For people: this many significant digits, and of a long number all before its point, in groups of three."""
        return _with_unit(for_people(self.value, digits), self.unit)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Quantity):
            return NotImplemented
        return (self.dimension, self.base) == (other.dimension, other.base)

    def __lt__(self, other: object) -> bool:
        return self._check(other) < 0.0

    def __le__(self, other: object) -> bool:
        return self._check(other) <= 0.0

    def __gt__(self, other: object) -> bool:
        return self._check(other) > 0.0

    def __ge__(self, other: object) -> bool:
        return self._check(other) >= 0.0

    def __hash__(self) -> int:
        return hash((self.dimension, self.base))

    def meets(self, op: Literal[">=", ">", "<=", "<"], bound: Quantity, between: BetweenRuns | None = None) -> bool:
        """True if `self op bound` holds; `between` is how runs of one system differ, for a number with an interval."""
        del between
        distance = self._check(bound)
        return {">=": distance >= 0.0, ">": distance > 0.0, "<=": distance <= 0.0, "<": distance < 0.0}[op]

    def _check(self, other: object) -> float:
        """Return self - other in base units; raise UnitError where the two cannot be compared."""
        if not isinstance(other, Quantity):
            raise UnitError(
                f"{self} compared with {other!r}, which has no unit; write Quantity({other!r}, {self.unit!r})"
            )
        if other.dimension != self.dimension:
            raise UnitError(f"{self} ({self.dimension}) cannot be compared with {other} ({other.dimension})")
        return self.base - other.base


def listed(items: Iterable[object], most: int = 8, between: str = ", ") -> str:
    """Join the first items for people, and count the rest."""
    words = [str(item) for item in items]
    return between.join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def counted(number: int, word: str) -> str:
    """A number of things: `1 node`, `2 nodes`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def utc(at: float | None) -> str:
    """A Unix time for people; empty if it is unknown."""
    try:
        return f"{dt.datetime.fromtimestamp(at, dt.UTC):%Y-%m-%d %H:%M:%S} UTC" if at else ""
    except (OverflowError, ValueError, OSError):
        return f"{at} (no time)"


def for_people(value: float, digits: int = 4) -> str:
    """Write a number for people: `921,990`, `16.82`, `0.05`.

    It has this many significant digits, without zeros at its end, and all digits before the point, in groups of three.
    Numbers that are too long or too small for that have an exponent.
    """
    magnitude = math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0
    if not (-4 <= magnitude < 15 and math.isfinite(value)):
        return f"{value:.{digits}g}"
    text = f"{value:,.{max(0, digits - 1 - magnitude)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


_BOUND = re.compile(r"([<>]=?|no worse than) (-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)", re.ASCII)


def bounds_for_people(text: str, digits: int = 4, *, floor: object = None) -> str:
    """Write bounds in a text for people: `>= 9e+08 words/s` becomes `>= 900,000,000 words/s`; see `for_people`."""
    shown = _BOUND.sub(lambda match: f"{match[1]} {for_people(float(match[2]), digits)}", text)
    return f"{shown} (floor)" if floor else shown


def told_apart(one: Quantity, other: Quantity) -> tuple[str, str]:
    """Write two quantities for people. Unless they are equal, they have enough digits to look different."""
    for digits in range(4, 17):
        first, second = one.shown(digits), other.shown(digits)
        if first != second or one == other:
            return first, second
    return one.exact, other.exact


def _with_unit(number: str, unit: str) -> str:
    return number if unit == "1" else f"{number} {unit}"


def _split(text: str) -> tuple[float, str]:
    match = _TEXT.fullmatch(text) if len(text) <= _LONGEST else None  # longer ones would take it long
    if match is None:
        raise UnitError(f"{text[:_LONGEST]!r} is not a quantity; write a number and a unit, such as '200K words/s'")
    digits, prefix, unit = match.groups()
    if prefix and prefix + unit in UNITS:  # "16 GB" is gigabytes, not giga-B
        prefix, unit = "", prefix + unit
    if not unit:
        raise UnitError(f"{text!r} has no unit; legal units: {', '.join(UNITS)}")
    return float(digits.replace(",", "").replace("_", "")) * _PREFIXES[prefix], unit
