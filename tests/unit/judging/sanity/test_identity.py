"""Logs of another time than the run's are refused, by whichever of its times is known."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.judging.sanity import Evidence, Origin, first_problem
from tests.unit.judging.conftest import good_runs

LAUNCHED, ENDED = 1_790_000_000.0, 1_790_000_600.0


def started(evidence: Evidence, at: float, origin: Origin) -> Evidence:
    """The run, whose last rank says that it started at some time."""
    *others, last = evidence.series.ranks
    ranks = (*others, last.model_copy(update={"started": at}))
    return dataclasses.replace(evidence, series=evidence.series.model_copy(update={"ranks": ranks}), origin=origin)


@pytest.mark.parametrize(
    ("at", "origin", "said"),
    [
        (LAUNCHED - 86_400, Origin(launched=LAUNCHED), "this run was launched at 1790000000"),
        (LAUNCHED - 86_400, Origin(launched=LAUNCHED, ended=ENDED), "this run was launched at 1790000000"),
        (ENDED + 86_400, Origin(ended=ENDED), "this run was over at 1790000600"),
        (ENDED + 86_400, Origin(launched=LAUNCHED, ended=ENDED), "this run was over at 1790000600"),
    ],
)
@given(evidence=good_runs())
def test_a_log_of_another_day_is_refused(evidence: Evidence, at: float, origin: Origin, said: str) -> None:
    problem = first_problem(started(evidence, at, origin))
    assert problem is not None
    assert problem.kind == "other_run"
    assert said in problem.message


@given(evidence=good_runs(), at=st.floats(LAUNCHED - 60, ENDED + 60))
def test_clocks_of_two_hosts_may_differ(evidence: Evidence, at: float) -> None:
    assert first_problem(started(evidence, at, Origin(launched=LAUNCHED, ended=ENDED))) is None
