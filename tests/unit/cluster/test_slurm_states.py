"""What Slurm says, whose job it says it of, and what is made of its silence."""

import contextlib
import os
import shutil
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.cluster import jobs
from pytest_llmbench.cluster.allocation import ExistingJob, HeldJob, JobEndedError, Waiting
from pytest_llmbench.cluster.executors import JobRequest
from pytest_llmbench.cluster.heartbeat import Heartbeat, write_stop
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.slurm import controller, full_queue, watchman
from pytest_llmbench.cluster.slurm import queue as module
from pytest_llmbench.cluster.slurm.commands import NoAnswerError, NotYetError
from pytest_llmbench.cluster.slurm.controller import Rhythm
from pytest_llmbench.cluster.slurm.queries import JobMarks
from pytest_llmbench.cluster.slurm.queue import Slurm
from pytest_llmbench.cluster.slurm.states import JobIdentity, JobState, OurJob, job_rows, parse_state
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.core.wire import layout
from tests.support.waiting import wait_until

TOKEN = "llmbench:s"
SCRIPT = "/shared/reports/s/runs/tiny/logs/submission.sh"
OURS = JobIdentity(token=TOKEN, name="llmbench-tiny", script=SCRIPT)
SEVEN = OurJob("7", OURS)
FIRST, LATER = "2026-11-23T02:00:00", "2026-11-23T03:00:00"
# The end of squeue where it knows no such job, and where the controller does not answer.
FORGOTTEN: dict[str, Any] = {"code": 1, "stderr": "slurm_load_jobs error: Invalid job id specified"}
SILENT: dict[str, Any] = {"code": 1, "stderr": "squeue: error: Unable to contact slurm controller"}
NODES_STARTED = (("n1", FIRST), ("n2", LATER), ("n3", "None"))


@pytest.mark.parametrize(("word", "state"), [
    ("RUNNING", JobState.RUNNING), ("COMPLETING", JobState.RUNNING), ("CANCELLED by 1000", JobState.CANCELLED),
    ("CANCELLED+", JobState.CANCELLED), ("BOOT_FAIL", JobState.NODE_FAIL), ("POWER_UP_NODE", JobState.PENDING),
    ("EXPEDITING", JobState.PENDING), ("LAUNCH_FAILED", JobState.PENDING), ("RECONFIG_FAIL", JobState.NODE_FAIL),
    ("UPDATE_DB", JobState.RUNNING), ("DEADLINE", JobState.TIMEOUT),
    ("REQUEUED", JobState.PENDING), ("SUSPENDED", JobState.SUSPENDED), ("STOPPED", JobState.SUSPENDED),
    ("OUT_OF_MEMORY", JobState.OUT_OF_MEMORY), ("", JobState.LOST), ("NONSENSE", JobState.LOST),
])  # fmt: skip
def test_every_word_of_slurm_has_a_meaning(word: str, state: JobState) -> None:
    """States of squeue and sacct, with their decorations; an unknown one is never taken for success."""
    assert parse_state(word) is state


@given(st.text())
def test_no_state_is_read_as_success_by_chance(word: str) -> None:
    if parse_state(word) is JobState.COMPLETED:
        assert word.split(maxsplit=1)[0].rstrip("+") == "COMPLETED"


def row(
    job_id: str = "7", state: str = "RUNNING", reason: str = "None", nodes: str = "n1", *, submitted: str = FIRST,
    uid: str = "1000", name: str = OURS.name, script: str = "(null)", starts: str = "N/A", comment: str = TOKEN,
) -> str:  # fmt: skip
    fields = (job_id, state, reason, nodes, submitted, uid, name, script, starts, comment)
    return "\x1e" + "\x1f".join(fields) + "\n"


def record(state: str, *, submitted: str = FIRST, comment: str = TOKEN) -> str:
    fields = ("7", state, "None", "n1", submitted, "1000", OURS.name, comment)
    return "\x1f".join(fields) + "\n"


class Commands:
    """Slurm's commands as shell scripts: what they print, how they exit, and what they were asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def answer(self, name: str, stdout: str | bytes = "", code: int = 0, stderr: str = "") -> None:
        out, err = self._folder / f"{name}.stdout", self._folder / f"{name}.stderr"
        out.write_bytes(stdout if isinstance(stdout, bytes) else stdout.encode())
        err.write_text(stderr)
        script = self._folder / name
        asked = self._folder / f"{name}.asked"
        script.write_text(f'#!/bin/sh\necho "$@" >> {asked}\ncat {out}\ncat {err} >&2\nexit {code}\n')
        script.chmod(0o755)

    def look(self, slurm: Slurm, stdout: str = "", code: int = 0, stderr: str = "") -> None:
        """Have squeue answer like this, and Slurm be asked."""
        self.answer("squeue", stdout, code, stderr)
        slurm.refresh()

    def asked(self, name: str) -> list[str]:
        asked = self._folder / f"{name}.asked"
        return asked.read_text(errors="replace").split("\n")[:-1] if asked.exists() else []


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Commands in front of the real ones, if there are any."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(Rhythm, "due", lambda _, *, last: True)  # noqa: ARG005 - by its name
    commands = Commands(folder)
    for name in ("squeue", "sacct", "sinfo", "scontrol", "scancel"):
        commands.answer(name, code=1, stderr=f"{name}: error: Unable to contact slurm controller")
    return commands


@pytest.fixture
def slurm(commands: Commands) -> Slurm:
    slurm = Slurm()
    slurm.watch("7", OURS)
    return slurm


def held_job(slurm: Slurm, folder: Path, max_wait_min: int | None = None) -> HeldJob:
    request = JobRequest(
        name="hold", folder=folder, nodes=2, tasks_per_node=1, gpus_per_node=0, time_min=5, comment="", use_srun=False
    )
    held = HeldJob(request, Heartbeat(folder), slurm, max_wait_min)
    held.job = SEVEN
    return held


def test_sacct_may_keep_no_comments(commands: Commands, slurm: Slurm) -> None:
    """Name and submit time are enough then; with another comment or another time, it is another job."""
    commands.answer("squeue", row())
    assert slurm.status(SEVEN).state is JobState.RUNNING
    commands.answer("squeue", **FORGOTTEN)
    for other in (record("COMPLETED", comment="", submitted=LATER), record("COMPLETED", comment="llmbench:t")):
        commands.answer("sacct", other)
        assert slurm.status(SEVEN).state is JobState.RUNNING
    commands.answer("sacct", record("FAILED", comment=""))
    assert slurm.status(SEVEN).state is JobState.FAILED


STRANGERS = {
    "another comment": row(comment="somebody's own"), "no comment": row(comment="(null)"),
    "another session of ours": row(comment="llmbench:t"), "a longer token": row(comment=f"{TOKEN}1"),
    "our token further on": row(comment=f"not {TOKEN}"), "another run of the session": row(name="llmbench-small"),
    "a name with separators": row(name=f"a\x1f{OURS.name}\x1f{TOKEN}"),
    "a script of another session": row(script=SCRIPT.replace("/s/", "/t/"), comment="(null)"),
    "our script under another name": row(script=SCRIPT, name="llmbench-small", comment="(null)"),
}  # fmt: skip


@pytest.mark.parametrize("stranger", STRANGERS.values(), ids=STRANGERS)
@pytest.mark.parametrize("seen", [False, True], ids=["never seen", "seen before"])
def test_a_job_without_our_token_is_not_ours(commands: Commands, slurm: Slurm, stranger: str, seen: bool) -> None:
    """Slurm gave the id out again: our job is lost, and the other one is neither used nor cancelled."""
    commands.answer("scancel")
    if seen:
        commands.answer("squeue", row())
        slurm.confirm(SEVEN)
    commands.answer("squeue", stranger)
    slurm.cancel(SEVEN)
    slurm.refresh()
    with pytest.raises(ClusterError, match="LOST"):
        slurm.confirm(SEVEN)
    assert slurm.status(SEVEN).state is JobState.LOST
    assert "its id belongs to another job now" in slurm.status(SEVEN).reason
    slurm.cancel(SEVEN)
    assert commands.asked("scancel") == []


@pytest.mark.parametrize("comment", ["(null)", "project=physics", "project=physics llmbench:s"])
def test_a_comment_that_the_site_rewrites_costs_no_job(commands: Commands, slurm: Slurm, comment: str) -> None:
    """The job is known by its script, which is noted once; at its end too, where sacct has the comment."""
    commands.answer("squeue", row(script=SCRIPT, comment=comment))
    assert slurm.find(OURS) is None  # it is watched already
    slurm.confirm(SEVEN)
    slurm.refresh()
    (note,) = slurm.notes
    assert "known by its script" in note
    commands.answer("scancel")
    slurm.cancel(SEVEN)
    assert commands.asked("scancel") == ["7"]
    commands.answer("squeue", **FORGOTTEN)
    commands.answer("sacct", record("COMPLETED", comment=comment.removesuffix("(null)")))
    slurm.refresh()
    assert slurm.status(SEVEN).state is JobState.COMPLETED


def test_a_job_of_another_name_is_ours(commands: Commands, slurm: Slurm) -> None:
    """A site or `scontrol update` renamed it: it has our token and our script, and its end is believed as well."""
    commands.answer("squeue", row())
    slurm.confirm(SEVEN)
    commands.look(slurm, row(name="physics", script=SCRIPT))
    slurm.confirm(SEVEN)
    commands.answer("squeue", **FORGOTTEN)
    commands.answer("sacct", record("TIMEOUT").replace(OURS.name, "physics"))
    slurm.refresh()
    assert slurm.status(SEVEN).state is JobState.TIMEOUT


def test_a_name_and_a_comment_that_the_site_rewrites_are_told(commands: Commands, slurm: Slurm) -> None:
    """Such a job is not used, and the message says what the site has to change."""
    commands.look(slurm, row(name="physics", comment="(null)", script=SCRIPT, uid=str(os.getuid())))
    assert slurm.status(SEVEN).state is JobState.LOST
    assert "leave names that begin with llmbench-" in slurm.status(SEVEN).reason


@pytest.mark.parametrize("ended", ["REQUEUED", "NODE_FAIL", ""])
@pytest.mark.parametrize("changed", [{}, {"name": "physics", "script": SCRIPT}], ids=["requeued", "renamed as well"])
def test_a_job_that_was_requeued_is_over_and_leaves_the_queue(
    commands: Commands, slurm: Slurm, ended: str, changed: dict[str, str]
) -> None:
    """A requeued job has a new time of submission. It is still ours, and would start a second time."""
    commands.answer("scancel")
    commands.answer("squeue", row(script=SCRIPT))
    slurm.confirm(SEVEN)
    commands.answer("sacct", record(ended) if ended else "")
    commands.answer(
        "squeue", row(state="PENDING", reason="BeginTime", submitted=LATER, **{"script": SCRIPT, **changed})
    )
    slurm.refresh()
    status = slurm.status(SEVEN)
    assert status.state is (JobState.NODE_FAIL if ended == "NODE_FAIL" else JobState.LOST)
    assert "another job" not in status.reason
    assert ("it was requeued" in status.reason) == (ended != "NODE_FAIL")
    assert commands.asked("scancel") == ["7"]


def test_nodes_that_were_started_anew_are_known(commands: Commands, slurm: Slurm) -> None:
    lines = [f"NodeName={n} Arch=x86_64 SlurmdStartTime={at} LastBusyTime={LATER}" for n, at in NODES_STARTED]
    commands.answer("scontrol", "\n".join(lines) + "\n")
    since = datetime.fromisoformat(FIRST).timestamp() + 60.0
    assert slurm.queries.restarted(("n1", "n2", "n3"), since) == ("n2",)
    assert commands.asked("scontrol") == ["--oneliner show node n1,n2,n3"]
    commands.answer("scontrol", code=1)
    assert slurm.queries.restarted(("n1",), since) == ()


def test_ours_are_asked_for_and_cancelled_by_one_command(commands: Commands, slurm: Slurm) -> None:
    """All that live, in whatever state; what has ended and what is not ours stays out of it. One query is for all."""
    others = [slurm.watch(job_id, OURS) for job_id in ("8", "9", "10")]
    rows = (row(), row("8", "PENDING"), row("9", "COMPLETED"), row("10", comment="x"))
    commands.answer("squeue", "".join(rows))
    commands.answer("scancel")
    slurm.cancel(SEVEN, *others)
    assert commands.asked("scancel") == ["7 8"]
    assert "--jobs=7,8,9,10" in commands.asked("squeue")[0]


def test_an_id_that_another_run_of_the_session_has_now_is_not_the_first_ones(commands: Commands, slurm: Slurm) -> None:
    """The controller forgot the first job and gave its id to the next: each is cancelled by its own mark."""
    next_run = JobIdentity(token=TOKEN, name="llmbench-next", script=SCRIPT)
    commands.answer("squeue", row())
    slurm.confirm(SEVEN)
    other = slurm.watch("7", next_run)
    commands.look(slurm, row(name="llmbench-next", state="PENDING", submitted=LATER))
    assert (slurm.status(SEVEN).state, slurm.status(other).state) == (JobState.LOST, JobState.PENDING)
    commands.answer("scancel")
    slurm.cancel(SEVEN)
    assert commands.asked("scancel") == []
    slurm.cancel(other)
    assert commands.asked("scancel") == ["7"]


def test_a_job_that_is_alive_again_is_cancelled(
    commands: Commands, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller was killed before it had saved the end of a run. Another job of its id is left alone."""
    monkeypatch.setattr(module, "_LEAVING_S", -1.0)
    commands.answer("scancel")
    slurm.watch("8", OURS)
    commands.look(slurm, row(state="COMPLETED") + row("8"))
    slurm.let_go(SEVEN)
    commands.look(slurm, **SILENT)
    commands.look(slurm, row(comment="somebody's own") + row("8"))
    assert commands.asked("scancel") == []
    commands.look(slurm, row(state="COMPLETING") + row("8"))
    assert commands.asked("scancel") == []
    commands.look(slurm, row() + row("8"))
    assert commands.asked("scancel") == ["7"]
    assert [note for note in slurm.notes if "cancelled job 7, whose run is over" in note]


def test_nodes_of_a_job_that_is_closed_are_not_read(commands: Commands, slurm: Slurm) -> None:
    """Slurm then names only nodes that are not ready for others, and the rest would look like strangers to the run."""
    commands.answer("scontrol", "n1\nn2\n")
    commands.look(slurm, row(state="COMPLETING", nodes="n2"))
    assert slurm.hosts(SEVEN) == ()
    commands.look(slurm, row(state="COMPLETED", nodes="n[1-2]"))
    assert slurm.hosts(SEVEN) == ("n1", "n2")


def test_no_question_is_asked_while_no_job_lives(commands: Commands, slurm: Slurm) -> None:
    commands.look(slurm, row(state="COMPLETED"))
    commands.answer("sinfo", "test")
    for _ in range(3):
        assert slurm.status(SEVEN).state is JobState.COMPLETED
    assert (len(commands.asked("squeue")), commands.asked("sinfo")) == (1, [])


def test_a_job_is_missed_only_by_a_slurm_that_speaks(commands: Commands, slurm: Slurm) -> None:
    """Silence says nothing of a job; a list without it does, until it is there again."""
    commands.look(slurm, row())
    assert not slurm.misses(SEVEN)
    commands.look(slurm, **SILENT)
    assert not slurm.misses(SEVEN)
    commands.look(slurm, **FORGOTTEN)
    assert slurm.misses(SEVEN)
    commands.look(slurm, row())
    assert not slurm.misses(SEVEN)


def test_a_node_that_refuses_a_job_for_its_id_is_named(commands: Commands, slurm: Slurm) -> None:
    """One question is for all jobs; a node that is drained for another reason refuses nobody."""
    commands.answer("squeue", row() + row("8", nodes="n2") + row("9", "PENDING", nodes=""))
    jobs = [SEVEN, slurm.watch("8", OURS), slurm.watch("9", OURS)]
    slurm.refresh()
    commands.answer("sinfo", "\x1en1\x1ffan broken\n\x1en2\x1fDuplicate jobid\n")
    assert [slurm.refusing(job) for job in jobs] == ["", "n2", ""]
    assert len(commands.asked("sinfo")) == 1
    commands.answer("squeue", row("8", "CANCELLED", nodes="n2") + row("9", "CANCELLED", nodes=""))
    commands.answer("sinfo", "\x1en2\x1fdrained\x1fDuplicate jobid\n")
    slurm.refresh()
    assert (slurm.status(jobs[1]).state, slurm.status(jobs[2]).state) == (JobState.LOST, JobState.CANCELLED)
    assert slurm.status(jobs[1]).reason == "n2 drained (Duplicate jobid)"


def test_what_cannot_be_seen_is_not_cancelled(commands: Commands, slurm: Slurm) -> None:
    """A cancellation that is left out is an error. A job that Slurm has forgotten needs none."""
    commands.answer("scancel")
    with pytest.raises(ClusterError, match="it is unknown whether it is still ours"):
        slurm.cancel(SEVEN)
    commands.answer("squeue", **FORGOTTEN)
    slurm.cancel(SEVEN)
    assert commands.asked("scancel") == []


def test_a_job_is_confirmed_by_a_fresh_look_only(commands: Commands, slurm: Slurm) -> None:
    """A controller that is silent confirms nothing, and a job that does not run is none to launch in."""
    commands.answer("squeue", row())
    slurm.confirm(SEVEN)
    slurm._jobs[SEVEN].seen -= 60
    commands.answer("squeue", **SILENT)
    with pytest.raises(NoAnswerError, match="does not report whether job 7 still runs"):
        slurm.confirm(SEVEN)
    slurm._rhythm.next = 0.0  # a silent controller is asked less often, by how long it took
    for state in ("PENDING", "SUSPENDED", "COMPLETING"):
        slurm.watch("7", OURS)
        commands.answer("squeue", row(state=state))
        with pytest.raises(NoAnswerError, match=state):
            slurm.confirm(SEVEN)


def test_the_expected_start_is_of_the_same_query_and_no_news(commands: Commands, slurm: Slurm) -> None:
    """Slurm's guess at when a pending job starts is told, and a new guess does not make anyone ask more often."""
    told = []
    for starts in ("2026-11-23T05:00:00", "2026-11-23T06:00:00", "N/A"):
        commands.answer("squeue", row(state="PENDING", reason="Priority", nodes="", starts=starts))
        slurm.refresh()
        told.append(slurm.status(SEVEN))
    first, second, unknown = told
    assert first.starts is not None
    assert second.starts == first.starts + 3600
    assert unknown.starts is None
    assert first == second == unknown
    commands.look(slurm, row(starts=FIRST))
    assert slurm.status(SEVEN).starts is None


NOISE = {
    "Latin-1 in a comment": row(comment=f"{TOKEN} caf").encode()[:-1] + b"\xe9\n",
    "a comment of several lines": row(comment=f"{TOKEN} a|b\n7|FAILED|x\n").encode(),
    "separators in a comment": row(comment=f"{TOKEN} \x1f\x1f").encode(),
    "a line of garbage before": b"\xff\x00 slurm_load_jobs: garbage\n" + row().encode(),
    "another job with odd bytes": row("8", name="\n", comment="\x1b[2J").encode() + b"\xff" + row().encode(),
}


@pytest.mark.parametrize("noise", NOISE.values(), ids=NOISE)
def test_odd_bytes_of_others_hide_nothing(commands: Commands, slurm: Slurm, noise: bytes) -> None:
    commands.answer("squeue", noise)
    slurm.confirm(SEVEN)
    assert slurm.status(SEVEN).nodelist == "n1"


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reading(noise: bytes) -> None:
    text = (row().encode() + noise + row("8").encode()).decode("utf-8", errors="replace")
    assert [found.job_id for found in job_rows(text.split("\x1e"))][:1] == ["7"]
    assert [found.job_id for found in job_rows(text.split("\x1e"))][-1:] == ["8"]


def test_nodes_that_no_job_can_get_are_told_by_their_states_with_any_reason(commands: Commands, slurm: Slurm) -> None:
    """`inval` is a node that registered with too little, and a sign behind a state says that it does not respond."""
    states = ("inval", "idle*", "mixed*", "maint$", "idle", "mixed", "allocated+", "idle~", "planned")
    commands.answer("sinfo", "".join(f"\x1e{state}\x1f{state}\x1fnone" for state in states).encode())
    assert [node.name for node in slurm.queries.ill_nodes()] == ["inval", "idle*", "mixed*", "maint$"]
    drained = b"\x1en8\x1fdrained\x1ffan\nbr\xf6ken \x1b[2J(loud)\n"
    commands.answer("sinfo", b"\x1en1\x1fidle\x1fnone\n" + drained + drained)
    assert slurm.queries.unavailable() == "n8 drained (fan br\ufffdken [2J(loud))"


def test_a_failed_node_is_named(commands: Commands, slurm: Slurm) -> None:
    commands.answer("squeue", row(state="NODE_FAIL", nodes="n[7-8]"))
    commands.answer("sinfo", "\x1en7\x1fidle\x1fnone\n\x1en8\x1fdown*\x1fNot responding\n")
    assert slurm.status(SEVEN).reason == "n8 down* (Not responding)"
    assert slurm.status(SEVEN).failed == ("n8",)
    assert "--nodes=n[7-8]" in commands.asked("sinfo")[0]


def test_what_was_done_to_a_job_is_read(commands: Commands, slurm: Slurm) -> None:
    line = "JobId=7 JobName=x SubmitTime={} EligibleTime=x PreemptTime={} SuspendTime={} SecsPreSuspend=0 Comment=y"
    commands.answer("squeue", row())
    slurm.confirm(SEVEN)
    commands.answer("scontrol", line.format(FIRST, "None", LATER))
    assert slurm.marks(SEVEN) == JobMarks(suspended=LATER)
    commands.answer("scontrol", line.format(FIRST, LATER, "None"))
    assert slurm.marks(SEVEN) == JobMarks(preempted=LATER)
    commands.answer("scontrol", line.format(LATER, "None", "None"))
    assert slurm.marks(SEVEN) is None
    commands.answer("scontrol", b"\xff\xfe")
    assert slurm.marks(SEVEN) is None


def test_the_marks_of_a_job_that_runs_confirm_it(commands: Commands, slurm: Slurm) -> None:
    """One question tells what was done to it and that it runs: the next launch a moment later asks nothing."""
    line = "JobId=7 JobName=x JobState={} SubmitTime={} PreemptTime=None SuspendTime=None SecsPreSuspend=0 Comment=y"
    commands.answer("squeue", row())
    slurm.confirm(SEVEN)
    for state, at, questions in (("RUNNING", FIRST, 0), ("COMPLETING", FIRST, 1), ("RUNNING", LATER, 1)):
        slurm._jobs[SEVEN].seen -= 60
        commands.answer("scontrol", line.format(state, at))
        before = len(commands.asked("squeue"))
        assert slurm.marks(SEVEN) == (JobMarks() if at == FIRST else None)
        slurm.confirm(SEVEN)
        assert len(commands.asked("squeue")) == before + questions
        slurm._jobs[SEVEN].marks_now = None


def test_marks_of_a_moment_ago_will_do_for_what_begins(commands: Commands, slurm: Slurm) -> None:
    line = "JobId=7 JobName=x SubmitTime={} PreemptTime={} SuspendTime=None SecsPreSuspend=0 Comment=y"
    commands.answer("squeue", row())
    slurm.confirm(SEVEN)
    commands.answer("scontrol", line.format(FIRST, "None"))
    assert slurm.marks(SEVEN, recent=True) == JobMarks()
    commands.answer("scontrol", line.format(FIRST, LATER))
    assert slurm.marks(SEVEN, recent=True) == JobMarks()
    assert slurm.marks(SEVEN) == JobMarks(preempted=LATER)
    assert slurm.marks(SEVEN, recent=True) == JobMarks(preempted=LATER)
    at, marks = slurm._jobs[SEVEN].marks_now or (0.0, JobMarks())
    slurm._jobs[SEVEN].marks_now = (at - 60, marks)
    commands.answer("scontrol", line.format(LATER, "None"))
    assert slurm.marks(SEVEN, recent=True) is None


def test_a_slurm_that_hangs(commands: Commands, slurm: Slurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The last answer stands while it does; once it goes on, what it says counts."""
    commands.answer("squeue", row())
    assert slurm.status(SEVEN).state is JobState.RUNNING
    monkeypatch.setattr(module, "SHORT_WAIT_S", 0.2)
    commands.answer("squeue", row(state="TIMEOUT"))
    os.mkfifo(tmp_path / "hang")
    script = tmp_path / "bin" / "squeue"
    script.write_text(script.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\nread x < {tmp_path}/hang\n"))
    for _ in range(20):
        assert slurm.status(SEVEN).state is JobState.RUNNING
    assert slurm.silent
    assert slurm.marks(SEVEN) is None
    (tmp_path / "hang").write_text("go on\n")
    wait_until(lambda: not slurm.status(SEVEN).alive)
    assert slurm.status(SEVEN).state is JobState.TIMEOUT


def test_a_failing_look_up_of_hosts_is_no_end(commands: Commands, slurm: Slurm, tmp_path: Path) -> None:
    """One command that fails does not end a session whose nodes are there: the next look finds them."""
    held = held_job(slurm, tmp_path)
    commands.answer("squeue", row(nodes="n[1-2]"))
    commands.answer("scontrol", code=1, stderr="slurm_load_node error: Socket timed out")
    waiting = held.hosts()
    assert isinstance(waiting, Waiting)
    assert "Socket timed out" in waiting.reason
    commands.answer("scontrol", "n1\nn2\n")
    assert held.hosts() == ("n1", "n2")


def test_the_allocation_we_are_in_is_known_by_user_and_submit_time(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The allocation has no token of ours; with another submit time or user it is another job."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_UID", "1000")
    system = System(name="any", cluster="slurm")
    settings = Settings(system=system, cluster="slurm", allocation="session", run_dir=tmp_path)
    commands.answer("scontrol", "n1\n")
    theirs = {"name": "interactive", "comment": "(null)"}
    commands.answer("squeue", row(**theirs, uid="1001"))
    with pytest.raises(ClusterError, match="its id belongs to another job now"):
        ExistingJob(settings, Slurm()).start()
    slurm = Slurm()
    existing = ExistingJob(settings, slurm)
    commands.answer("squeue", row(**theirs))
    existing.start()
    assert existing.hosts() == ("n1",)
    commands.look(slurm, row(**theirs, submitted=LATER))
    with pytest.raises(JobEndedError, match="its id belongs to another job now") as raised:
        existing.hosts()
    assert raised.value.status.state is JobState.LOST


def test_a_job_that_is_suspended_or_waits_again_has_no_nodes(commands: Commands, slurm: Slurm, tmp_path: Path) -> None:
    """The controller forgot the start: its nodes are free for others, so the job is over and its runs are lost."""
    held = held_job(slurm, tmp_path)
    commands.answer("squeue", row(state="SUSPENDED"))
    waiting = held.hosts()
    assert isinstance(waiting, Waiting)
    assert "SUSPENDED" in waiting.reason
    commands.answer("squeue", row(state="PENDING", nodes="", reason="Resources"))
    assert isinstance(held.hosts(), Waiting)
    commands.answer("squeue", row())
    assert held.hosts() == ("n1",)
    commands.answer("squeue", row(state="PENDING", nodes="", reason="Resources"))
    with pytest.raises(JobEndedError, match="waits in the queue again") as raised:
        held.hosts()
    assert raised.value.status.state is JobState.LOST


def test_one_command_has_the_marks_of_all_that_ended(commands: Commands, slurm: Slurm) -> None:
    """Together with the query that saw their ends; of a job that lives they are asked for when they are needed."""
    line = "JobId={} JobName=x SubmitTime={} EligibleTime=x PreemptTime=None SuspendTime={} SecsPreSuspend=0 Comment=y"
    slurm.watch("8", OURS)
    slurm.watch("9", OURS)
    commands.answer("squeue", row(state="COMPLETED") + row("8", "FAILED") + row("9", submitted=LATER))
    commands.answer("scontrol", "\n".join(line.format(job, FIRST, mark) for job, mark in (("7", "None"), ("8", LATER))))
    slurm.refresh()
    assert (slurm.marks(SEVEN), slurm.marks(OurJob("8", OURS))) == (JobMarks(), JobMarks(suspended=LATER))
    assert commands.asked("squeue") != []
    assert commands.asked("scontrol") == ["--oneliner"]
    assert slurm.marks(OurJob("9", OURS)) is None
    assert len(commands.asked("scontrol")) == 2


def test_slurm_is_asked_once_about_each_kind_of_job(commands: Commands, slurm: Slurm, tmp_path: Path) -> None:
    commands.answer("sbatch", code=1, stderr="sbatch: error: Batch job submission failed: Requested node configuration")
    with pytest.raises(ClusterError, match="Requested node configuration"):
        slurm.controller.test(("2 nodes",), tmp_path / "a.sh")
    commands.answer("sbatch")
    threads = [
        threading.Thread(target=slurm.controller.test, args=(("2 nodes",), tmp_path / f"{n}.sh")) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    slurm.controller.test(("3 nodes",), tmp_path / "b.sh")
    assert [call.split()[0] for call in commands.asked("sbatch")] == ["--test-only"] * 3


def test_names_of_nodes_need_no_command(commands: Commands, slurm: Slurm) -> None:
    assert slurm.queries.hosts("n1") == ("n1",)
    assert slurm.queries.hosts("n1,gpu-7") == ("n1", "gpu-7")
    assert commands.asked("scontrol") == []
    commands.answer("scontrol", "n1\nn2\n")
    assert slurm.queries.hosts("n[1-2]") == slurm.queries.hosts("n[1-2]") == ("n1", "n2")
    assert commands.asked("scontrol") == ["show hostnames n[1-2]"]


def test_a_long_silence_is_said_once(commands: Commands, slurm: Slurm) -> None:
    commands.look(slurm, row())
    commands.look(slurm, **SILENT)
    assert not slurm.notes
    for _ in range(5):
        slurm.refresh()
    (note,) = slurm.notes
    assert note.startswith("Slurm does not answer (Unable to contact slurm controller): what runs goes on")
    commands.look(slurm, row())
    slurm.refresh()
    assert [note.split(",")[0] for note in slurm.notes][1:] == ["Slurm answers again"]


def test_a_job_that_sbatch_never_submitted_may_be_there_under_another_id(commands: Commands, slurm: Slurm) -> None:
    """The printed id is that of a stranger's job: ours is searched for when the session ends."""
    commands.look(slurm, row(comment="somebody's own"))
    assert slurm.status(SEVEN).state is JobState.LOST
    assert slurm.strays == [OURS]


def test_a_controller_that_is_just_back_refuses_nothing_for_good(
    commands: Commands, slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that was just started does not know its nodes yet."""
    commands.answer("sbatch", code=1, stderr="allocation failure: Requested node configuration is not available")
    slurm.refresh()
    commands.look(slurm, row())
    with pytest.raises(NoAnswerError, match="may not know its nodes yet"):
        slurm.controller.test((), tmp_path / "a.sh")
    monkeypatch.setattr(controller, "_BACK_S", -1.0)
    with pytest.raises(ClusterError, match=r"not available$"):
        slurm.controller.test((), tmp_path / "a.sh")
    monkeypatch.setattr(controller, "_BACK_S", 60.0)
    monkeypatch.setattr(slurm.controller, "_back_at", float("-inf"))
    monkeypatch.setattr(controller, "_WAITED_S", -1.0)
    with pytest.raises(NoAnswerError):
        slurm.controller.test((), tmp_path / "a.sh")


def test_a_controller_that_knows_no_node_was_just_started(
    commands: Commands, slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal counts for good if the nodes stay down, or if the controller knows one of them."""
    commands.answer("sbatch", code=1, stderr="allocation failure: Requested node configuration is not available")
    commands.answer("sinfo", "\x1eidle\n\x1edown*\n")
    with pytest.raises(ClusterError, match=r"not available$"):
        slurm.controller.test((), tmp_path / "a.sh")
    commands.answer("sinfo", "\x1eunknown\n\x1edown*\n")
    with pytest.raises(NotYetError, match="may not know its nodes yet"):
        slurm.controller.test((), tmp_path / "a.sh")
    monkeypatch.setattr(controller, "_BACK_S", -1.0)
    with pytest.raises(ClusterError, match=r"not available$"):
        slurm.controller.test((), tmp_path / "a.sh")


def in_queue(folder: Path, *comments: str, first: int = 7) -> str:
    """Jobs from `first` on, whose scripts are in this folder, as the watchman asks for them."""
    scripts = folder / "runs" / "a b"
    scripts.mkdir(parents=True, exist_ok=True)
    return "".join(f"{job}\x1f{scripts}/job.sh\x1f{comment}\n" for job, comment in enumerate(comments, first))


def end_in_order(session: Path) -> None:
    """End a session whose watchman goes on for a while."""
    watching = watchman.Watchman(session, TOKEN)
    write_stop(session, "the session ended")
    watching.dismiss()


@pytest.mark.parametrize("begins", ["copy", "link", "gone"])
def test_a_watchman_leaves_the_jobs_of_a_copy_of_its_session(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: str
) -> None:
    """A copy is resumed under the same token within the watchman's time; a job's path may be a link to the folder."""
    monkeypatch.setattr(watchman, "AFTER_END_S", 0.05)
    own, other = tmp_path / "own", tmp_path / begins
    own.mkdir()
    jobs = in_queue(own, TOKEN)
    if begins == "link":
        other.symlink_to(own)
    commands.answer("squeue", jobs + in_queue(other, TOKEN, first=8))
    if begins == "gone":
        shutil.rmtree(other)
    commands.answer("scancel")
    end_in_order(own)
    wanted = ["7"] if begins == "copy" else ["7", "8"]
    wait_until(lambda: len(commands.asked("scancel")) >= len(wanted) and not processes_of(own))
    assert commands.asked("scancel") == wanted


def test_jobs_alive_again_are_cancelled(commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchman cancels jobs with the session's token a while after the end, and no others."""
    monkeypatch.setattr(watchman, "AFTER_END_S", 0.05)
    commands.answer("squeue", in_queue(tmp_path, f"{TOKEN} by us", "llmbench:t", f"{TOKEN}1", TOKEN))
    commands.answer("scancel")
    end_in_order(tmp_path)
    wait_until(lambda: len(commands.asked("scancel")) >= 2)
    assert commands.asked("scancel") == ["7", "10"]
    assert "--states=PENDING,RUNNING,SUSPENDED" in commands.asked("squeue")[0]


@pytest.mark.parametrize("resumed", ["runs", "ended"])
def test_a_watchman_leaves_the_jobs_of_a_resumed_session(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resumed: str
) -> None:
    """The token is the same: a session that was resumed after its end in order has a watchman of its own."""
    monkeypatch.setattr(watchman, "AFTER_END_S", 1.0)
    commands.answer("squeue", in_queue(tmp_path, f"{TOKEN} by us"))
    commands.answer("scancel")
    (tmp_path / layout.OWNER).write_text("first")
    end_in_order(tmp_path)
    (tmp_path / layout.OWNER).write_text("second")
    if resumed == "runs":
        (tmp_path / layout.STOP).unlink()
    time.sleep(3.0)
    assert not commands.asked("scancel")


def test_a_watchman_does_not_wait_for_ever(commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchman asks again a while later, and nothing of the first question is left."""
    monkeypatch.setattr(watchman, "AFTER_END_S", 0.05)
    monkeypatch.setattr(watchman, "LAST_ANSWER_S", 0.5)
    commands.answer("squeue", in_queue(tmp_path, f"{TOKEN} by us"))
    commands.answer("scancel")
    squeue, hung = tmp_path / "bin/squeue", tmp_path / "hung"
    hangs = f"[ -e {hung} ] || {{ echo $$ > {hung}; exec sleep 300; }}\n"
    squeue.write_text(squeue.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{hangs}"))
    end_in_order(tmp_path)
    wait_until(lambda: commands.asked("scancel"))
    assert commands.asked("scancel") == ["7"]
    assert not Path(f"/proc/{hung.read_text().strip()}").exists()


def test_a_watchman_gives_up_a_hung_command(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an end in order, it asks twice; then nothing is left of it, nor of what it asked."""
    monkeypatch.setattr(watchman, "AFTER_END_S", 0.05)
    monkeypatch.setattr(watchman, "LAST_ANSWER_S", 0.3)
    squeue, hung = tmp_path / "bin/squeue", tmp_path / "hung"
    squeue.write_text(f"#!/bin/sh\necho $$ >> {hung}\nexec sleep 300\n")
    end_in_order(tmp_path)
    wait_until(lambda: not processes_of(tmp_path))
    pids = hung.read_text().split()
    assert len(pids) == 2
    assert not [pid for pid in pids if is_alive(pid)]
    assert commands.asked("scancel") == []


def test_a_question_that_hangs_ends_with_the_session(commands: Commands, slurm: Slurm, tmp_path: Path) -> None:
    """The query ends with all that it has started, and the session does not wait for its answer."""
    squeue, hung = tmp_path / "bin/squeue", tmp_path / "hung"
    squeue.write_text(f"#!/bin/sh\nsleep 300 &\necho $$ $! > {hung}\nwait\n")
    slurm.refresh(0.1)
    wait_until(lambda: hung.exists() and hung.read_text().endswith("\n"))
    slurm.look_no_more()
    assert not slurm.looking
    assert commands.asked("scancel") == []
    wait_until(lambda: not [pid for pid in hung.read_text().split() if is_alive(pid)])


def is_alive(pid: str) -> bool:
    """Whether a process lives; one that has ended may have nobody who asks for its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def processes_of(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            found += [process.name] if str(folder).encode() in (process / "cmdline").read_bytes() else []
    return found


@pytest.fixture
def step(commands: Commands, slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> jobs.StepJob:
    """A step in job 7, which runs, that has just failed."""
    monkeypatch.setattr(jobs, "_HINDSIGHT_S", 0.0)
    commands.answer("squeue", row())
    step = jobs.StepJob(
        ["sh", "-c", "echo srun: error: n1: task 0: Killed; exit 137"], holder=SEVEN, hosts=("n1",), slurm=slurm,
        env=dict(os.environ), log=tmp_path / "srun.log",
    )  # fmt: skip
    step._process.wait()
    return step


def test_a_step_that_fails_while_its_job_goes_on_has_failed_by_itself(step: jobs.StepJob) -> None:
    assert (step.status().state, step.status().reason) == (JobState.FAILED, "srun exited with 137")


def test_a_step_that_fails_because_its_job_was_forgotten_is_lost(
    commands: Commands, step: jobs.StepJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps of a job that a restarted controller does not know are ended by Slurm: no rank is to blame."""
    commands.answer("squeue", **FORGOTTEN)
    for _ in range(3):
        assert step.status().state is JobState.RUNNING  # it may be back
    monkeypatch.setattr(module, "PATIENCE_S", -1.0)
    step._slurm.refresh()
    assert step.status().state is JobState.LOST
    assert "Invalid job id" in step.status().reason


def test_a_step_whose_job_waits_again_is_lost(commands: Commands, step: jobs.StepJob) -> None:
    commands.answer("squeue", row(state="PENDING", nodes="", reason="None"))
    assert step.status().state is JobState.LOST
    assert "waits in the queue again" in step.status().reason


def test_a_step_that_fails_while_the_controller_is_away_waits_for_it(
    commands: Commands, step: jobs.StepJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.answer("squeue", **SILENT)
    assert step.status().state is JobState.RUNNING
    monkeypatch.setattr(jobs, "_UNSAID_S", -1.0)
    assert step.status().state is JobState.FAILED


@pytest.fixture
def waiting(commands: Commands, slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HeldJob:
    """A job that is to hold nodes, and that has waited for longer than it may, once Slurm shows it."""
    monkeypatch.setattr(full_queue, "_MINUTE_S", 0.0)
    commands.answer("scancel")
    return held_job(slurm, tmp_path, 90)


def test_a_job_that_waits_too_long_is_cancelled_once(commands: Commands, waiting: HeldJob) -> None:
    commands.answer("squeue", row(state="PENDING", nodes="", reason="Priority"))
    assert isinstance(waiting.hosts(), Waiting)
    assert isinstance(waiting.hosts(), Waiting)
    assert commands.asked("scancel") == ["--state=PENDING 7"]
    commands.answer("squeue", row(state="CANCELLED", nodes=""))
    with pytest.raises(
        ClusterError, match=r"longer than --llmbench-max-wait 01:30:00.*Priority.*give a longer"
    ) as raised:
        waiting.hosts()
    assert not isinstance(raised.value, JobEndedError)  # --llmbench-retries asks for no new nodes


def test_a_job_that_begins_before_it_is_cancelled_is_used(commands: Commands, waiting: HeldJob) -> None:
    """The cancellation was for a waiting job; a later end has another cause."""
    commands.answer("squeue", row(state="PENDING", nodes="", reason="Priority"))
    assert isinstance(waiting.hosts(), Waiting)
    commands.answer("squeue", row())
    commands.answer("scontrol", "n1\n")
    assert waiting.hosts() == ("n1",)
    commands.answer("squeue", row(state="CANCELLED"))
    with pytest.raises(JobEndedError, match="cancelled from outside"):
        waiting.hosts()


@pytest.mark.parametrize("state", ["CONFIGURING", "SUSPENDED", "REQUEUED"])
def test_a_job_that_has_nodes_does_not_wait(commands: Commands, waiting: HeldJob, state: str) -> None:
    commands.answer("squeue", row(state=state, nodes=""))
    assert isinstance(waiting.hosts(), Waiting)
    assert commands.asked("scancel") == []


def test_silence_is_no_waiting(commands: Commands, waiting: HeldJob, slurm: Slurm) -> None:
    unseen = slurm.waited_s(SEVEN)
    assert isinstance(waiting.hosts(), Waiting)
    commands.look(slurm, row(state="PENDING", nodes="", reason="Priority"))
    seen = slurm.waited_s(SEVEN)
    commands.look(slurm, **SILENT)
    assert isinstance(waiting.hosts(), Waiting)
    assert slurm.waited_s(SEVEN) in {0.0, seen}
    assert unseen == 0.0 < seen
    assert commands.asked("scancel") == []
