"""The cases of the campaign on causes."""

from __future__ import annotations

import importlib
import time
from typing import get_args

import pytest

from benchmarks.causes.campaign import recipe_of
from benchmarks.causes.cases import cases
from benchmarks.causes.ranks import slow_down
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


def test_a_cause_is_injected_where_the_training_passes(unigram: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its data, its work and its meeting with other ranks each take longer, and still do what they did."""
    training, slept = importlib.import_module("llmbench_unigram.training"), list[float]()
    for place, name in ((training.Zipf, "batch"), (training.Table, "loss"), (training.Meeting, "sum")):
        monkeypatch.setattr(place, name, lambda _, given: given)  # the changes below go with the test
    monkeypatch.setattr(time, "sleep", slept.append)
    slow_down(training, data_s=1.0, work=lambda: slept.append(2.0), sync_s=3.0)
    for place, name in ((training.Zipf, "batch"), (training.Table, "loss"), (training.Meeting, "sum")):
        assert getattr(place, name)(None, "given") == "given"
    assert slept == [1.0, 2.0, 3.0]
