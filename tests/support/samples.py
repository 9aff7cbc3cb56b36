"""Recorded logs: our own runs in `tests/data`, and those that others published, which are not part of the project."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]
DATA = _ROOT / "tests" / "data"
#: test variable LLMBENCH_SAMPLES: a folder of logs that others published, by default `../shared/samples`
SAMPLES = Path(os.environ.get("LLMBENCH_SAMPLES", _ROOT.parent / "shared" / "samples"))


def find(name: str) -> Path | None:
    """Return the file of this name below `tests/data` or the folder of samples; None where it is in neither."""
    return next((path for path in (DATA / name, SAMPLES / name) if path.is_file()), None)


def sample(name: str) -> Path:
    """Return the file of this name, or skip the test."""
    path = find(name)
    if path is None:
        pytest.skip(f"no public sample {name} in {SAMPLES} (LLMBENCH_SAMPLES names another folder)")
    return path


def middle_left_out(log: bytes) -> bytes:
    """Return a log without the lines in its middle, which are like those before and after them."""
    lines = log.split(b"\n")
    return b"\n".join(lines if len(lines) <= 250 else [*lines[:180], *lines[-70:]])


def readable(cases: Iterable[Any], name: Callable[[Any], str]) -> list[Any]:
    """Return the cases of a parametrized test. Without a folder of samples, only those with a log in `tests/data`."""
    return [case for case in cases if SAMPLES.is_dir() or find(name(case))]
