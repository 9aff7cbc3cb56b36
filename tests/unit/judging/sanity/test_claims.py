"""A run that says it trained something else than its recipe is not judged."""

import dataclasses

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_llmbench.core.record.claims import Asked, Claim, ClaimName, Span
from pytest_llmbench.judging.sanity import Evidence, first_problem
from pytest_llmbench.judging.sanity.work import OF_RECIPES, due
from tests.unit.judging.conftest import good_runs

from .test_sanity_of_commands import evidence


def claiming(evidence: Evidence, *claims: Claim) -> Evidence:
    return dataclasses.replace(evidence, series=evidence.series.model_copy(update={"claims": claims}))


@pytest.mark.parametrize("name", sorted(OF_RECIPES))
@given(evidence=good_runs())
def test_a_claim_that_agrees_passes(name: ClaimName, evidence: Evidence) -> None:
    expected = due(name, evidence)
    assume(isinstance(expected, int | str))  # one copy of the model shares nothing with another
    assert isinstance(expected, int | str)
    claim = Claim(name=name, value=expected, where="rank 0")
    assert first_problem(claiming(evidence, claim)) is None


@pytest.mark.parametrize("name", sorted(OF_RECIPES))
@given(evidence=good_runs(), by=st.integers(1, 10))
def test_a_claim_that_differs_is_named(name: ClaimName, evidence: Evidence, by: int) -> None:
    """A run whose claim differs from the recipe by one unit or more is refused, also behind claims that agree."""
    expected = due(name, evidence)
    assume(isinstance(expected, int | str))
    assert isinstance(expected, int | str)
    other = "fp8" if isinstance(expected, str) else expected + by
    agrees = Claim(name=name, value=expected, where="rank 0")
    differs = Claim(name=name, value=other, where="rank 1")
    problem = first_problem(claiming(evidence, agrees, differs))
    assert problem is not None
    assert problem.kind == "wrong_work"
    assert "rank 1" in problem.message


@pytest.mark.parametrize(
    ("expected", "value", "stage", "agrees"),
    [
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
    ],
)
def test_what_the_engine_asks_for_counts(expected: Asked, value: float | str, stage: int, *, agrees: bool) -> None:
    """A span with both of its ends, and of a pipeline the stage that the claim is about."""
    claim = Claim(name="parameters_of_rank", value=value, where="rank 0", stage=stage)
    asking = dataclasses.replace(claiming(evidence(), claim), asks={"parameters_of_rank": expected})
    assert (first_problem(asking) is None) is agrees
