"""Reader of the output of nccl-tests, of any of its versions, as curves.

The columns before the times differ between versions and between operations, and some rows leave some of them blank. So
columns are counted from the right. The numbers must agree with each other, to the digits printed.
"""

import re
from dataclasses import dataclass, field
from itertools import chain

from pydantic import ValidationError

from pytest_llmbench.checks.collectives.report_agreement import Printed, Side, average, disagreement, part, side
from pytest_llmbench.core.record.curves import Curve, Point
from pytest_llmbench.readers.items import Unreadable
from pytest_llmbench.readers.lines import split_prefix
from pytest_llmbench.readers.numbers import count, number

_HEADER = re.compile(r"#\s+size\s+count\s+type\s")
_ROW = re.compile(r"\s*\d+\s+\d+\s+[a-z]\w*\s", re.ASCII)
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", re.ASCII)
_RANK = re.compile(r"#\s+Rank\s+(\d+) .*?Pid\s+\d+ on\s+(\S+) device\s+\d+ ", re.ASCII)
_NAME = re.compile(r"# Collective test starting: (?:\S*/)?(\w+?)(?:_perf)?(?:_mpi)?\s*$", re.ASCII)
_WRONG = re.compile(r"# Out of bounds values\s*: (\d{1,15}) (OK|FAILED)\s*$", re.ASCII)
_AVERAGE = re.compile(r"# Avg bus bandwidth\s*: (\S+)", re.ASCII)

_DTYPES = {"float": "float32", "half": "float16", "double": "float64"}


def read_nccl_tests(text: str, collective: str | None = None, ranks: int | None = None) -> list[Curve]:
    """Read the tables of a log, one curve each; none where there is no table.

    Ranks that each print their own table, with their own prefix, are kept apart. A last line without an end was cut
    off, and is not read. `collective`, which only versions from 2.16.7 on name, and `ranks` count where the log does
    not say.
    """
    tables: dict[str, list[_Table]] = {}
    lines = re.split(r"[\r\n]", text)
    for number_, line in enumerate(lines, start=1):
        source, rest = split_prefix(line)
        tables.setdefault(source, [_Table(collective)])
        _take(rest, tables[source], whole=number_ < len(lines))
    return [table.curve(ranks) for table in chain.from_iterable(tables.values()) if table.begun]


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
    sides: list[Side] = field(default_factory=list)
    unreadable: int = 0
    out_of_bounds: int | None = None
    average: Printed | None = None
    doubt: str | None = None

    @property
    def begun(self) -> bool:
        return self.header is not None or self.unreadable > 0

    @property
    def complete(self) -> bool:
        return self.average is not None and self.out_of_bounds is not None

    @property
    def over(self) -> bool:
        """Whether its footer has begun, which no row follows."""
        return self.average is not None or self.out_of_bounds is not None

    def curve(self, ranks: int | None) -> Curve:
        ranks = len(self.ranks) or ranks
        return Curve(
            collective=self.collective,
            points=tuple(self.points),
            ranks=len(self.ranks) or None,
            nodes=len(self.hosts) or None,
            gpus=len(self.ranks) or None,
            complete=self.complete,
            unreadable=self.unreadable,
            out_of_bounds=self.out_of_bounds,
            average_busbw=None if self.average is None else self.average.value,
            doubt=self.doubt or disagreement(self.collective, ranks, self.sides, self.average),
        )

    def take_average(self, text: str) -> None:
        """Take the mean that the footer says."""
        said = average(text)
        if isinstance(said, str):
            self.doubt = self.doubt or said
        elif self.average is not None:
            self.doubt = self.doubt or f"its average bus bandwidth is printed twice, {self.average.value:g} and {text}"
        else:
            self.average = said

    def take_out_of_bounds(self, count: int, word: str) -> None:
        """Take how many values were wrong, and the word on it."""
        if (count > 0) != (word == "FAILED"):
            self.doubt = self.doubt or f"it says {count} values out of bounds, and calls that {word}"
        if self.out_of_bounds not in {None, count}:
            self.doubt = self.doubt or f"its counts of values out of bounds differ, {self.out_of_bounds} and {count}"
        self.out_of_bounds = count


def _take(line: str, tables: list[_Table], *, whole: bool) -> None:
    """Take note of a line, in the last of a log's tables or in a new one."""
    if line.startswith("#"):
        if whole:
            _take_comment(line, tables)
    elif _ROW.match(line):
        table = tables[-1]
        try:
            point, sides = _point(line, None if table.over or not whole else table.header)
        except (Unreadable, ValidationError):
            table.unreadable += 1
            return
        table.points.append(point)
        table.sides += sides


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
        table.take_out_of_bounds(int(match[1]), match[2])
    elif match := _AVERAGE.match(line):
        table.take_average(match[1])


def _next(tables: list[_Table]) -> _Table:
    """The table that is about to begin: a new one, if the last has its rows."""
    if tables[-1].begun:
        tables.append(_Table(None if tables[-1].complete else tables[-1].collective))
    return tables[-1]


def _point(line: str, header: str | None) -> tuple[Point, tuple[Side, Side]]:
    """Read one row below its header.

    Raises:
        Unreadable: it is not one that the header announces.
    """
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
    size = _size(left[0])
    words = [word for word in left[3:] if word.isalpha() and word != "none"]
    elements = part(_size(left[1]), left[2])
    sides = (side(size, elements, *first[:3]), side(size, elements, *second[:3]))
    point = Point(
        size=size,
        count=_size(left[1]),
        dtype=dtype_of(left[2]),
        redop=words[0] if words else None,
        out_of_place=sides[0].timing(_wrong(first[3], header)),
        in_place=sides[1].timing(_wrong(second[3], header)),
    )
    return point, sides


def _wrong(text: str, header: str) -> int | None:
    """Wrong elements. Before version 2.13 the column had the largest deviation, which is not a count unless it is 0."""
    if text == "N/A":
        return None
    found = number("#wrong", text)
    if found and "#wrong" not in header:
        return None
    if not found.is_integer():
        raise Unreadable(f"#wrong is {text}")
    return int(found)


def _size(text: str) -> int:
    return 0 if text == "0" else count("size", text)
