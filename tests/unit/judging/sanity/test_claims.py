"""A log of another training or time than the run, or one that was filled up with copies, is not judged."""

import dataclasses
import random
from collections.abc import Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_llmbench.core.record.claims import Asked, Claim, ClaimName, Span
from pytest_llmbench.core.record.series import Step
from pytest_llmbench.core.repeats import repeated
from pytest_llmbench.judging.sanity import Evidence, Origin, first_problem
from pytest_llmbench.judging.sanity.losses import check_copies_in_log
from pytest_llmbench.judging.sanity.work import OF_RECIPES, due
from tests.conftest import known
from tests.unit.judging.conftest import good_runs
from tests.unit.judging.sanity.test_sanity_of_commands import evidence


def claiming(evidence: Evidence, *claims: Claim) -> Evidence:
    return dataclasses.replace(evidence, series=evidence.series.model_copy(update={"claims": claims}))


@pytest.mark.parametrize("name", sorted(OF_RECIPES))
@settings(max_examples=12)  # for each name: claims are about the recipe and its few topologies, and not about steps
@given(evidence=good_runs())
def test_a_claim_that_agrees_passes(name: ClaimName, evidence: Evidence) -> None:
    expected = due(name, evidence)
    assume(isinstance(expected, int | str))  # one copy of the model shares nothing with another
    assert isinstance(expected, int | str)
    claim = Claim(name=name, value=expected, where="rank 0")
    assert first_problem(claiming(evidence, claim)) is None


@pytest.mark.parametrize("name", sorted(OF_RECIPES))
@settings(max_examples=12)  # for each name: claims are about the recipe and its few topologies, and not about steps
@given(evidence=good_runs(), by=st.integers(1, 10))
def test_a_claim_that_differs_is_named(name: ClaimName, evidence: Evidence, by: int) -> None:
    """A run whose claim differs from the recipe by one unit or more is refused, also behind claims that agree."""
    expected = due(name, evidence)
    assume(isinstance(expected, int | str))
    assert isinstance(expected, int | str)
    other = "fp8" if isinstance(expected, str) else expected + by
    agrees = Claim(name=name, value=expected, where="rank 0")
    differs = Claim(name=name, value=other, where="rank 1")
    problem = known(first_problem(claiming(evidence, agrees, differs)))
    assert problem.kind == "wrong_work"
    assert "rank 1" in problem.message


@pytest.mark.parametrize(("expected", "value", "stage", "agrees"), [
    (Span(10, 12), 10, 0, True),
    (Span(10, 12), 12, 0, True),
    (Span(10, 12), 9, 0, False),
    (Span(10, 12), 13, 0, False),
    (Span(10, 12), "eleven", 0, False),
    (Span(1000, 1000), 1004.0, 0, True),  # rounded to three digits
    (Span(1000, 1000), 1004, 0, False),
    ((Span(10, 12), Span(20, 22)), 21, 1, True),
    ((Span(10, 12), Span(20, 22)), 21, 0, False),
    ((Span(10, 12), Span(20, 22)), 21, 2, False),  # a stage that the recipe does not have
    (None, 21, 0, True),
])  # fmt: skip
def test_what_the_engine_asks_for_counts(expected: Asked, value: float | str, stage: int, *, agrees: bool) -> None:
    """A span with both of its ends, and of a pipeline the stage that the claim is about."""
    claim = Claim(name="parameters_of_rank", value=value, where="rank 0", stage=stage)
    asking = dataclasses.replace(claiming(evidence(), claim), asks={"parameters_of_rank": expected})
    assert (first_problem(asking) is None) is agrees


LAUNCHED, ENDED = 1_790_000_000.0, 1_790_000_600.0


def started(evidence: Evidence, at: float, origin: Origin) -> Evidence:
    """The run, whose last rank says that it started at some time."""
    *others, last = evidence.series.ranks
    ranks = (*others, last.model_copy(update={"started": at}))
    return dataclasses.replace(evidence, series=evidence.series.model_copy(update={"ranks": ranks}), origin=origin)


@pytest.mark.parametrize(("at", "origin", "said"), [
    (LAUNCHED - 86_400, Origin(launched=LAUNCHED), "this run was launched at 1790000000"),
    (LAUNCHED - 86_400, Origin(launched=LAUNCHED, ended=ENDED), "this run was launched at 1790000000"),
    (ENDED + 86_400, Origin(ended=ENDED), "this run was over at 1790000600"),
    (ENDED + 86_400, Origin(launched=LAUNCHED, ended=ENDED), "this run was over at 1790000600"),
])  # fmt: skip
@settings(max_examples=12)
@given(evidence=good_runs())
def test_a_log_of_another_day_is_refused(evidence: Evidence, at: float, origin: Origin, said: str) -> None:
    problem = known(first_problem(started(evidence, at, origin)))
    assert problem.kind == "other_run"
    assert said in problem.message


@given(evidence=good_runs(), at=st.floats(LAUNCHED - 60, ENDED + 60))
def test_clocks_of_two_hosts_may_differ(evidence: Evidence, at: float) -> None:
    assert first_problem(started(evidence, at, Origin(launched=LAUNCHED, ended=ENDED))) is None


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
    assert list(check_copies_in_log(of(log(seed, count, digits, scatter, flat=flat)))) == []


@pytest.mark.parametrize(("count", "digits"), [(30, 4), (100, 3), (400, 3)])
def test_the_second_half_may_not_be_the_first(count: int, digits: int) -> None:
    lines = log(1, count, digits)
    half, some = count // 2, count // 3
    for copied in (lines[:half] * 2, [*lines[: 2 * some], *lines[:some]]):
        (problem,) = check_copies_in_log(of(copied))
        assert problem.kind == "implausible"
        assert "have the very durations and losses of those of steps 1 to" in problem.message


def test_what_stands_still_repeats_itself() -> None:
    """Rows that are all alike are no copies; a stretch does not overlap with its copy."""
    assert repeated([(1,)] * 10, 3, 2) is None
    assert repeated([(1,), (2,)] * 3, 3, 2) is None
    assert repeated([(1,), (2,), (3,), (1,), (2,), (3,)], 3, 2) == (0, 3)
