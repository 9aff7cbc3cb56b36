"""A log that was filled up with copies of its own lines is found, and no true one is, however few digits it has."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.record.series import Step
from pytest_llmbench.core.repeats import repeated
from pytest_llmbench.judging.sanity import Evidence
from pytest_llmbench.judging.sanity.losses import copied_in_log
from tests.unit.judging.sanity.test_sanity_of_commands import evidence


def log(seed: int, count: int, digits: int, scatter: float = 0.02, *, flat: bool = False) -> list[tuple[float, float]]:
    """Durations and losses of lines, as a framework prints them; a loss that is flat has nothing left to learn."""
    chance = random.Random(seed)
    fall = [0.0 if flat else 3.0 / (1 + number / 10) for number in range(count)]
    return [
        (round(0.5 + 0.002 * chance.gauss(0, 1), digits), round(4.0 + each + scatter * chance.gauss(0, 1), digits))
        for each in fall
    ]


def of(lines: Sequence[tuple[float, float]]) -> Evidence:
    steps = tuple(Step(step=n, seconds=seconds, loss=loss) for n, (seconds, loss) in enumerate(lines, start=1))
    return evidence(steps, recipe={"steps": len(lines)})


@given(
    seed=st.integers(0, 10_000), count=st.integers(10, 400), digits=st.integers(1, 6), scatter=st.floats(0, 0.1),
    flat=st.booleans(),
)  # fmt: skip
def test_a_true_log_has_no_copies(seed: int, count: int, digits: int, scatter: float, flat: bool) -> None:
    assert list(copied_in_log(of(log(seed, count, digits, scatter, flat=flat)))) == []


@pytest.mark.parametrize(("count", "digits"), [(30, 4), (100, 3), (400, 3)])
def test_the_second_half_may_not_be_the_first(count: int, digits: int) -> None:
    lines = log(1, count, digits)
    half, some = count // 2, count // 3
    for copied in (lines[:half] * 2, [*lines[: 2 * some], *lines[:some]]):
        (problem,) = copied_in_log(of(copied))
        assert problem.kind == "implausible"
        assert "have the very durations and losses of those of steps 1 to" in problem.message


def test_what_stands_still_repeats_itself() -> None:
    """Rows that are all alike are no copies; a stretch does not overlap with its copy."""
    assert repeated([(1,)] * 10, 3, 2) is None
    assert repeated([(1,), (2,)] * 3, 3, 2) is None
    assert repeated([(1,), (2,), (3,), (1,), (2,), (3,)], 3, 2) == (0, 3)
