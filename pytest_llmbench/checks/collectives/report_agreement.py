"""Whether what nccl-tests say agrees with itself: size by time is algbw, by a factor busbw, their mean the average.

A number is true to half a unit of the last digit that was printed, and no further.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from pytest_llmbench.core.record.curves import COLLECTIVES, IN_PARTS, Timing, busbw_factor, size_name
from pytest_llmbench.readers.items import Unreadable
from pytest_llmbench.readers.numbers import as_number, number

_ROUNDED_TWICE = 1.001  # in binary and in decimal
_OF_BINARY = 1e-9
_WIDTHS = {
    **dict.fromkeys(("int8", "uint8", "char", "f8e4m3", "f8e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float"), 4),
    **dict.fromkeys(("int64", "uint64", "double"), 8),
}  # bytes of an element, by nccl-tests' name of its type


@dataclass(frozen=True, slots=True)
class Printed:
    """A finite number as it was printed, at most `half` a unit of its last digit from what was measured."""

    value: float
    half: float

    @property
    def low(self) -> float:
        """The least that it may have been."""
        return self.value - self.half

    @property
    def high(self) -> float:
        """The most that it may have been."""
        return self.value + self.half


@dataclass(frozen=True, slots=True)
class Side:
    """One operation, out of place or in place.

    Attributes:
        size: bytes, of all parts where there are such.
        part: bytes of the elements that are counted; None where their type is not known.
    """

    size: int
    part: int | None
    time_us: Printed
    algbw: Printed
    busbw: Printed

    def timing(self, wrong: int | None) -> Timing:
        """Its numbers, with the wrong elements of its result."""
        return Timing(time_us=self.time_us.value, algbw=self.algbw.value, busbw=self.busbw.value, wrong=wrong)


def printed(name: str, text: str) -> Printed:
    """Read a number from 0 on with its digits: `1.25` is true to 0.005, `1e+03` to 500.

    Raises:
        Unreadable: it is not a number, or not finite.
    """
    value = number(name, text)
    if not 0.0 <= value < float("inf"):
        raise Unreadable(f"{name} is {text[:40]!r}")
    exponent = Decimal(text.strip()).as_tuple().exponent
    assert isinstance(exponent, int)  # of a finite number
    return Printed(value, _ROUNDED_TWICE * 0.5 * 10.0**exponent + _OF_BINARY * value)


def part(count: int, dtype: str) -> int | None:
    """Bytes of this many elements of a type, as nccl-tests call it; None for a type that is not known."""
    width = _WIDTHS.get(dtype)
    return None if width is None else count * width


def side(size: int, part: int | None, time: str, algbw: str, busbw: str) -> Side:
    """Read one operation.

    Raises:
        Unreadable: size by time is not algbw.
    """
    read = Side(size, part, printed("time", time), printed("algbw", algbw), printed("busbw", busbw))
    low, high = _speeds(read)
    if read.algbw.high < low or read.algbw.low > high:
        raise Unreadable(f"{size} B in {time} us are not {algbw} GB/s")
    return read


def average(text: str) -> Printed | str:
    """Read the mean that nccl-tests print; a text says why there is none."""
    value = as_number(text)
    if value is None or not 0.0 <= value < float("inf"):
        return f"its average bus bandwidth is {text[:40]!r}, not a bandwidth"
    return printed("average", text)


def disagreement(collective: str | None, ranks: int | None, sides: Sequence[Side], mean: Printed | None) -> str | None:
    """Say where size or busbw are not what the others make them, or the mean is another; None where all agree."""
    if collective in COLLECTIVES and ranks is not None:
        for each in sides:
            if why := _of_one(collective, ranks, each):
                return f"at {size_name(each.size)} {why} of {collective} on {ranks} ranks"
    return None if mean is None or not sides else _of_mean(sides, mean)


def _of_one(collective: str, ranks: int, each: Side) -> str | None:
    due = None if each.part is None else each.part * (ranks if collective in IN_PARTS else 1)
    if due is not None and due != each.size:
        return f"its elements are {each.part} B, which make {due} B"
    factor, (low, high) = busbw_factor(collective, ranks), _speeds(each)
    low, high = factor * max(low, each.algbw.low), factor * min(high, each.algbw.high)
    if low <= each.busbw.high and each.busbw.low <= high:
        return None
    speed = each.algbw.value
    return f"its busbw is {each.busbw.value:g} GB/s, where an algbw of {speed:g} GB/s makes {factor * speed:.6g}"


def _of_mean(sides: Sequence[Side], mean: Printed) -> str | None:
    due = sum(each.busbw.value for each in sides) / len(sides)
    if abs(due - mean.value) > mean.half + sum(each.busbw.half for each in sides) / len(sides):
        return (
            f"its average bus bandwidth is {mean.value:g} GB/s, and the mean of its {len(sides)} numbers is {due:.6g}"
        )
    return None


def _speeds(each: Side) -> tuple[float, float]:
    """The least and the most that size by time may be, GB/s."""
    low, high = each.time_us.low, each.time_us.high
    return each.size / 1e3 / high if high > 0.0 else 0.0, each.size / 1e3 / low if low > 0.0 else float("inf")
