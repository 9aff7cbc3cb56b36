"""Watching jobs: their states in Slurm, and whether each id still belongs to the job that is meant.

Slurm gives an id out again: at the latest after MaxJobId jobs, at the earliest when its controller was killed before it
had saved a job, and then even to another job of the same session. So every function here takes an `OurJob`, which has
more marks than the id.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_llmbench.cluster.slurm.background import BackgroundCall
from pytest_llmbench.cluster.slurm.commands import NoAnswerError, plain
from pytest_llmbench.cluster.slurm.controller import Rhythm, SlurmController
from pytest_llmbench.cluster.slurm.queries import REFUSED, SHORT_WAIT_S, IllNode, JobMarks, SlurmQueries, describe_nodes
from pytest_llmbench.cluster.slurm.states import JobIdentity, JobRow, JobState, JobStatus, OurJob
from pytest_llmbench.core.errors import ClusterError

# Slurm may list a job only after a while (a restart, a fail-over); a job that is missing for longer is lost.
PATIENCE_S = 120.0
# Silence of Slurm after which jobs that still wait are given up. Jobs that run are kept, because their ranks report.
SILENCE_S = 7200.0
# An epilog may take minutes. A job that Slurm still closes after this is judged by what is known of its end by then.
CLOSING_S = 300.0
# A command that is killed has ended within this time.
_KILLED_S = 2.0
# A step is started in a job that was seen as ours within this time.
_FRESH_S = 1.0
# A job whose run is over leaves by itself: its processes have ended, or Slurm was asked. After this, it is cancelled.
_LEAVING_S = 15.0
NEVER = float("-inf")

# New values of a job's fields.
Changes = dict[str, Any]


@dataclass(kw_only=True)
class WatchedJob:
    """A job being watched."""

    identity: JobIdentity
    status: JobStatus = field(default_factory=lambda: JobStatus(state=JobState.PENDING, reason="just submitted"))
    submitted: str = ""  # its submission time, as Slurm prints it; empty until it was seen
    shown: JobRow | None = None  # as squeue has last shown it
    # Our clock before the last query that found it as the job that is meant: squeue, or scontrol while it runs.
    seen: float = NEVER
    # Our clock when it was submitted, or taken over from an earlier process.
    watched: float = field(default_factory=time.monotonic)
    answered: float = field(default_factory=time.monotonic)  # our clock when Slurm last answered about it
    # Our clock when it was first seen `COMPLETING`: Slurm starts steps in it only before that.
    closing: float | None = None
    ending: bool = False  # whether its files show that it is about to end
    missing: bool = False  # whether Slurm's last answer lacked it
    # Whether its id turned out to be another job's before it was seen: it may be queued under another id.
    stray: bool = False
    over: float | None = None  # our clock when its run was over, whatever Slurm's state of it is
    marks: JobMarks | None = None  # its past events, asked for when its end was seen
    # Its past events while it ran, and our clock before they were asked for.
    marks_now: tuple[float, JobMarks] | None = None

    def closes_too_long(self, now: float) -> bool:
        """True if Slurm has been closing it for longer than an epilog takes."""
        return self.closing is not None and now - self.closing > CLOSING_S

    def apply(self, changes: Changes) -> None:
        """Set fields in their order: other threads see the status last, with all that belongs to it."""
        for name, value in changes.items():
            setattr(self, name, value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Slurm's answers at one look."""

    began: float  # our clock before the first question
    took_s: float  # seconds that squeue took
    silent: bool  # whether the controller was silent
    rows: Sequence[JobRow]  # jobs that squeue shows
    error: str  # the reason why squeue failed, or else sacct; empty where both answered
    # Jobs that sacct shows, asked about those that squeue lacks, or that close for too long.
    ends: Sequence[JobRow] = ()
    marks: Mapping[str, JobMarks] = field(default_factory=dict)  # past events of the jobs that ended, by id
    # Nodes that are out of service, by the node list that was asked for.
    ill: Mapping[str, Sequence[IllNode]] = field(default_factory=dict)


def shown_rows(jobs: Mapping[OurJob, WatchedJob], rows: Iterable[JobRow]) -> dict[OurJob, JobRow]:
    """The rows of squeue that show these jobs; a job of others may have the id of one."""
    by_id: dict[str, list[JobRow]] = {}
    for row in rows:
        by_id.setdefault(row.job_id, []).append(row)
    return {
        job: row for job, watched in jobs.items() for row in by_id.get(job.id, ())
        if row.fits(watched.identity, watched.submitted)
    }  # fmt: skip


def judge_shown(watched: WatchedJob, row: JobRow, facts: Facts, now: float) -> Changes:
    """Judge a job that squeue shows. Its marks come first, because they precede its end."""
    changes: Changes = {"marks": facts.marks[row.job_id]} if row.job_id in facts.marks else {}
    closing = (watched.closing or facts.began) if row.status.word == "COMPLETING" else None
    changes |= {"submitted": row.submitted, "shown": row, "seen": facts.began, "answered": now}
    return changes | {"closing": closing, "missing": False, "status": explain(watched, row.status, facts)}


def judge_unsure(job: OurJob, watched: WatchedJob, facts: Facts, now: float) -> Changes:
    """Judge a job that squeue lacks, or that Slurm has been closing for too long.

    sacct lags behind by seconds: its "still running" is believed only until squeue's silence lasts. A job is lost once
    Slurm's answers have lacked it for a while, or once another job has its id.
    """
    other = next((row for row in facts.rows if row.job_id == job.id), None)
    shown = other is not None and other.fits(watched.identity, watched.submitted)
    changes: Changes = {"missing": False}
    if other is not None and not shown:
        changes |= judge_other(watched, other)
    for row in facts.ends:
        if row.job_id == job.id and row.ends(watched.identity, watched.submitted, watched.shown):
            changes["answered"] = now
            if not row.status.alive:
                return {**changes, "stray": False, "status": explain(watched, row.status, facts)}
    status = watched.status
    if watched.closes_too_long(facts.began):
        reason = f"Slurm has been closing it for {CLOSING_S:.0f} s (see squeue: a process or an epilog does not end)"
        status = changes["status"] = replace(status, state=JobState.FAILED, reason=reason)
    if shown:
        return changes
    changes["missing"] = not facts.silent
    silence = now - changes.get("answered", watched.answered)
    if other is not None:
        return changes
    if facts.silent and status.state is not JobState.PENDING:
        # In silence, its state is open: only the time counts in which Slurm answers and the job is missing.
        changes["answered"] = now
    elif silence > (SILENCE_S if facts.silent else PATIENCE_S):
        reason = facts.error or "neither squeue nor sacct lists it"
        changes["status"] = JobStatus(state=JobState.LOST, reason=reason)
    return changes


def judge_other(watched: WatchedJob, row: JobRow) -> Changes:
    """Judge a job whose id now belongs to a later job: it was requeued, which makes it a new one, or forgotten."""
    if watched.identity.token and row.fits(watched.identity, ""):
        reason = "it was requeued, as by `scontrol requeue`, and a second start would be another run"
        lost = JobStatus(state=JobState.LOST, word="REQUEUED", reason=reason)
        return {"submitted": row.submitted, "over": NEVER, "status": lost}  # so that it is cancelled
    reason = f"its id belongs to another job now ({row.description}): Slurm has forgotten ours"
    if row.uid == str(os.getuid()) and watched.submitted in {"", row.submitted}:
        reason += (
            "; or it is ours, and a job_submit plugin of the site has changed its comment and its name, "
            f"{watched.identity.name}: ask the site to leave names that begin with llmbench- as they are"
        )
    return {"stray": watched.seen == NEVER, "status": JobStatus(state=JobState.LOST, reason=reason)}


def needs_explanation(watched: WatchedJob, status: JobStatus) -> bool:
    """True if an end may come from a node: the node failed, or the job was cancelled before its run was over."""
    unasked = status.state is JobState.CANCELLED and watched.over is None
    return bool(status.nodelist) and (unasked or status.state is JobState.NODE_FAIL)


def explain(watched: WatchedJob, status: JobStatus, facts: Facts) -> JobStatus:
    """Add the node that failed, or that refused to start the job.

    slurmd refuses and cancels a job whose id it remembers from a start that the controller has forgotten.
    """
    if not needs_explanation(watched, status):
        return status
    ill = facts.ill.get(status.nodelist, ())
    unasked, described = status.state is JobState.CANCELLED, describe_nodes(ill)
    if unasked and REFUSED not in described:
        return status
    state = JobState.LOST if unasked else status.state
    failed = tuple(dict.fromkeys(node.name for node in ill if node.has_failed and not unasked))
    return replace(status, state=state, reason="; ".join(filter(None, (status.reason, described))), failed=failed)


def revived_ids(jobs: Mapping[OurJob, WatchedJob], rows: Sequence[JobRow], now: float) -> list[str]:
    """Ids of jobs whose runs were over a while ago, and which the controller lists as alive."""
    over = {
        job: watched for job, watched in jobs.items() if watched.over is not None and now - watched.over > _LEAVING_S
    }
    shown = shown_rows(over, rows).values()
    return [row.job_id for row in shown if row.status.alive and row.status.word != "COMPLETING"]


class Slurm:
    """The last known state of the jobs being watched.

    Attributes:
        notes: lines for people, oldest first; the reader that shows them removes them.
        queries: Slurm's commands.
        controller: whether it answers.
        strays: jobs that Slurm may have taken without an answer, and that are still to be found.
        past: jobs that are known to be over, or to be looked after.
    """

    def __init__(self, notes: deque[str] | None = None) -> None:
        self.notes: deque[str] = deque() if notes is None else notes
        self.queries = SlurmQueries(self.notes)
        self.controller = SlurmController(self.queries)
        self._jobs: dict[OurJob, WatchedJob] = {}
        self._goes_on: WatchedJob | None = None
        self._rhythm = Rhythm()
        self._query: BackgroundCall[None] | None = None
        self._lock = threading.Lock()  # runs are launched by another thread than the one that looks after them
        self.strays: list[JobIdentity] = []
        self.past: set[OurJob] = set()

    @property
    def looking(self) -> bool:
        """True if an answer about the watched jobs is still awaited."""
        return self._query is not None and not self._query.done()

    @property
    def silent(self) -> bool:
        """True if the last question was left unanswered, or the present one has been open for long."""
        query = self._query
        late = self.looking and query is not None and time.monotonic() - query.began >= SHORT_WAIT_S
        return self.controller.was_silent or late

    def watch(self, job_id: str, identity: JobIdentity) -> OurJob:
        """Include a job in every refresh from now on."""
        job = OurJob(job_id, identity)
        self._jobs[job] = WatchedJob(identity=identity)
        self._rhythm.stir()
        return job

    def expect(self, job: OurJob) -> None:
        """Ask Slurm soon: the job's files show that it is about to end."""
        self._jobs[job].ending = True
        self._rhythm.stir(last=self._all_end)

    def let_go(self, job: OurJob) -> None:
        """Note that a job's run is over. It is cancelled if Slurm lists it as alive a while later.

        A controller that was killed may have saved it as it was before its end.
        """
        self._jobs[job].over = time.monotonic()

    @property
    def _all_end(self) -> bool:
        # Asked for each job at each look. The newest job goes on for longest: most often it is the answer.
        goes_on = self._goes_on
        if goes_on is None or goes_on.ending or not goes_on.status.alive:
            jobs = reversed(list(self._jobs.values()))
            self._goes_on = next((job for job in jobs if job.status.alive and not job.ending), None)
        return self._goes_on is None

    def status(self, job: OurJob, *, since: float = NEVER) -> JobStatus:
        """Return the last known status of a watched job, asking Slurm if the answer is old, or older than `since`.

        While Slurm hangs, the last answer stands. Once all watched jobs have ended, only `since` makes it ask.
        """
        asked_for = self._jobs[job].seen < since and not self.silent
        any_lives = not self._all_end or any(job.status.alive for job in list(self._jobs.values()))
        if asked_for or self.looking or (any_lives and self._rhythm.due(last=self._all_end)):
            self.refresh(SHORT_WAIT_S)
        return self._jobs[job].status

    def waited_s(self, job: OurJob) -> float:
        """Seconds that a watched job had waited when Slurm last listed it as waiting; 0 for any other job.

        The wait ends when the job's nodes start up.
        """
        watched = self._jobs[job]
        waits = watched.status.word == "PENDING" and not watched.missing
        return max(0.0, watched.seen - watched.watched) if waits else 0.0

    def confirm(self, job: OurJob) -> None:
        """Check that a job runs right now, and is the one that is meant.

        Raises NoAnswerError if it has another state, which `status` returns, or an unknown one.
        """
        since = time.monotonic() - _FRESH_S
        shut_off = self.controller.was_silent and time.monotonic() < self._rhythm.next
        if self._jobs[job].seen < since and not shut_off:
            self.refresh()
        status = self._jobs[job].status
        if status.state is not JobState.RUNNING or status.word == "COMPLETING":
            reason = f" ({status.reason})" if status.reason else ""
            raise NoAnswerError(f"Slurm job {job.id} is {status.word or status.state}{reason}")
        if self._jobs[job].seen < since:
            raise NoAnswerError(f"Slurm does not report whether job {job.id} still runs")

    def hosts(self, job: OurJob) -> tuple[str, ...]:
        """The nodes of a watched job, as they were last seen; empty while it waits, and while Slurm closes it.

        While Slurm closes a job, it names only those of its nodes that are still busy with it. Raises ClusterError if
        scontrol failed to expand their names.
        """
        status = self._jobs[job].status
        return self.queries.hosts(status.nodelist) if status.nodelist and status.word != "COMPLETING" else ()

    def misses(self, job: OurJob) -> bool:
        """True if Slurm's last answer lacked a job, which comes back, or is lost in a while."""
        return self._jobs[job].missing

    def refusing(self, job: OurJob) -> str:
        """The node that refused a job for its id although Slurm shows the job as running; empty for other jobs.

        slurmd remembers the id of a job that its controller has forgotten. Slurm drains the node, and leaves the new
        job of that id as if it ran.
        """
        try:
            return "" if self.silent else self.queries.refusing_node(self.hosts(job))
        except ClusterError:
            return ""

    def marks(self, job: OurJob, *, recent: bool = False) -> JobMarks | None:
        """Past events of a watched job; None where Slurm has forgotten the job, or is silent.

        With `recent`, an answer of a moment ago will do: the next question finds later events.
        """
        watched, began = self._jobs[job], time.monotonic()
        if watched.marks is not None or self.silent:
            return watched.marks
        if recent and watched.marks_now is not None and began - watched.marks_now[0] < _FRESH_S:
            return watched.marks_now[1]
        marks = self.queries.marks({job.id: watched.submitted}).get(job.id)
        watched.marks_now = None if marks is None else (began, marks)
        # By its id and the time of its submission, it is the job that squeue has shown to run.
        if marks is not None and marks.state == watched.status.word == "RUNNING":
            watched.seen, watched.answered = began, time.monotonic()
        return marks

    def suspended_s(self, job: OurJob) -> float | None:
        """Seconds for which a watched job was suspended in all, by sacct; None where sacct leaves it open."""
        return self.queries.suspended_s(job, self._jobs[job].submitted)

    def refresh(self, within_s: float | None = None) -> None:
        """Ask for every living watched job; return with the answer, or after `within_s` seconds of waiting for it.

        Without a limit, the answer is one to a question that was asked after this call.
        """
        if within_s is None and (earlier := self._query) is not None:
            earlier.is_over(None)
        with self._lock:
            if self._query is None or self._query.done():
                self._query = BackgroundCall(self._look, "squeue")
            query = self._query
        if query.is_over(within_s):
            query.result()

    def look_no_more(self) -> None:
        """End a query that hangs, which would outlive this process."""
        self.queries.ask_no_more()
        if (query := self._query) is not None:
            query.is_over(time.monotonic() - query.began + _KILLED_S)

    def _look(self) -> None:
        """Ask for all jobs at once, judge each by the answers, and keep the changes."""
        began, jobs = time.monotonic(), dict(list(self._jobs.items()))
        wanted = {job: watched for job, watched in jobs.items() if watched.status.alive}
        if not wanted:
            _, error = self.queries.answer(["sinfo", "--noheader", "--format=%P"])
            self.controller.note_answer(error, began)
            return
        before = [watched.status for watched in wanted.values()]
        facts = self._ask_squeue(jobs, wanted, began)
        self._cancel_revived(revived_ids(jobs, facts.rows, time.monotonic()))
        shown, now = shown_rows(wanted, facts.rows), time.monotonic()
        for job, row in shown.items():
            watched = wanted[job]
            if watched.shown is None and row.was_rewritten(watched.identity):
                self.notes.append(
                    f"Slurm job {job.id}: its comment is {plain(row.comment)!r} instead of {watched.identity.token!r} "
                    "(does a job_submit plugin rewrite it?); it is known by its script"
                )
            watched.apply(judge_shown(watched, row, facts, now))
        unsure = {
            job: watched for job, watched in wanted.items()
            if watched.status.alive and (job not in shown or watched.closes_too_long(began))
        }  # fmt: skip
        if unsure:
            facts = self._ask_sacct(unsure, facts)
            now = time.monotonic()
            for job, watched in unsure.items():
                watched.apply(judge_unsure(job, watched, facts, now))
            self.strays += [watched.identity for watched in unsure.values() if watched.stray]
            self._cancel_revived(revived_ids(unsure, facts.rows, now))  # those that were requeued
        changed = before != [watched.status for watched in wanted.values()]
        # A question to a silent controller takes half a minute, so the next one comes at least as much later.
        self._rhythm.note_answer(changed=changed, last=self._all_end, took_s=facts.took_s if facts.silent else 0.0)

    def _ask_squeue(
        self, jobs: Mapping[OurJob, WatchedJob], wanted: Mapping[OurJob, WatchedJob], began: float
    ) -> Facts:
        """Ask squeue for all jobs, and scontrol and sinfo for those that ended."""
        # A controller that is back may list jobs as alive that had ended.
        all_of_them = self.controller.was_silent or self.controller.is_just_back
        ids = dict.fromkeys(job.id for job in (jobs if all_of_them else wanted))
        rows, error = self.queries.squeue(f"--jobs={','.join(ids)}")
        took_s = time.monotonic() - began
        self.controller.note_answer(error, began)
        ended = {job: row for job, row in shown_rows(wanted, rows).items() if not row.status.alive}
        return Facts(
            began=began, took_s=took_s, silent=self.controller.was_silent, rows=rows, error=error,
            marks=self.queries.marks({job.id: row.submitted for job, row in ended.items()}) if ended else {},
            ill=self._ask_nodes((wanted[job], row.status) for job, row in ended.items()),
        )  # fmt: skip

    def _ask_sacct(self, unsure: Mapping[OurJob, WatchedJob], facts: Facts) -> Facts:
        """Ask sacct for jobs that squeue lacks or has been showing as closing for too long."""
        rows, error = self.queries.sacct(f"--jobs={','.join(job.id for job in unsure)}")
        ended = [
            (watched, row.status) for job, watched in unsure.items() for row in rows
            if row.job_id == job.id and row.ends(watched.identity, watched.submitted, watched.shown)
        ]  # fmt: skip
        return replace(facts, ends=rows, error=facts.error or error, ill=self._ask_nodes(ended))

    def _ask_nodes(self, ended: Iterable[tuple[WatchedJob, JobStatus]]) -> dict[str, Sequence[IllNode]]:
        """Ask for the nodes of ended jobs that may be the reason for their end, while Slurm still shows it."""
        lists = {status.nodelist for watched, status in ended if needs_explanation(watched, status)}
        return {nodelist: self.queries.ill_nodes(nodelist) for nodelist in lists}

    def _cancel_revived(self, revived: Sequence[str]) -> None:
        if not revived:
            return
        try:
            self.queries.run(["scancel", *revived])
        except ClusterError as error:
            self.notes.append(f"Slurm lists job {', '.join(revived)} as alive, whose run is over: {error}")
        else:
            self.notes.append(f"cancelled job {', '.join(revived)}, whose run is over, and which Slurm listed as alive")

    def find(self, identity: JobIdentity) -> str | None:
        """Find a job that Slurm has taken without an answer, and that is still unwatched; None if it is missing.

        Raises ClusterError if squeue failed.
        """
        rows, error = self.queries.squeue(f"--name={identity.name}")
        if error:
            raise ClusterError(error)
        recorded, _ = self.queries.sacct(f"--name={identity.name}", "--starttime=now-1hour")
        for row in (*rows, *recorded):
            job = OurJob(row.job_id, identity)
            if row.fits(identity, "") and job not in self._jobs and job not in self.past:
                return row.job_id
        return None

    def cancel(self, *jobs: OurJob) -> None:
        """Cancel watched jobs, all at once; jobs that are gone, and jobs of other users, are left alone.

        Raises ClusterError if scancel failed, or they may no longer be ours.
        """
        if jobs and (ours := self._alive(jobs)):
            self.queries.run(["scancel", *ours])

    def cancel_waiting(self, job: OurJob) -> None:
        """Cancel a watched job if it waits in the queue; one that has begun is left alone.

        Raises ClusterError if scancel failed, or it may no longer be ours.
        """
        if ours := self._alive([job]):
            self.queries.run(["scancel", "--state=PENDING", *ours])
            self._rhythm.stir()

    def _alive(self, jobs: Sequence[OurJob]) -> list[str]:
        """Ids of those jobs that Slurm shows alive now, and that are ours."""
        rows, error = self.queries.squeue(f"--jobs={','.join(job.id for job in jobs)}")
        watched = {job: self._jobs[job] for job in jobs if job in self._jobs}
        ours = [job.id for job, row in shown_rows(watched, rows).items() if row.status.alive]
        if not ours and error and "Invalid job id" not in error:
            raise ClusterError(f"it is unknown whether it is still ours ({error})")
        return ours

    def cancel_strays(self) -> list[str]:
        """Cancel the strays that have shown themselves since; return their ids.

        Raises ClusterError if squeue or scancel failed.
        """
        strays = [self.watch(job_id, stray) for stray in self.strays if (job_id := self.find(stray)) is not None]
        self.cancel(*strays)
        return [job.id for job in strays]
