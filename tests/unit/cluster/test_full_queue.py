"""Whether it is of use to hold back what Slurm refuses because of the number of jobs."""

import os
import pwd
import time
from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_llmbench.cluster.slurm.commands import QueueFullError, full_queue
from pytest_llmbench.cluster.slurm.full_queue import FullQueue, QueueLimit
from pytest_llmbench.cluster.slurm.queries import GroupLimit, SlurmQueries
from pytest_llmbench.cluster.slurm.states import is_hopeless

POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


class Squeue:
    """The jobs of this user, as squeue shows them; None where it fails."""

    def __init__(self, jobs: str | None) -> None:
        self.jobs = jobs
        self.asked = 0

    def answer(self, command: list[str], _timeout_s: float | None = None) -> tuple[str, str]:
        assert command[0] == "squeue"
        self.asked += 1
        return ("", "no answer") if self.jobs is None else (self.jobs, "")


def held(jobs: str | None, longest_min: int | None = None) -> tuple[FullQueue, Squeue, list[str]]:
    said: list[str] = []
    queries: Any = Squeue(jobs)
    return FullQueue(queries, longest_min, said.append), queries, said


@pytest.mark.parametrize(("words", "limit"), [
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
])  # fmt: skip
def test_a_job_too_many_is_told_from_one_too_large(words: str, limit: str) -> None:
    """Slurm 22.05 refuses both with the same sentence, and prints another line before it."""
    assert full_queue(words) == limit


@pytest.mark.parametrize(("reason", "hopeless"), [
    ("QOSMaxNodePerJobLimit", True), ("AssocMaxWallDurationPerJobLimit", True), ("QOSMaxGRESPerJob", True),
    ("QOSMinGRES", True), ("PartitionTimeLimit,Priority", True), ("QOSMaxJobsPerUserLimit", False),
    ("QOSMaxNodePerUserLimit", False), ("AssocGrpNodeLimit", False), ("AssociationJobLimit", False),
    ("MaxMemPerLimit", True), ("PartitionConfig", True), ("ReservationDeleted", True),
    ("job_requeued_in_held_state", True),
    ("DependencyNeverSatisfied", True), ("JobHoldMaxRequeue", True), ("Dependency", False), ("Reservation", False),
    ("Priority", False), ("", False),
])  # fmt: skip
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
    squeue.group_limits = lambda *_: [GroupLimit("QOS q", "GrpSubmitJobs", 9, 9, 0)]  # type: ignore[attr-defined]
    assert [full.note_refused("a", QueueFullError(limit), ours=0) for _ in range(5)] == [""] * 5
    assert squeue.asked == 0


def test_a_closed_account_is_not_waited_for() -> None:
    """Sites close one by a limit of 0 jobs in the queue."""
    full, squeue, _ = held("")
    squeue.group_limits = lambda *_: [GroupLimit("account a", "GrpSubmitJobs", 0, 0, 0)]  # type: ignore[attr-defined]
    assert "GrpSubmitJobs of account a is 0" in full.note_refused(
        "a", QueueFullError("AssocGrpSubmitJobsLimit"), ours=0
    )
    assert full.note_refused("b", QueueFullError("QOSGrpSubmitJobsLimit"), ours=0) == ""


JOB = "JobId=7 Account=proj QOS=gold TimeLimit=01:00:00 NumNodes=2-2 {}TRES=cpu=64,mem=2G,node=2,billing=2,gres/gpu=16"
ASSOC = "ClusterName=c Account={} UserName={} Partition= ID=1\n ParentAccount={} DefAssoc=No\n {}\n"


@pytest.mark.parametrize("required", ["", "Req"])
@pytest.mark.parametrize(("reason", "where", "limit", "why"), [
    ("AssocGrpNodeLimit", "proj", "GrpTRES=cpu=N(0),node=1(0)", "GrpTRES=node of account proj is 1, 0 in use"),
    ("AssocGrpNodeLimit", "root", "GrpTRES=node=1(1)", "GrpTRES=node of account root is 1"),
    ("AssocGrpGRES", "own", "GrpTRES=gres/gpu=8(0)", "of account proj for user"),
    ("AssocGrpMemLimit", "proj", "GrpTRES=mem=2047(0)", "is 2047, 0 in use, and this job takes 2048"),
    ("AssocGrpCPURunMinutesLimit", "proj", "GrpTRESRunMins=cpu=3839(0)", "this job takes 3840"),
    ("AssocGrpWallLimit", "proj", "GrpWall=59(0.00)", "GrpWall of account proj is 59"),
    ("AssocGrpJobsLimit", "proj", "GrpJobs=0(0) GrpJobsAccrue=N(0)", "GrpJobs of account proj is 0"),
    ("QOSGrpNodeLimit", "gold", "GrpTRES=node=1(0)", "GrpTRES=node of QOS gold is 1"),
    ("AssocGrpNodeLimit", "proj", "GrpTRES=node=4(3)", "waits"),
    ("QOSGrpNodeLimit", "proj", "GrpTRES=node=1(0)", "waits"),  # of an account, and the QOS is full
    ("AssocGrpNodeLimit", "other", "GrpTRES=node=1(0)", "waits"),
    ("AssocGrpNodeLimit", "", "", "waits"),
    ("AssocGrpSubmitJobsLimit", "proj", "GrpSubmitJobs=1(1)", "waits"),
])  # fmt: skip
def test_a_job_that_alone_exceeds_a_limit_of_its_account_never_starts(
    monkeypatch: pytest.MonkeyPatch, reason: str, where: str, limit: str, why: str, required: str
) -> None:
    """Else what it waits for is named once; where Slurm hides the limits, the wait goes on."""
    user = pwd.getpwuid(os.getuid()).pw_name
    tree = {
        "proj": [("proj", "", "root(1)"), ("proj", f"{user}(0)", ""), ("proj", "stranger(5)", "")],
        "root": [("root", "", "")],
    }
    queries, asked = SlurmQueries(deque()), []

    def answer(command: Sequence[str], _timeout_s: float | None = None) -> tuple[str, str]:
        asked.append(command[-1])
        if command[1] == "--oneliner":
            return JOB.format(required), ""
        name = command[-1].partition("=")[2]
        if command[-1].startswith("qos"):
            return f"QOS Records\n\nQOS={name}(3)\n {limit if where == name else 'GrpJobs=N(0)'}\n", ""
        at = {"own": user, "other": "stranger"}.get(where)
        rows = [
            ASSOC.format(
                account, who, above, limit if (at and who.startswith(at)) or (not who and where == account) else ""
            )
            for account, who, above in tree[name]
        ]
        return "Association Records\n\n" + "".join(rows) if where else "", ""

    monkeypatch.setattr(queries, "answer", answer)
    notes: deque[str] = deque()
    queue = QueueLimit(SimpleNamespace(queries=queries, notes=notes), None)  # type: ignore[arg-type]
    found = [queue.why_never("7", f"{reason},Priority") for _ in range(3)]
    assert len(set(found)) == 1
    assert found[0] == "" if why == "waits" else why in found[0]
    assert [f"job 7 waits for its group to use less ({reason})" in note for note in notes] == [True] * (why == "waits")
    assert asked.count("7") == 1


@pytest.mark.parametrize(("reason", "jobs", "never"), [
    ("QOSMaxNodePerUserLimit", "", True), ("AssocMaxJobsLimit", "", True), ("AssociationJobLimit", "", True),
    ("QOSMaxNodePerUserLimit", "8\n", False), ("AssocMaxJobsLimit", None, False), ("AssocGrpNodeLimit", "", False),
    ("QOSGrpJobsLimit", "", False), ("QOSMaxNodePerAccount", "", False), ("Priority", "", False),
    ("PartitionConfig", "8", True),
])  # fmt: skip
def test_a_job_that_alone_exceeds_a_limit_of_its_user_never_starts(
    monkeypatch: pytest.MonkeyPatch, reason: str, jobs: str | None, never: bool
) -> None:
    """None of the user's jobs has run for ten minutes. A limit of an account counts jobs that Slurm may hide."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    queries: Any = Squeue(jobs)
    queries.limits_of = lambda _: []
    limit = QueueLimit(SimpleNamespace(queries=queries, notes=deque()), None)  # type: ignore[arg-type]
    seen = []
    for now[0] in range(0, 640, 10):
        seen.append(bool(limit.why_never("7", reason)))
    assert (seen[-1], any(seen[:-4])) == (never, reason == "PartitionConfig")
    assert queries.asked <= 22
    now[0] = 5000.0  # it was not looked for in between
    assert bool(limit.why_never("7", reason)) is (reason == "PartitionConfig")


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
