"""Attempts at runs that a fault of the infrastructure ended: which are repeated, and how a second start is told."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from pytest_llmbench.cluster.executors import Accepted
from pytest_llmbench.cluster.jobs import SlurmJob
from pytest_llmbench.cluster.runs import Session
from pytest_llmbench.cluster.slurm.queue import Slurm
from pytest_llmbench.cluster.slurm.states import JobIdentity, JobState, JobStatus, OurJob
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.records import Problem, ProblemKind, RunRecord, write_model
from pytest_llmbench.core.record.series import RankInfo, StepSeries
from pytest_llmbench.core.wire.notes import note_second_start
from pytest_llmbench.session.ending import Outcome, cause, lost_nodes
from pytest_llmbench.session.following import Follower
from pytest_llmbench.session.journal.earlier import put_aside
from pytest_llmbench.session.schedule import RETRIED, Retries
from tests.conftest import known
from tests.unit.judging.conftest import small

RECORDED = Path(__file__).parents[2] / "data" / "session" / "20261123-113444-68012a" / "runs" / "good" / "record.json"
LOST = Problem(kind="job_lost", message="neither squeue nor sacct lists it")


def retries(folder: Path, most: int) -> Retries:
    session = Session(id="s", folder=folder)
    return Retries(most, put_aside=lambda key: put_aside(session, session.run_folder(key)), write=write_model)


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


@pytest.mark.parametrize(
    ("said", "shown", "lost"),
    [
        ("srun: error: Node failure on n2\n", (), ("n2",)), ("", ("n1",), ("n1",)),
        ("srun: error: Node failure on n9\n", ("n8",), ()), ("", (), ()),
    ],
    ids=["mended meanwhile", "shown", "of another job", "not known"],
)  # fmt: skip
def test_nodes_that_a_run_lost_are_known(
    tmp_path: Path, said: str, shown: tuple[str, ...], lost: tuple[str, ...]
) -> None:
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
