"""A run that says it trained something else than its recipe is not judged."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.claims import Claim, ClaimName
from pytest_llmbench.judging.sanity import Evidence, first_problem
from pytest_llmbench.judging.sanity.claims import due

from .conftest import good_runs


def claiming(evidence: Evidence, *claims: Claim) -> Evidence:
    """The run with claims."""
    return dataclasses.replace(evidence, series=evidence.series.model_copy(update={"claims": claims}))


@pytest.mark.parametrize("name", get_args(ClaimName))
@given(evidence=good_runs())
def test_a_claim_that_agrees_passes(name: ClaimName, evidence: Evidence) -> None:
    """A run that says of itself what its recipe says is sane."""
    claim = Claim(name=name, value=due(name, evidence), where="rank 0")
    assert first_problem(claiming(evidence, claim)) is None


@pytest.mark.parametrize("name", get_args(ClaimName))
@given(evidence=good_runs(), by=st.integers(1, 10))
def test_a_claim_that_differs_is_named(name: ClaimName, evidence: Evidence, by: int) -> None:
    """A run whose claim differs from the recipe by one unit or more is refused, also behind claims that agree."""
    expected = due(name, evidence)
    agrees = Claim(name=name, value=expected, where="rank 0")
    differs = Claim(name=name, value="fp8" if isinstance(expected, str) else expected + by, where="rank 1")
    problem = first_problem(claiming(evidence, agrees, differs))
    assert problem is not None
    assert problem.kind == "wrong_work"
    assert "rank 1" in problem.message
