"""Curves: bandwidths by nccl-tests' definitions, and what can be looked up."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.record.curves import (
    COLLECTIVES,
    Curve,
    Point,
    Timing,
    asked_size,
    busbw_factor,
    size_name,
    timing,
)

GIB = 1 << 30


def point(size: int, busbw: float, wrong: int | None = 0, *, in_place: bool = False) -> Point:
    told = Timing(time_us=1.0, algbw=busbw, busbw=busbw, wrong=wrong)
    sides: dict[str, Any] = {"in_place" if in_place else "out_of_place": told}
    return Point(size=size, count=size // 4, dtype="float32", **sides)


def test_bandwidths_are_those_that_nccl_tests_printed() -> None:
    """A row of the sample of 8 H100: 8 GiB in 31307 us are 274.38 GB/s, and 480.16 GB/s on the bus."""
    found = timing("all_reduce", 8 * GIB, 8, 31307.0, 0)
    assert (round(found.algbw, 2), round(found.busbw, 2)) == (274.38, 480.16)


@pytest.mark.parametrize(
    ("collective", "factor"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("alltoall", 0.75), ("reduce", 1.0),
     ("broadcast", 1.0), ("sendrecv", 1.0)],
)  # fmt: skip
def test_the_bus_factors_of_four_ranks(collective: str, factor: float) -> None:
    assert busbw_factor(collective, 4) == factor
    assert collective in COLLECTIVES


def test_an_unknown_collective_has_no_factor_and_what_was_not_checked_is_not_right() -> None:
    with pytest.raises(ValueError, match="not one of all_reduce"):
        busbw_factor("allreduce", 4)
    assert point(8, 1.0, None).wrong is None


def test_what_is_looked_up() -> None:
    """Of two rows of a size the slower counts; out of place goes before in place; the peak is the highest."""
    both = Point(
        size=8, count=2, dtype="float32", out_of_place=timing("reduce", 8, 2, 4.0, 1),
        in_place=timing("reduce", 8, 2, 2.0, 2),
    )  # fmt: skip
    curve = Curve(
        collective="reduce", points=(both, point(16, 9.0, in_place=True), point(16, 7.0), point(32, 5.0)), complete=True
    )
    at_16, at_8 = curve.at(16), curve.at(8)
    assert at_16 is not None
    assert at_16.timing is not None
    assert at_16.timing.busbw == 7.0
    assert at_8 is not None
    assert at_8.timing == at_8.out_of_place
    assert (at_8.wrong, curve.wrong) == (3, (both,))
    assert curve.peak == point(16, 9.0, in_place=True)
    assert curve.at(64) is None


@given(power=st.integers(4, 40), ranks=st.integers(1, 100))
def test_a_size_tells_what_was_asked_for(power: int, ranks: int) -> None:
    """Equal parts of 16 bytes for all ranks make a size a little smaller; it keeps the name of what was asked for."""
    asked = 1 << power
    size = asked // ranks // 16 * 16 * ranks
    if size > asked // 2:
        assert asked_size("all_gather", size, ranks) == asked
    assert asked_size("all_reduce", asked - 24, ranks) == asked - 24


@given(st.integers(0, 1 << 45))
def test_a_size_name_is_exact(size: int) -> None:
    name = size_name(size)
    digits = name.rstrip("BKMGTi")
    assert int(digits) * 1024 ** ("", "K", "M", "G", "T").index(name[len(digits) :].rstrip("iB")) == size


def test_size_names() -> None:
    assert [size_name(size) for size in (8, 1024, 1 << 20, 8 * GIB, 1000)] == ["8B", "1KiB", "1MiB", "8GiB", "1000B"]
