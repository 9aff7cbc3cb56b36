"""Reader of nccl-tests, of any of its versions, as curves: of the printed tables, and of the JSON of `-J` since 2.17.3.

The columns before the times differ between versions and between operations, and some rows leave some of them blank. So
columns are counted from the right. The numbers must agree with each other, to the digits printed: size by time is
algbw, by a factor busbw, and their mean the average.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from pydantic import ValidationError

from pytest_llmbench.core.record.curves import COLLECTIVES, IN_PARTS, Curve, Point, Timing, busbw_factor, size_name
from pytest_llmbench.readers.items import Unreadable
from pytest_llmbench.readers.lines import split_prefix
from pytest_llmbench.readers.numbers import as_number, count, number

_HEADER = re.compile(r"#\s+size\s+count\s+type\s")
_ROW = re.compile(r"\s*\d+\s+\d+\s+[a-z]\w*\s", re.ASCII)
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", re.ASCII)
_RANK = re.compile(r"#\s+Rank\s+(\d+) .*?Pid\s+\d+ on\s+(\S+) device\s+\d+ ", re.ASCII)
_NAME = re.compile(r"# Collective test starting: (?:\S*/)?(\w+?)(?:_perf)?(?:_mpi)?\s*$", re.ASCII)
_WRONG = re.compile(r"# Out of bounds values\s*: (\d{1,15}) (OK|FAILED)\s*$", re.ASCII)
_AVERAGE = re.compile(r"# Avg bus bandwidth\s*: (\S+)", re.ASCII)
_DTYPES = {"float": "float32", "half": "float16", "double": "float64"}
_WIDTHS = {
    **dict.fromkeys(("int8", "uint8", "char", "f8e4m3", "f8e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float"), 4),
    **dict.fromkeys(("int64", "uint64", "double"), 8),
}  # bytes of an element, by nccl-tests' name of its type
_GOOD, _BAD = ("OK", "okay: true"), ("FAILED", "okay: false")  # words for the values out of bounds
_ROUNDED_TWICE = 1.001  # in binary and in decimal
_BINARY_ERROR = 1e-9
_MOST_RANKS = 10**9  # more is damage


@dataclass(frozen=True, slots=True)
class _Printed:
    """A finite number as it was printed, at most `half` a unit of its last digit from the measured one."""

    value: float
    half: float

    @property
    def low(self) -> float:
        return self.value - self.half

    @property
    def high(self) -> float:
        return self.value + self.half


@dataclass(frozen=True, slots=True)
class _Side:
    """One operation, out of place or in place.

    `size` is in bytes, of all parts; `part` in bytes of the counted elements, None for an unknown type.
    """

    size: int
    part: int | None
    time_us: _Printed
    algbw: _Printed
    busbw: _Printed

    @property
    def speeds(self) -> tuple[float, float]:
        """The least and the most that size by time may be, GB/s."""
        low, high = self.time_us.low, self.time_us.high
        return self.size / 1e3 / high if high > 0.0 else 0.0, self.size / 1e3 / low if low > 0.0 else float("inf")

    def timing(self, wrong: int | None) -> Timing:
        return Timing(time_us=self.time_us.value, algbw=self.algbw.value, busbw=self.busbw.value, wrong=wrong)


def _read_printed(name: str, text: str) -> _Printed:
    """Read a number from 0 on with its digits: `1.25` is exact to 0.005, `1e+03` to 500."""
    value = number(name, text)
    if not 0.0 <= value < float("inf"):
        raise Unreadable(f"{name} is {text[:40]!r}")
    exponent = Decimal(text.strip()).as_tuple().exponent
    assert isinstance(exponent, int)  # of a finite number
    return _Printed(value, _ROUNDED_TWICE * 0.5 * 10.0**exponent + _BINARY_ERROR * value)


def _read_side(size: int, part: int | None, time: str, algbw: str, busbw: str) -> _Side:
    numbers = (_read_printed("time", time), _read_printed("algbw", algbw), _read_printed("busbw", busbw))
    side = _Side(size, part, *numbers)
    low, high = side.speeds
    if side.algbw.high < low or side.algbw.low > high:
        raise Unreadable(f"{size} B in {time} us are not {algbw} GB/s")
    return side


def _find_disagreement(
    collective: str | None, ranks: int | None, sides: Sequence[_Side], mean: _Printed | None
) -> str | None:
    """The first place where size, busbw or mean contradict the other numbers; None where all agree."""
    if collective in COLLECTIVES and ranks is not None:
        for side in sides:
            if fault := _check_side(collective, ranks, side):
                return f"at {size_name(side.size)} {fault} of {collective} on {ranks} ranks"
    if mean is None or not sides:
        return None
    due = sum(side.busbw.value for side in sides) / len(sides)
    if abs(due - mean.value) <= mean.half + sum(side.busbw.half for side in sides) / len(sides):
        return None
    return f"its average bus bandwidth is {mean.value:g} GB/s, and the mean of its {len(sides)} numbers is {due:.6g}"


def _check_side(collective: str, ranks: int, side: _Side) -> str | None:
    due = None if side.part is None else side.part * (ranks if collective in IN_PARTS else 1)
    if due is not None and due != side.size:
        return f"its elements are {side.part} B, which make {due} B"
    factor, (low, high) = busbw_factor(collective, ranks), side.speeds
    low, high = factor * max(low, side.algbw.low), factor * min(high, side.algbw.high)
    if low <= side.busbw.high and side.busbw.low <= high:
        return None
    speed = side.algbw.value
    return f"its busbw is {side.busbw.value:g} GB/s, where an algbw of {speed:g} GB/s makes {factor * speed:.6g}"


# The tables.


def read_nccl_tests(text: str, collective: str | None = None, ranks: int | None = None) -> list[Curve]:
    """Read the tables of a log, one curve each.

    Ranks that each print their own table, with their own prefix, are kept apart. A last line without an end was cut
    off, and is left out. `collective` and `ranks` are used where the log lacks them; versions from 2.16.7 on name the
    collective.
    """
    tables: dict[str, list[_Table]] = {}
    lines = re.split(r"[\r\n]", text)
    for line_number, line in enumerate(lines, start=1):
        source, rest = split_prefix(line)
        _add_line(rest, tables.setdefault(source, [_Table(collective)]), whole=line_number < len(lines))
    return [
        table.curve(len(table.ranks) or None, len(table.hosts) or None, ranks, complete=table.complete)
        for table in chain.from_iterable(tables.values())
        if table.begun
    ]


class _Row(NamedTuple):
    """One size, as it was printed."""

    size: int
    count: Any
    dtype: str
    redop: Any
    places: Mapping[str, tuple[str, str, str, int | None]]  # time, algbw, busbw and wrong elements by place


@dataclass(slots=True)
class _Table:
    """One table or file, as far as it was read."""

    collective: str | None
    header: str | None = None
    ranks: set[str] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    points: list[Point] = field(default_factory=list)
    sides: list[_Side] = field(default_factory=list)
    unreadable: int = 0
    out_of_bounds: int | None = None
    average: _Printed | None = None
    doubt: str | None = None

    @property
    def begun(self) -> bool:
        return self.header is not None or self.unreadable > 0

    @property
    def complete(self) -> bool:
        return self.average is not None and self.out_of_bounds is not None

    @property
    def over(self) -> bool:
        """True if its footer has begun, which follows the last row."""
        return self.average is not None or self.out_of_bounds is not None

    def curve(self, ranks: int | None, nodes: int | None, asked: int | None = None, *, complete: bool) -> Curve:
        """The curve; `asked` stands for unknown ranks."""
        return Curve(
            collective=self.collective, points=tuple(self.points), ranks=ranks, nodes=nodes, gpus=ranks,
            complete=complete, unreadable=self.unreadable, out_of_bounds=self.out_of_bounds,
            average_busbw=None if self.average is None else self.average.value,
            doubt=self.doubt or _find_disagreement(self.collective, ranks or asked, self.sides, self.average),
        )  # fmt: skip

    def add_row(self, read: Callable[[], _Row]) -> None:
        try:
            row = read()
            part = row.count * _WIDTHS[row.dtype] if row.dtype in _WIDTHS and isinstance(row.count, int) else None
            sides = {place: _read_side(row.size, part, *printed[:3]) for place, printed in row.places.items()}
            timings = {place: side.timing(row.places[place][3]) for place, side in sides.items()}
            dtype = _DTYPES.get(row.dtype, row.dtype)
            self.points.append(Point(size=row.size, count=row.count, dtype=dtype, redop=row.redop, **timings))
            self.sides += sides.values()
        except (KeyError, Unreadable, ValidationError):
            self.unreadable += 1

    def add_average(self, text: str) -> None:
        value = as_number(text)
        if value is None or not 0.0 <= value < float("inf"):
            self.doubt = self.doubt or f"its average bus bandwidth is {text[:40]!r}, not a bandwidth"
        elif self.average is not None:
            self.doubt = self.doubt or f"its average bus bandwidth is printed twice, {self.average.value:g} and {text}"
        else:
            self.average = _read_printed("average", text)

    def add_out_of_bounds(self, count: int, word: str) -> None:
        if (count > 0 and word in _GOOD) or (count == 0 and word in _BAD):
            self.doubt = self.doubt or f"it reports {count} values out of bounds, and calls that {word}"
        if self.out_of_bounds not in {None, count}:
            self.doubt = self.doubt or f"its counts of values out of bounds differ, {self.out_of_bounds} and {count}"
        self.out_of_bounds = count


def _add_line(line: str, tables: list[_Table], *, whole: bool) -> None:
    table = tables[-1]
    if not line.startswith("#"):
        if _ROW.match(line):
            table.add_row(partial(_read_row, line, None if table.over or not whole else table.header))
    elif not whole:
        return
    elif match := _NAME.match(line):
        _begin_table(tables).collective = match[1]
    elif match := _RANK.match(line):
        table = _begin_table(tables)
        table.ranks.add(match[1])
        table.hosts.add(match[2])
    elif _HEADER.match(line):
        _begin_table(tables).header = line
    elif match := _WRONG.match(line):
        table.add_out_of_bounds(int(match[1]), match[2])
    elif match := _AVERAGE.match(line):
        table.add_average(match[1])


def _begin_table(tables: list[_Table]) -> _Table:
    """The table that is about to begin: a new one, if the last has its rows."""
    if tables[-1].begun:
        tables.append(_Table(None if tables[-1].complete else tables[-1].collective))
    return tables[-1]


def _read_row(line: str, header: str | None) -> _Row:
    if header is None:
        raise Unreadable("it is cut off, or there is no header before it, or a footer")
    if "cputime" in header:
        raise Unreadable("-C 1 prints the time of the CPU, which is not that of the operation")
    fields = line.split()
    if _TIMESTAMP.fullmatch(" ".join(fields[-2:])):
        fields = fields[:-2]
    width = 8 if "i_min" in header else 4
    left, first, second = fields[: -2 * width], fields[-2 * width : -width], fields[-width:]
    if not 3 <= len(left) <= 5:  # size, count, type, and redop and root where there are such
        raise Unreadable(f"{len(fields)} columns")
    redops = [word for word in left[3:] if word.isalpha() and word != "none"]
    places: dict[str, tuple[str, str, str, int | None]] = {}
    for place, (time, algbw, busbw, wrong, *_) in (("out_of_place", first), ("in_place", second)):
        # Before version 2.13 the column had the largest deviation, of which only 0 is a count.
        is_count = "#wrong" in header
        places[place] = time, algbw, busbw, None if wrong == "N/A" else _read_wrong(wrong, is_count=is_count)
    return _Row(_read_size(left[0]), _read_size(left[1]), left[2], redops[0] if redops else None, places)


def _read_wrong(value: object, *, is_count: bool = True) -> int | None:
    wrong = number("#wrong", value)
    if wrong and not is_count:
        return None
    if not wrong.is_integer():
        raise Unreadable(f"#wrong is {value}")
    return int(wrong)


def _read_size(text: str) -> int:
    return 0 if text == "0" else count("size", text)


# The JSON.


def read_nccl_tests_json(text: str, collective: str | None = None, ranks: int | None = None) -> Curve:
    """Read the file that one process wrote; `collective` and `ranks` are used where the file lacks them.

    An infinite number or NaN is the text `nan` there, and booleans are the texts `true` and `false`. Raises Unreadable
    if it is not a whole JSON object, such as that of a program that was ended early.
    """
    try:
        data = json.loads(text, parse_float=str, parse_constant=str)  # as text they keep the digits that were printed
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"no whole JSON: {error}") from error
    if not isinstance(data, dict):
        raise Unreadable(f"expected a mapping of keys, found {type(data).__name__}")
    table = _Table(_find_name(data.get("args")) or collective)
    for result in _list(data.get("results")):
        table.add_row(partial(_read_result, _mapping(result)))
    bounds, average, config = (_mapping(data.get(key)) for key in ("out_of_bounds", "average_bus_bandwidth", "config"))
    if (bandwidth := average.get("bandwidth")) is not None:
        table.add_average(_as_text(bandwidth))
    wrong = bounds.get("count")
    if isinstance(wrong, int) and wrong >= 0:
        table.add_out_of_bounds(wrong, f"okay: {bounds.get('okay')}")
    hosts = [_mapping(device).get("hostname") for device in _list(config.get("devices"))]
    nodes = len({host if isinstance(host, str) else None for host in hosts}) or None
    return table.curve(_count_ranks(config) or ranks, nodes, complete=table.complete and "end_time" in data)


def _read_result(row: Mapping[str, Any]) -> _Row:
    redop = row.get("redop")
    if not isinstance(row["type"], str):
        raise Unreadable("its type is not a word")
    places: dict[str, tuple[str, str, str, int | None]] = {}
    for place in ("out_of_place", "in_place"):
        if row[place] is not None:  # a place without a measurement is null
            numbers = _mapping(row[place])
            # With -C 1 its time is `cpu_time`, which is not that of the operation.
            time, algbw, busbw = (_as_text(numbers[name]) for name in ("time", "alg_bw", "bus_bw"))
            wrong = numbers["nwrong"]
            places[place] = time, algbw, busbw, None if wrong in (None, "nan") else _read_wrong(wrong)
    size = count("size", row["size"]) if row["size"] != 0 else 0
    return _Row(size, row["count"], row["type"], None if redop in (None, "", "none") else redop, places)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _count_ranks(config: Mapping[str, Any]) -> int | None:
    """The product of processes (the file names one device of each), threads and GPUs."""
    devices = config.get("devices")
    parts = (len(devices) if isinstance(devices, list) else None, config.get("nthreads"), config.get("ngpus"))
    counts = [part for part in parts if isinstance(part, int) and part > 0]
    ranks = math.prod(counts) if len(counts) == len(parts) else None
    return ranks if ranks is None or ranks < _MOST_RANKS else None


def _find_name(args: object) -> str | None:
    if not (isinstance(args, list) and args and isinstance(args[0], str)):
        return None
    return PurePosixPath(args[0]).name.removesuffix("_mpi").removesuffix("_perf")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
