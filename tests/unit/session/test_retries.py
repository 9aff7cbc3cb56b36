"""Attempts at runs that a fault of the infrastructure ended: which are repeated, and how a second start is told."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from pytest_llmbench.cluster.executors import Accepted
from pytest_llmbench.cluster.jobs import SlurmJob
from pytest_llmbench.cluster.runs import Session
from pytest_llmbench.cluster.slurm.queue import Slurm
from pytest_llmbench.cluster.slurm.states import Identity, JobState, JobStatus, OurJob
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.records import Problem, ProblemKind, RunRecord, write_model
from pytest_llmbench.core.record.series import RankInfo, StepSeries
from pytest_llmbench.core.wire import again
from pytest_llmbench.session.ending.causes import Outcome, cause
from pytest_llmbench.session.journal.earlier import put_aside
from pytest_llmbench.session.retries import RETRIED, Retries
from tests.unit.judging.conftest import small

RECORDED = Path(__file__).parents[2] / "data" / "session" / "20261123-113444-68012a" / "runs" / "good" / "record.json"
LOST = Problem(kind="job_lost", message="neither squeue nor sacct lists it")


def retries(folder: Path, most: int) -> Retries:
    """Those of a session in a folder."""
    session = Session(id="s", folder=folder)
    return Retries(most, put_aside=lambda key: put_aside(session, session.run_folder(key)), write=write_model)


@pytest.mark.parametrize("kind", get_args(ProblemKind))
def test_only_faults_of_the_infrastructure_are_repeated(tmp_path: Path, kind: ProblemKind) -> None:
    """A run that died, hung, ran out of memory or was cancelled would do so again, or somebody meant it."""
    wanted = kind in {"job_lost", "job_node_fail", "job_preempted", "started_again"}
    assert retries(tmp_path, 1).wants("good", Problem(kind=kind, message="-")) == wanted == (kind in RETRIED)


def test_each_attempt_is_kept_and_counted(tmp_path: Path) -> None:
    """With its record, in a folder where no test looks for it; as many as were allowed, by default none."""
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
    accepted = Accepted(job=OurJob("7", Identity()), script=folder / "x.sh", stderr=folder / "x.err")
    job = SlurmJob(accepted, Slurm())
    job.hosts = hosts
    rank = RankInfo(rank=0, host=node, node=node, pid=1, local_rank=0, device="cpu", versions={}, ended=ended)
    return Outcome(
        recipe=small(), topology=Topology(nodes=1, gpus_per_node=0), series=StepSeries(ranks=(rank,), steps=()),
        hosts=hosts, wall_s=1.0, gpu=None, kind="ranks", folder=folder, job=job, driver=None, ended_by_us=None,
        status=JobStatus(state=JobState.FAILED),
    )  # fmt: skip


def test_a_second_start_is_told_as_such(tmp_path: Path) -> None:
    """By the rank that refused, or by the node of the ranks; not if the first start had done all its work there."""
    assert cause(outcome(tmp_path, node="n1", hosts=("n1",), ended=True)) is None
    for ended in (True, False):
        moved = cause(outcome(tmp_path, node="n4", hosts=("n1",), ended=ended))
        assert moved is not None
        assert moved.kind == "started_again"
        assert "it has n1 now, and the first start was on n4" in moved.message
    again.refuse(tmp_path, "rank-00000")
    assert cause(outcome(tmp_path, node="n1", hosts=("n1",), ended=True)) is None
    refused = cause(outcome(tmp_path, node="n1", hosts=("n1",), ended=False))
    assert refused is not None
    assert refused.kind == "started_again"
    assert "rank-00000 on " in refused.message
