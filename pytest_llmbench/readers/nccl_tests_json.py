"""What nccl-tests writes with `-J`, from version 2.17.3 on, becomes a curve."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from pydantic import ValidationError

from pytest_llmbench.core.curves import Curve, Point, Timing
from pytest_llmbench.readers.items import Unreadable
from pytest_llmbench.readers.nccl_tests import dtype_of
from pytest_llmbench.readers.numbers import as_number


def read_nccl_tests_json(text: str) -> Curve:
    """Read the file that one process wrote.

    Numbers that are none are the text `nan` there, and truths the texts `true` and `false`.

    Raises:
        Unreadable: it is no whole JSON object, as where the program was ended before it wrote the rest.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise Unreadable(f"no whole JSON: {error}") from error
    if not isinstance(data, dict):
        raise Unreadable(f"expected a mapping of keys, found {type(data).__name__}")
    points, unreadable = _points(data.get("results"))
    bounds, average, config = (_mapping(data.get(key)) for key in ("out_of_bounds", "average_bus_bandwidth", "config"))
    ranks = _ranks(config)
    out_of_bounds, busbw = _whole(bounds.get("count")), _finite(average.get("bandwidth"))
    return Curve(
        collective=_name(data.get("args")),
        points=points,
        ranks=ranks,
        nodes=len({_mapping(device).get("hostname") for device in config.get("devices") or ()}) or None,
        gpus=ranks,
        complete=out_of_bounds is not None and busbw is not None and "end_time" in data,
        unreadable=unreadable,
        out_of_bounds=out_of_bounds,
        average_busbw=busbw,
    )


def _points(results: object) -> tuple[tuple[Point, ...], int]:
    rows = results if isinstance(results, list) else []
    points = []
    for row in rows:
        try:
            points.append(_point(_mapping(row)))
        except (KeyError, ValidationError):
            continue
    return tuple(points), len(rows) - len(points)


def _point(row: Mapping[str, Any]) -> Point:
    redop = row.get("redop")
    return Point(
        size=row["size"],
        count=row["count"],
        dtype=dtype_of(row["type"]),
        redop=None if redop in (None, "", "none") else redop,
        out_of_place=_timing(row["out_of_place"]),
        in_place=_timing(row["in_place"]),
    )


def _timing(side: Any) -> Timing | None:
    """One side; null for one that was not measured."""
    if side is None:
        return None
    told = _mapping(side)
    return Timing(
        time_us=told["time"],  # with -C 1 it is `cpu_time`, which is not the operation's
        algbw=told["alg_bw"],
        busbw=told["bus_bw"],
        wrong=None if told["nwrong"] in (None, "nan") else told["nwrong"],
    )


def _ranks(config: Mapping[str, Any]) -> int | None:
    """The file names one device of every process, and how many threads and GPUs each process has."""
    devices = config.get("devices")
    parts = (len(devices) if isinstance(devices, list) else None, config.get("nthreads"), config.get("ngpus"))
    counts = [part for part in parts if isinstance(part, int) and part > 0]
    return math.prod(counts) if len(counts) == len(parts) else None


def _name(args: object) -> str | None:
    if not (isinstance(args, list) and args and isinstance(args[0], str)):
        return None
    return PurePosixPath(args[0]).name.removesuffix("_mpi").removesuffix("_perf")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def _finite(value: object) -> float | None:
    found = as_number(value)
    return found if found is not None and math.isfinite(found) else None
