"""What becomes of launches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_llmbench.session.launches import PAUSES_S
from pytest_llmbench.session.schedule import Schedule


@pytest.fixture
def schedule() -> Schedule:
    """With one run, and a Slurm that has been silent for a minute."""
    nothing = cast("Any", lambda *_: None)
    slurm = SimpleNamespace(silent=True, silent_s=60.0, say_silent=nothing)
    return Schedule(
        settings=cast("Any", None), launcher=cast("Any", None), slurm=cast("Any", slurm), begun=nothing, fail=nothing,
        say=nothing,
    )  # fmt: skip


def test_a_silent_slurm_costs_no_run_its_launches(schedule: Schedule) -> None:
    """Nobody could launch it: it waits until Slurm answers, and then may fail as often as ever."""
    run = cast("Any", SimpleNamespace(key="a"))
    for _ in range(3 * len(PAUSES_S)):
        schedule.launch_again(run, "connection refused")
        assert schedule.waiting == [run]
        assert schedule.launches.paused
        assert "Slurm does not answer: connection refused" in schedule.launches.note
        schedule.waiting.clear()
    assert schedule.launches.reasons == {}


def test_a_slurm_that_is_silent_for_hours_does(schedule: Schedule) -> None:
    """Somebody has to look at it."""
    schedule.slurm = cast("Any", SimpleNamespace(silent=True, silent_s=3 * 3600.0))
    schedule.launch_again(cast("Any", SimpleNamespace(key="a")), "connection refused")
    assert schedule.launches.reasons["a"] == ["connection refused"]
