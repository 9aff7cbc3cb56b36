"""Launches that came to nothing: how often they are repeated, and when no more."""

from __future__ import annotations

import time

import pytest

from pytest_llmbench.session.schedule import MOST_IN_A_ROW, PAUSES_S, FailedLaunches


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> FailedLaunches:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    return FailedLaunches()


def fail(launches: FailedLaunches, key: str) -> None:
    """Have every launch of a run come to nothing."""
    assert [launches.add(key, "why") for _ in range(len(PAUSES_S) + 1)] == [*(False for _ in PAUSES_S), True]


def test_nothing_is_launched_in_a_pause(launches: FailedLaunches, monkeypatch: pytest.MonkeyPatch) -> None:
    paused = [launches.paused]
    launches.add("a", "why")
    paused.append(launches.paused)
    assert "why" in launches.note
    monkeypatch.setattr(time, "monotonic", lambda: 100.0 + PAUSES_S[0])
    paused.append(launches.paused)
    assert paused == [False, True, False]
    assert launches.note == ""


def test_a_run_is_given_up_after_its_last_launch(launches: FailedLaunches) -> None:
    fail(launches, "a")
    assert launches.reasons["a"] == ["why"] * (len(PAUSES_S) + 1)
    assert not launches.hopeless


def test_runs_in_a_row_end_all_launching(launches: FailedLaunches) -> None:
    for key in range(MOST_IN_A_ROW - 1):
        fail(launches, f"a{key}")
    launches.in_a_row = 0
    for key in range(MOST_IN_A_ROW):
        assert not launches.hopeless
        fail(launches, f"b{key}")
    assert launches.hopeless
