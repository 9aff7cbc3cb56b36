"""Whether it is of use to hold back what Slurm refuses because of the number of jobs."""

import time
from typing import Any

import pytest

from pytest_llmbench.cluster.slurm.commands import QueueFullError, full_queue
from pytest_llmbench.cluster.slurm.full_queue import FullQueue
from pytest_llmbench.cluster.slurm.states import is_hopeless

POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


class Squeue:
    """The jobs of this user, as squeue shows them; None where it fails."""

    def __init__(self, jobs: str | None) -> None:
        self.jobs = jobs
        self.asked = 0

    def answer(self, command: list[str]) -> tuple[str, str]:
        """One query."""
        assert command[0] == "squeue"
        self.asked += 1
        return ("", "no answer") if self.jobs is None else (self.jobs, "")


def held(jobs: str | None, longest_min: int | None = None) -> tuple[FullQueue, Squeue, list[str]]:
    said: list[str] = []
    queries: Any = Squeue(jobs)
    return FullQueue(queries, longest_min, said.append), queries, said


@pytest.mark.parametrize(
    ("words", "limit"),
    [
        (f"AssocMaxSubmitJobLimit; Batch job submission failed: {POLICY}", "AssocMaxSubmitJobLimit"),
        (f"AssocMaxSubmitJobLimit; allocation failure: {POLICY}", "AssocMaxSubmitJobLimit"),
        (f"QOSMaxSubmitJobPerUserLimit; {POLICY}", "QOSMaxSubmitJobPerUserLimit"),
        (f"QOSMaxSubmitJobPerAccountLimit; {POLICY}", "QOSMaxSubmitJobPerAccountLimit"),
        (f"QOSGrpSubmitJobsLimit; {POLICY}", "QOSGrpSubmitJobsLimit"),
        (f"AssocGrpSubmitJobsLimit; {POLICY}", "AssocGrpSubmitJobsLimit"),
        ("Slurm temporarily unable to accept job, sleeping and retrying", "MaxJobCount"),
        (POLICY, ""),
        (f"QOSMaxWallDurationPerJobLimit; {POLICY}", ""),
        ("Invalid qos specification", ""),
    ],
)
def test_a_job_too_many_is_told_from_one_too_large(words: str, limit: str) -> None:
    """Slurm 22.05 refuses both with the same sentence, and prints another line before it."""
    assert full_queue(words) == limit


@pytest.mark.parametrize(
    ("reason", "hopeless"),
    [
        ("QOSMaxNodePerJobLimit", True), ("AssocMaxWallDurationPerJobLimit", True), ("QOSMaxGRESPerJob", True),
        ("QOSMinGRES", True), ("PartitionTimeLimit,Priority", True), ("QOSMaxJobsPerUserLimit", False),
        ("QOSMaxNodePerUserLimit", False), ("AssocGrpNodeLimit", False), ("AssociationJobLimit", False),
        ("MaxMemPerLimit", True), ("PartitionConfig", True), ("ReservationDeleted", True),
        ("DependencyNeverSatisfied", True), ("JobHoldMaxRequeue", True), ("Dependency", False), ("Reservation", False),
        ("Priority", False), ("", False),
    ],
)  # fmt: skip
def test_a_job_that_can_never_start_is_told_from_one_that_waits(reason: str, hopeless: bool) -> None:
    """Limits on one job never change; those on several do when other jobs end."""
    assert is_hopeless(reason) is hopeless


def test_a_limit_is_named_once_and_waited_for_while_jobs_are_there() -> None:
    full, squeue, said = held("7\n")
    error = QueueFullError("QOSMaxSubmitJobPerUserLimit")
    assert [full.note_refused("a", error, ours=2) for _ in range(5)] == [""] * 5
    assert squeue.asked == 0
    assert [full.note_refused("a", error, ours=0) for _ in range(5)] == [""] * 5
    assert len(said) == 1


def test_a_limit_that_lets_no_job_in_is_not_waited_for() -> None:
    """A job may have ended just now, so there are three looks. A failing squeue proves nothing."""
    error = QueueFullError("AssocMaxSubmitJobLimit")
    full, _, _ = held("")
    told = [full.note_refused("a", error, ours=0) for _ in range(3)]
    assert told[:2] == ["", ""]
    assert "the limit lets none in" in told[2]
    full, squeue, _ = held(None)
    assert [full.note_refused("a", error, ours=0) for _ in range(5)] == [""] * 5
    assert squeue.asked == 5


@pytest.mark.parametrize("limit", ["QOSGrpSubmitJobsLimit", "QOSMaxSubmitJobPerAccountLimit", "MaxJobCount"])
def test_jobs_of_others_may_be_hidden(limit: str) -> None:
    """The wait for them goes on, as Slurm may show only the user's own."""
    full, squeue, _ = held("")
    assert [full.note_refused("a", QueueFullError(limit), ours=0) for _ in range(5)] == [""] * 5
    assert squeue.asked == 0


def test_the_longest_wait_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted from the first refusal, anew after Slurm has taken the job."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    full, _, _ = held("7", 1)
    error = QueueFullError("AssocMaxSubmitJobLimit")
    assert full.note_refused("a", error, ours=1) == ""
    now[0] = 61.0
    assert "--llmbench-max-wait 00:01:00" in full.note_refused("a", error, ours=1)
    full.note_accepted("a")
    assert full.note_refused("a", error, ours=1) == ""
