"""The cases of the campaign on causes."""

from __future__ import annotations

from typing import get_args

from benchmarks.causes.campaign import recipe_of
from benchmarks.causes.cases import cases
from pytest_llmbench.judging.cause.evidence import CauseKind


def test_a_campaign_is_large_and_repeatable() -> None:
    """At least 100 runs, the same by the same seed; each has a cause that can be named, and a rank that is there."""
    first = cases(1, 1.0)
    assert len(first) >= 100
    assert first == cases(1, 1.0)
    assert first != cases(2, 1.0)
    assert all(case.truth <= set(get_args(CauseKind)) for case in first)
    assert all(case.culprit is None or case.culprit < case.ranks for case in first)


def test_the_training_of_a_case_is_a_recipe(unigram: None) -> None:
    """Each rank has one micro batch in each step."""
    for case in cases(1, 0.01):
        assert recipe_of(case).samples_per_step == 2 * case.ranks
