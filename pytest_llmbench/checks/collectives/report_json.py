"""Reader of the JSON that nccl-tests writes with `-J`, from version 2.17.3 on, as a curve."""

import json
import math
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from pydantic import ValidationError

from pytest_llmbench.checks.collectives.report import dtype_of
from pytest_llmbench.checks.collectives.report_agreement import Printed, Side, average, disagreement, part, side
from pytest_llmbench.core.record.curves import Curve, Point
from pytest_llmbench.readers.items import Unreadable
from pytest_llmbench.readers.numbers import count, number

_MOST_RANKS = 10**9  # more is damage


def read_nccl_tests_json(text: str, collective: str | None = None, ranks: int | None = None) -> Curve:
    """Read the file that one process wrote; `collective` and `ranks` count where it does not say.

    A number that is not finite is the text `nan` there, and truths are the texts `true` and `false`.

    Raises:
        Unreadable: it is not a whole JSON object, for example because the program was ended before it wrote the rest.
    """
    try:
        data = json.loads(text, parse_float=str, parse_constant=str)  # as text they keep the digits that were printed
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"no whole JSON: {error}") from error
    if not isinstance(data, dict):
        raise Unreadable(f"expected a mapping of keys, found {type(data).__name__}")
    rows, unreadable = _rows(data.get("results"))
    bounds, average, config = (_mapping(data.get(key)) for key in ("out_of_bounds", "average_bus_bandwidth", "config"))
    collective, ranks = _name(data.get("args")) or collective, _ranks(config) or ranks
    out_of_bounds, mean = _whole(bounds.get("count")), _mean(average.get("bandwidth"))
    busbw, doubt = (mean, None) if not isinstance(mean, str) else (None, mean)
    sides = [each for _, of_row in rows for each in of_row]
    return Curve(
        collective=collective,
        points=tuple(point for point, _ in rows),
        ranks=ranks,
        nodes=len({_host(device) for device in _list(config.get("devices"))}) or None,
        gpus=ranks,
        complete=out_of_bounds is not None and busbw is not None and "end_time" in data,
        unreadable=unreadable,
        out_of_bounds=out_of_bounds,
        average_busbw=None if busbw is None else busbw.value,
        doubt=doubt or _misjudged(out_of_bounds, bounds.get("okay")) or disagreement(collective, ranks, sides, busbw),
    )


def _rows(results: object) -> tuple[list[tuple[Point, list[Side]]], int]:
    """The readable values of each row, and the number of unreadable rows."""
    rows = _list(results)
    read = []
    for row in rows:
        try:
            read.append(_row(_mapping(row)))
        except (KeyError, ValidationError, Unreadable):
            continue
    return read, len(rows) - len(read)


def _row(row: Mapping[str, Any]) -> tuple[Point, list[Side]]:
    redop, places = row.get("redop"), [row[name] for name in ("out_of_place", "in_place")]
    if not isinstance(row["type"], str):
        raise Unreadable("its type is not a word")
    size = count("size", row["size"]) if row["size"] != 0 else 0
    elements = part(row["count"], row["type"]) if isinstance(row["count"], int) else None
    sides = [None if place is None else _side(size, elements, _mapping(place)) for place in places]  # or not measured
    timings = [None if each is None else each.timing(_wrong(_mapping(place)["nwrong"]))
               for each, place in zip(sides, places, strict=True)]  # fmt: skip
    point = Point(
        size=size,
        count=row["count"],
        dtype=dtype_of(row["type"]),
        redop=None if redop in (None, "", "none") else redop,
        out_of_place=timings[0],
        in_place=timings[1],
    )
    return point, [each for each in sides if each is not None]


def _side(size: int, elements: int | None, told: Mapping[str, Any]) -> Side:
    """One side; with -C 1 its time is `cpu_time`, which is not the operation's."""
    return side(size, elements, *(_text(told[name]) for name in ("time", "alg_bw", "bus_bw")))


def _wrong(nwrong: object) -> int | None:
    if nwrong in (None, "nan"):
        return None
    wrong = number("nwrong", nwrong)
    if not wrong.is_integer():
        raise Unreadable(f"nwrong is {wrong}")
    return int(wrong)


def _text(value: object) -> str:
    """A number as it stands in the file."""
    return value if isinstance(value, str) else json.dumps(value)


def _mean(value: object) -> Printed | str | None:
    return None if value is None else average(_text(value))


def _misjudged(count: int | None, okay: object) -> str | None:
    """Contradictions between the word on wrong values and their number."""
    if count is None or okay not in ("true", "false") or (count == 0) == (okay == "true"):
        return None
    return f"it says {count} values out of bounds, and of that okay: {okay}"


def _ranks(config: Mapping[str, Any]) -> int | None:
    """The file names one device of every process, and how many threads and GPUs each process has."""
    devices = config.get("devices")
    parts = (len(devices) if isinstance(devices, list) else None, config.get("nthreads"), config.get("ngpus"))
    counts = [part for part in parts if isinstance(part, int) and part > 0]
    ranks = math.prod(counts) if len(counts) == len(parts) else None
    return ranks if ranks is None or ranks < _MOST_RANKS else None


def _name(args: object) -> str | None:
    if not (isinstance(args, list) and args and isinstance(args[0], str)):
        return None
    return PurePosixPath(args[0]).name.removesuffix("_mpi").removesuffix("_perf")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def _host(device: object) -> str | None:
    host = _mapping(device).get("hostname")
    return host if isinstance(host, str) else None
