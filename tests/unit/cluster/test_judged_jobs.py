"""The judgement of one watched job by Slurm's answers, as pure functions of both."""

from typing import Any

import pytest

from pytest_llmbench.cluster.slurm.queries import IllNode, JobMarks
from pytest_llmbench.cluster.slurm.queue import (
    CLOSING_S,
    NEVER,
    PATIENCE_S,
    SILENCE_S,
    Facts,
    WatchedJob,
    judge_shown,
    judge_unsure,
    revived_ids,
)
from pytest_llmbench.cluster.slurm.states import JobIdentity, JobRow, JobState, JobStatus, OurJob

NOW = 1e6
IDENTITY = JobIdentity(token="llmbench:s", name="llmbench-x")
JOB = OurJob("7", IDENTITY)


def row(state: JobState, word: str = "", **changes: Any) -> JobRow:
    status = JobStatus(state=state, word=word or str(state), nodelist=changes.pop("nodelist", ""))
    facts = {"job_id": "7", "submitted": "at", "uid": "0", "name": "llmbench-x", "script": "", "comment": "llmbench:s"}
    return JobRow(status=status, **{**facts, **changes})


def watched(state: JobState = JobState.RUNNING, **changes: Any) -> WatchedJob:
    known = {"submitted": "at", "seen": NOW - 1, "answered": NOW - 1}
    return WatchedJob(identity=IDENTITY, status=JobStatus(state=state), **{**known, **changes})


def facts(*rows: JobRow, **changes: Any) -> Facts:
    return Facts(**{"began": NOW, "took_s": 0.1, "silent": False, "rows": rows, "error": "", **changes})


def test_a_shown_job_has_its_row() -> None:
    marks = JobMarks(preempted="then")
    changes = judge_shown(watched(), row(JobState.COMPLETED), facts(marks={"7": marks}), NOW)
    assert (next(iter(changes)), next(reversed(changes))) == ("marks", "status")
    assert changes["status"].state is JobState.COMPLETED
    assert (changes["seen"], changes["answered"], changes["missing"], changes["closing"]) == (NOW, NOW, False, None)


def test_closing_begins_once() -> None:
    """A job that Slurm closes keeps the time at which that was first seen."""
    closing = row(JobState.RUNNING, "COMPLETING")
    assert judge_shown(watched(), closing, facts(), NOW)["closing"] == NOW
    assert judge_shown(watched(closing=NOW - 9), closing, facts(), NOW)["closing"] == NOW - 9


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.PENDING])
@pytest.mark.parametrize(("silent", "limit"), [(False, PATIENCE_S), (True, SILENCE_S)])
def test_a_job_that_slurm_does_not_know_is_lost_after_its_limit(state: JobState, *, silent: bool, limit: float) -> None:
    for silence, lost in ((limit - 1, False), (limit + 1, not silent or state is JobState.PENDING)):
        changes = judge_unsure(JOB, watched(state, answered=NOW - silence), facts(silent=silent), NOW)
        assert ("status" in changes) == lost
        assert changes["missing"] is not silent
        if lost:
            assert changes["status"].state is JobState.LOST
            assert "neither squeue nor sacct" in changes["status"].reason


def test_sacct_is_believed_about_an_end_alone() -> None:
    long_ago = watched(answered=NOW - 2 * PATIENCE_S)
    alive = judge_unsure(JOB, long_ago, facts(ends=(row(JobState.RUNNING),)), NOW)
    assert (alive["answered"], alive["missing"], "status" in alive) == (NOW, True, False)
    ended = judge_unsure(JOB, long_ago, facts(ends=(row(JobState.RUNNING), row(JobState.TIMEOUT))), NOW)
    assert (ended["status"].state, ended["missing"]) == (JobState.TIMEOUT, False)
    other = judge_unsure(JOB, long_ago, facts(ends=(row(JobState.FAILED, submitted="later"),)), NOW)
    assert other["status"].state is JobState.LOST


@pytest.mark.parametrize("seen", [NEVER, NOW - 1])
def test_an_id_of_another_job_is_a_lost_job(seen: float) -> None:
    """A job that was never seen may be in the queue under another id."""
    stranger = row(JobState.RUNNING, comment="theirs", name="other")
    changes = judge_unsure(JOB, watched(seen=seen), facts(stranger), NOW)
    assert changes["status"].state is JobState.LOST
    assert "its id belongs to another job now ('other'" in changes["status"].reason
    assert changes["stray"] is (seen == NEVER)


def test_a_job_that_is_closed_for_too_long_has_failed() -> None:
    shown, stuck = row(JobState.RUNNING, "COMPLETING"), watched(closing=NOW - CLOSING_S - 1)
    changes = judge_unsure(JOB, stuck, facts(shown), NOW)
    assert changes["status"].state is JobState.FAILED
    assert (changes["missing"], "closing it for 300 s" in changes["status"].reason) == (False, True)
    assert judge_unsure(JOB, stuck, facts(shown, ends=(row(JobState.COMPLETED),)), NOW)["status"].state == "COMPLETED"


@pytest.mark.parametrize(("state", "over", "node", "becomes", "failed"), [
    (JobState.NODE_FAIL, None, IllNode("n1", "down*", "died"), JobState.NODE_FAIL, ("n1",)),
    (JobState.CANCELLED, None, IllNode("n1", "drained", "Duplicate jobid"), JobState.LOST, ()),
    (JobState.CANCELLED, None, IllNode("n1", "drained", "repair"), JobState.CANCELLED, ()),
    (JobState.CANCELLED, NOW, IllNode("n1", "drained", "Duplicate jobid"), JobState.CANCELLED, ()),
])  # fmt: skip
def test_an_end_has_the_node_that_caused_it(
    state: JobState, over: float | None, node: IllNode, becomes: JobState, failed: tuple[str, ...]
) -> None:
    """A node that refused the job's id lost it; a cancellation that we asked for stays one."""
    status = judge_shown(watched(over=over), row(state, nodelist="n1"), facts(ill={"n1": [node]}), NOW)["status"]
    assert (status.state, status.failed) == (becomes, failed)


def test_only_our_own_revived_jobs_are_cancelled() -> None:
    """A job whose run is over for long, that Slurm shows alive and does not close, and that is ours."""
    over = {JOB: watched(over=NOW - 60)}
    assert revived_ids(over, [row(JobState.RUNNING)], NOW) == ["7"]
    assert revived_ids(over, [row(JobState.RUNNING, "COMPLETING")], NOW) == []
    assert revived_ids(over, [row(JobState.RUNNING, comment="theirs")], NOW) == []
    assert revived_ids({JOB: watched(over=NOW - 1)}, [row(JobState.RUNNING)], NOW) == []
    assert revived_ids({JOB: watched()}, [row(JobState.RUNNING)], NOW) == []
