"""What becomes of launches: how often they are repeated, and when no more; and one look of the runner."""

import time
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_llmbench.cluster.jobs import SlurmJob
from pytest_llmbench.cluster.slurm.commands import NotYetError
from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.session.nodes.held import HeldNodes
from pytest_llmbench.session.runner import Runner
from pytest_llmbench.session.schedule import MOST_IN_A_ROW, PAUSES_S, FailedLaunches, Schedule


@pytest.fixture
def schedule() -> Schedule:
    """With one run, and a Slurm that has been silent for a minute."""
    nothing = cast("Any", lambda *_: None)
    slurm = SimpleNamespace(silent=True, controller=SimpleNamespace(silent_s=60.0, say_silent=nothing))
    return Schedule(
        settings=cast("Any", None), launcher=cast("Any", None), slurm=cast("Any", slurm), begun=nothing, fail=nothing,
        say=nothing,
    )  # fmt: skip


def test_a_slurm_that_is_silent_or_just_started_costs_no_run_its_launches_but_after_hours(
    schedule: Schedule,
) -> None:
    """Nobody could launch it: it waits until Slurm answers, and then may fail as often as ever."""
    run = cast("Any", SimpleNamespace(key="a"))
    for _ in range(3 * len(PAUSES_S)):
        schedule.launch_again(run, "connection refused")
        assert schedule.waiting == [run]
        assert schedule.failed_launches.paused
        assert "Slurm does not answer: connection refused" in schedule.failed_launches.note
        schedule.waiting.clear()
    assert schedule.failed_launches.reasons == {}
    run = cast("Any", SimpleNamespace(key="a"))

    def refused() -> Any:
        raise NotYetError("Requested node configuration is not available")

    for _ in range(3 * len(PAUSES_S)):
        schedule._take(run, None, refused)
        assert schedule.waiting == [run]
        assert schedule.failed_launches.paused
        schedule.waiting.clear()
    assert schedule.failed_launches.reasons == {}
    schedule.slurm = cast("Any", SimpleNamespace(silent=True, controller=SimpleNamespace(silent_s=3 * 3600.0)))
    schedule.launch_again(cast("Any", SimpleNamespace(key="a")), "connection refused")
    assert schedule.failed_launches.reasons["a"] == ["connection refused"]


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
    held.stopping = cast("Any", SimpleNamespace(wait=lambda _: False))
    held._start()
    assert said == ["waiting: not available"] * 2
    answers.append(NotYetError("not available"))
    held.stopping = cast("Any", SimpleNamespace(wait=lambda _: True))
    with pytest.raises(NotYetError):
        held._start()


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> FailedLaunches:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    return FailedLaunches()


def fail(launches: FailedLaunches, key: str) -> None:
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
    assert launches.in_a_row < MOST_IN_A_ROW


def test_runs_in_a_row_end_all_launching(launches: FailedLaunches) -> None:
    for key in range(MOST_IN_A_ROW - 1):
        fail(launches, f"a{key}")
    launches.in_a_row = 0
    for key in range(MOST_IN_A_ROW):
        assert launches.in_a_row < MOST_IN_A_ROW
        fail(launches, f"b{key}")
    assert launches.in_a_row == MOST_IN_A_ROW


def test_nodes_of_a_run_that_ended_are_used_at_once() -> None:
    """A look that finds the end of a run launches the next one: the node would stand idle until the next look."""
    waiting, under_way, launched = deque("bc"), ["a"], []

    def launch_what_fits() -> None:
        if waiting and not under_way:
            under_way.append(waiting.popleft())
            launched.append(under_way[0])

    runner = cast("Any", Runner.__new__(Runner))
    runner._take_on_repeats = runner._show = lambda: None
    runner._to_look_at = list
    runner._nodes = SimpleNamespace(ready=lambda: True)
    runner._follower = SimpleNamespace(look_after=lambda _: "it ended")
    runner._take_end = lambda active, _: under_way.remove(active)
    runner._schedule = SimpleNamespace(
        take_launched=lambda _: None, active=under_way, launch_what_fits=launch_what_fits
    )
    runner._tick()
    assert launched == ["b"]
    runner._tick()
    assert launched == ["b", "c"]


def test_every_run_that_waits_for_slurm_is_looked_at() -> None:
    runner = cast("Any", Runner.__new__(Runner))
    runs = [
        SimpleNamespace(
            run=SimpleNamespace(key=f"run{number}"),
            job=SlurmJob.__new__(SlurmJob),
            watch="begun" if number > 990 else None,
        )
        for number in range(1000)
    ]
    looks = [{active.run.key for active in runner._to_look_at(runs)} for _ in range(10)]
    assert set.union(*looks) == {active.run.key for active in runs}
    assert set.intersection(*looks) == {active.run.key for active in (*runs[:64], *runs[991:])}
    assert max(map(len, looks)) < 300
