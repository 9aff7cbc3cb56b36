"""What becomes of launches and of attempts that a fault of the infrastructure ended: which are repeated, and how."""

import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest

from pytest_llmbench.cluster.executors import Accepted
from pytest_llmbench.cluster.jobs import SlurmJob
from pytest_llmbench.cluster.runs import Session
from pytest_llmbench.cluster.slurm.commands import NotYetError
from pytest_llmbench.cluster.slurm.queue import Slurm
from pytest_llmbench.cluster.slurm.states import JobIdentity, JobState, JobStatus, OurJob
from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.records import Problem, ProblemKind, RunRecord, write_model
from pytest_llmbench.core.record.series import RankInfo, StepSeries
from pytest_llmbench.core.wire.notes import note_second_start
from pytest_llmbench.session.ending import Outcome, cause, lost_nodes
from pytest_llmbench.session.following import Follower
from pytest_llmbench.session.nodes.held import HeldNodes
from pytest_llmbench.session.runner import Runner
from pytest_llmbench.session.schedule import MOST_IN_A_ROW, PAUSES_S, RETRIED, FailedLaunches, Retries, Schedule
from tests.conftest import known
from tests.unit.judging.conftest import small

RECORDED = Path(__file__).parents[2] / "data" / "session" / "20261123-113444-68012a" / "runs" / "good" / "record.json"
LOST = Problem(kind="job_lost", message="neither squeue nor sacct lists it")


def retries(folder: Path, most: int) -> Retries:
    session = Session(id="s", folder=folder)
    return Retries(most, session=session, write=write_model)


@pytest.mark.parametrize("kind", get_args(ProblemKind))
def test_only_faults_of_the_infrastructure_are_repeated(tmp_path: Path, kind: ProblemKind) -> None:
    """A run that died, hung, ran out of memory or was cancelled would do so again, or somebody meant it."""
    wanted = kind in {"job_lost", "job_node_fail", "job_preempted", "started_again"}
    assert retries(tmp_path, 1).wants("good", Problem(kind=kind, message="-")) == wanted == (kind in RETRIED)


def test_each_attempt_is_kept_and_counted(tmp_path: Path) -> None:
    assert not retries(tmp_path, 0).wants("good", LOST)
    assert not retries(tmp_path, 1).wants("good", None)
    made, record = retries(tmp_path, 2), RunRecord.read(RECORDED)
    for number in (1, 2):
        assert made.wants("good", LOST)
        (tmp_path / "runs" / "good" / "steps").mkdir(parents=True)
        told = made.supersede(record, LOST)
        assert told.startswith(f"run good is made again, retry {number} of 2: job_lost: neither squeue")
        attempt = tmp_path / "superseded" / f"good.{number}"
        assert RunRecord.read(attempt / "record.json").key == "good"
        assert (attempt / "steps").is_dir()
        assert not (tmp_path / "runs" / "good").exists()
    assert not made.wants("good", LOST)
    assert made.wants("other", LOST)
    assert made.superseded["good"] == ("job_lost: neither squeue nor sacct lists it",) * 2


def outcome(folder: Path, *, node: str, hosts: tuple[str, ...], ended: bool) -> Outcome:
    """A rank of a Slurm job of its own ran on a node, and Slurm says that the job has these nodes."""
    accepted = Accepted(job=OurJob("7", JobIdentity()), script=folder / "x.sh", stderr=folder / "x.err")
    job = SlurmJob(accepted, Slurm())
    job.hosts = hosts
    rank = RankInfo(rank=0, host=node, node=node, pid=1, local_rank=0, device="cpu", versions={}, ended=ended)
    return Outcome(
        recipe=small(), topology=Topology(nodes=1, gpus_per_node=0), series=StepSeries(ranks=(rank,), steps=()),
        hosts=hosts, wall_s=1.0, gpu=None, kind="ranks", folder=folder, job=job, driver=None, ended_by_us=None,
        status=JobStatus(state=JobState.FAILED),
    )  # fmt: skip


def test_a_second_start_is_told_as_such(tmp_path: Path) -> None:
    assert cause(outcome(tmp_path, node="n1", hosts=("n1",), ended=True)) is None
    for ended in (True, False):
        moved = known(cause(outcome(tmp_path, node="n4", hosts=("n1",), ended=ended)))
        assert moved.kind == "started_again"
        assert "it has n1 now, and the first start was on n4" in moved.message
    note_second_start(tmp_path, "rank-00000")
    assert cause(outcome(tmp_path, node="n1", hosts=("n1",), ended=True)) is None
    refused = known(cause(outcome(tmp_path, node="n1", hosts=("n1",), ended=False)))
    assert refused.kind == "started_again"
    assert "rank-00000 on " in refused.message


@pytest.mark.parametrize("watched", ["hang", "time_limit", None])
def test_a_node_that_was_started_anew_has_failed(tmp_path: Path, watched: Any) -> None:
    """It lost its power under the run, whose ranks are silent, or stand still: another one may do better."""
    ended = outcome(tmp_path, node="n1", hosts=("n1", "n2"), ended=False)
    ended = replace(ended, ended_by_us=watched and Problem(kind=watched, message="-"), restarted=("n2",))
    problem = known(cause(ended))
    if watched == "time_limit":
        assert problem.kind == "time_limit"
        return
    assert problem.kind == "job_node_fail"
    assert "slurmd of n2 was started while the run went on, as after a loss of power" in problem.message
    assert lost_nodes(ended, problem) == ("n2",)
    unharmed = known(cause(replace(ended, restarted=())))
    assert unharmed.kind == (watched or "rank_died")


@pytest.mark.parametrize(("said", "shown", "lost"), [
    ("srun: error: Node failure on n2\n", (), ("n2",)), ("", ("n1",), ("n1",)),
    ("srun: error: Node failure on n9\n", ("n8",), ()), ("", (), ()),
], ids=["mended meanwhile", "shown", "of another job", "not known"])  # fmt: skip
def test_nodes_that_a_run_lost(tmp_path: Path, said: str, shown: tuple[str, ...], lost: tuple[str, ...]) -> None:
    (tmp_path / "x.err").write_text(said)
    ended = outcome(tmp_path, node="n1", hosts=("n1", "n2"), ended=False)
    ended = replace(ended, status=JobStatus(state=JobState.NODE_FAIL, failed=shown))
    assert lost_nodes(ended, Problem(kind="job_node_fail", message="-")) == lost
    assert lost_nodes(ended, Problem(kind="job_preempted", message="-")) == ()
    assert lost_nodes(ended, None) == ()


def follow(folder: Path, slurm: Any, problem: Problem | None) -> list[Problem]:
    """What a run is cancelled for, of which its watch reports a problem, and that Slurm takes for running."""
    job = outcome(folder, node="n1", hosts=("n1",), ended=False).job
    cancelled: list[Problem] = []
    follower: Any = Follower.__new__(Follower)
    follower.slurm, follower._cancel = slurm, lambda _active, why: cancelled.append(why)
    follower.is_done = lambda _: False
    watch: Any = SimpleNamespace(work_is_done=lambda _: False, look=lambda: problem, progress=None)
    active: Any = SimpleNamespace(
        job=job, suspended=False, looking=None, started=0.0, clock=SimpleNamespace(now=lambda: 100.0),
        run=SimpleNamespace(place=SimpleNamespace(folder=folder)),
    )  # fmt: skip
    assert follower._follow(active, watch) is None
    return cancelled


def test_a_job_that_its_node_refused_or_slurm_does_not_know_is_lost_and_does_not_hang(tmp_path: Path) -> None:
    """Its ranks were ended by Slurm, or never started: their silence is no fault of the run, as a `hang` would be."""
    hang = Problem(kind="hang", message="no step for 60 s")
    assert follow(tmp_path, SimpleNamespace(misses=lambda _: True), hang) == []
    assert follow(tmp_path, SimpleNamespace(misses=lambda _: False), hang) == [hang]
    refusing = SimpleNamespace(refusing=lambda _: "n2", misses=lambda _: False)
    (why,) = follow(tmp_path, refusing, None)
    assert why.kind == "job_lost"
    assert why.message.startswith("n2 refused to start Slurm job 7: it remembers another job of this id")
    assert follow(tmp_path, SimpleNamespace(refusing=lambda _: ""), None) == []
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "rank-00000.jsonl").write_text("x")
    assert follow(tmp_path, refusing, None) == []


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
