"""What nccl-tests prints, of any of its versions, becomes curves.

The columns before the times differ between versions and between operations, and some rows leave some of them blank. So
columns are counted from the right. What is read must agree with itself: size by time is algbw, to the digits printed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from pydantic import ValidationError

from pytest_llmbench.core.curves import Curve, Point, Timing
from pytest_llmbench.readers.items import Unreadable
from pytest_llmbench.readers.lines import split_prefix
from pytest_llmbench.readers.numbers import count, number

_HEADER = re.compile(r"#\s+size\s+count\s+type\s")
_ROW = re.compile(r"\s*\d+\s+\d+\s+[a-z]\w*\s", re.ASCII)
_TIMESTAMP = re.compile(r"\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*$", re.ASCII)
_RANK = re.compile(r"#\s+Rank\s+(\d+) .*?Pid\s+\d+ on\s+(\S+) device\s+\d+ ", re.ASCII)
_NAME = re.compile(r"# Collective test starting: (?:\S*/)?(\w+?)(?:_perf)?(?:_mpi)?\s*$", re.ASCII)
_WRONG = re.compile(r"# Out of bounds values\s*: (\d+) ", re.ASCII)
_AVERAGE = re.compile(r"# Avg bus bandwidth\s*: (\S+)", re.ASCII)

_DTYPES = {"float": "float32", "half": "float16", "double": "float64"}


def read_nccl_tests(text: str, collective: str | None = None) -> list[Curve]:
    """Read the tables of a log, one curve each; none where there is no table.

    Ranks that each print a table of their own with a prefix of their own are told apart.

    Args:
        text: the log. A last line without an end was cut off, and is not read.
        collective: what was measured, where the log does not say: only versions from 2.16.7 on do.
    """
    tables: dict[str, list[_Table]] = {}
    lines = re.split(r"[\r\n]", text)
    for number_, line in enumerate(lines, start=1):
        source, rest = split_prefix(line)
        tables.setdefault(source, [_Table(collective)])
        _take(rest, tables[source], whole=number_ < len(lines))
    return [table.curve() for table in chain.from_iterable(tables.values()) if table.begun]


def dtype_of(name: str) -> str:
    """A type as PyTorch calls it: `float` is `float32`."""
    return _DTYPES.get(name, name)


@dataclass(slots=True)
class _Table:
    """One table, as far as it was read."""

    collective: str | None
    header: str | None = None
    ranks: set[str] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    points: list[Point] = field(default_factory=list)
    unreadable: int = 0
    out_of_bounds: int | None = None
    average: float | None = None

    @property
    def begun(self) -> bool:
        return self.header is not None or self.unreadable > 0

    @property
    def complete(self) -> bool:
        return self.average is not None and self.out_of_bounds is not None

    def curve(self) -> Curve:
        return Curve(
            collective=self.collective,
            points=tuple(self.points),
            ranks=len(self.ranks) or None,
            nodes=len(self.hosts) or None,
            gpus=len(self.ranks) or None,
            complete=self.complete,
            unreadable=self.unreadable,
            out_of_bounds=self.out_of_bounds,
            average_busbw=self.average,
        )


def _take(line: str, tables: list[_Table], *, whole: bool) -> None:
    """Take note of a line, in the last of a log's tables or in a new one."""
    if line.startswith("#"):
        if whole:
            _take_comment(line, tables)
    elif _ROW.match(line):
        try:
            point = _point(line, tables[-1].header) if whole else None
        except (Unreadable, ValidationError):
            point = None
        if point is None:
            tables[-1].unreadable += 1
        else:
            tables[-1].points.append(point)


def _take_comment(line: str, tables: list[_Table]) -> None:
    table = tables[-1]
    if match := _NAME.match(line):
        table = _next(tables)
        table.collective = match[1]
    elif match := _RANK.match(line):
        table = _next(tables)
        table.ranks.add(match[1])
        table.hosts.add(match[2])
    elif _HEADER.match(line):
        _next(tables).header = line
    elif match := _WRONG.match(line):
        table.out_of_bounds = int(match[1])
    elif match := _AVERAGE.match(line):
        table.average = number("average", match[1])


def _next(tables: list[_Table]) -> _Table:
    """The table that is about to begin: a new one, if the last has its rows."""
    if tables[-1].begun:
        tables.append(_Table(None if tables[-1].complete else tables[-1].collective))
    return tables[-1]


def _point(line: str, header: str | None) -> Point:
    """Read one row.

    Raises:
        Unreadable: it is none that the header announces.
    """
    if header is None:
        raise Unreadable("there is no header before it")
    if "cputime" in header:
        raise Unreadable("-C 1 prints the time of the CPU, which is not that of the operation")
    fields = _TIMESTAMP.sub("", line).split()
    side = 8 if "i_min" in header else 4
    left, first, second = fields[: -2 * side], fields[-2 * side : -side], fields[-side:]
    if not 3 <= len(left) <= 5:  # size, count, type, and redop and root where there are such
        raise Unreadable(f"{len(fields)} columns")
    size = _size(left[0])
    words = [word for word in left[3:] if word.isalpha() and word != "none"]
    return Point(
        size=size,
        count=_size(left[1]),
        dtype=dtype_of(left[2]),
        redop=words[0] if words else None,
        out_of_place=_timing(size, first, header),
        in_place=_timing(size, second, header),
    )


def _timing(size: int, fields: Sequence[str], header: str) -> Timing:
    time, algbw, busbw, wrong = fields[:4]
    time_us, speed = number("time", time), number("algbw", algbw)
    low, high = time_us - _half_digit(time), time_us + _half_digit(time)
    slack = 1.001 * _half_digit(algbw)  # rounded twice: in binary and in decimal
    if high <= 0 or size / 1e3 / high > speed + slack or (low > 0 and size / 1e3 / low < speed - slack):
        raise Unreadable(f"{size} B in {time} us are not {algbw} GB/s")
    return Timing(time_us=time_us, algbw=speed, busbw=number("busbw", busbw), wrong=_wrong(wrong, header))


def _wrong(text: str, header: str) -> int | None:
    """Wrong elements. Before version 2.13 the column had the largest deviation, which is no count unless it is 0."""
    if text == "N/A":
        return None
    found = number("#wrong", text)
    return None if found and "#wrong" not in header else int(found)


def _half_digit(text: str) -> float:
    """Half a unit of the last digit of a number as it was printed: 0.005 for `1.25`, 500 for `1e+03`."""
    mantissa, _, exponent = text.partition("e")
    return 0.5 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


def _size(text: str) -> int:
    return 0 if text == "0" else count("size", text)
