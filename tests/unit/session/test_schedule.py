"""What becomes of launches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_llmbench.cluster.slurm.commands import NotYetError
from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.session.nodes.held import HeldNodes
from pytest_llmbench.session.schedule import PAUSES_S, Schedule


@pytest.fixture
def schedule() -> Schedule:
    """With one run, and a Slurm that has been silent for a minute."""
    nothing = cast("Any", lambda *_: None)
    slurm = SimpleNamespace(silent=True, controller=SimpleNamespace(silent_s=60.0, say_silent=nothing))
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
        assert schedule.failed_launches.paused
        assert "Slurm does not answer: connection refused" in schedule.failed_launches.note
        schedule.waiting.clear()
    assert schedule.failed_launches.reasons == {}


def test_a_refusal_of_a_controller_that_was_just_started_costs_none(schedule: Schedule) -> None:
    run = cast("Any", SimpleNamespace(key="a"))

    def refused() -> Any:
        raise NotYetError("Requested node configuration is not available")

    for _ in range(3 * len(PAUSES_S)):
        schedule._take(run, None, refused)
        assert schedule.waiting == [run]
        assert schedule.failed_launches.paused
        schedule.waiting.clear()
    assert schedule.failed_launches.reasons == {}


@pytest.mark.parametrize(
    ("error", "kind"), [(ClusterError("nvalid partition"), "allocation"), (OSError("disk full"), "launch_failed")]
)
def test_what_slurm_refuses_is_no_failed_launch(schedule: Schedule, error: Exception, kind: str) -> None:
    def refused() -> Any:
        raise error

    failed: list[Problem] = []
    schedule.fail = lambda _, problem: failed.append(problem)
    schedule._take(cast("Any", SimpleNamespace(key="a")), None, refused)
    assert [(problem.kind, problem.message) for problem in failed] == [(kind, str(error))]


def test_nodes_that_are_refused_for_now_are_asked_for_again() -> None:
    answers: list[Exception | None] = [NotYetError("not available"), NotYetError("not available"), None]

    def start() -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    said: list[str] = []
    held = HeldNodes.__new__(HeldNodes)
    held._allocation = cast("Any", SimpleNamespace(start=start))
    held.store = cast("Any", SimpleNamespace(notes=said))
    held.wait = lambda _: False
    held._start()
    assert said == ["waiting: not available"] * 2
    answers.append(NotYetError("not available"))
    held.wait = lambda _: True
    with pytest.raises(NotYetError):
        held._start()


def test_a_slurm_that_is_silent_for_hours_does(schedule: Schedule) -> None:
    schedule.slurm = cast("Any", SimpleNamespace(silent=True, controller=SimpleNamespace(silent_s=3 * 3600.0)))
    schedule.launch_again(cast("Any", SimpleNamespace(key="a")), "connection refused")
    assert schedule.failed_launches.reasons["a"] == ["connection refused"]
