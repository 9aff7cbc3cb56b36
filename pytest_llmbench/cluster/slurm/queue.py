"""Talking to Slurm: what it says of the jobs being watched, and whether they are still the jobs that are meant.

Slurm gives an id out again: at the latest after MaxJobId jobs, at the earliest when its controller was killed before it
had saved a job. So an id alone is never looked at, used or cancelled: see `Identity`.
"""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_llmbench.cluster.slurm.aside import Aside
from pytest_llmbench.cluster.slurm.commands import (
    TIMEOUT_S,
    NoAnswerError,
    SlurmAnswer,
    ask,
    is_silence,
    plain,
    succeeded,
)
from pytest_llmbench.cluster.slurm.marks import SHOW_JOBS, JobMarks, marks_in, questions
from pytest_llmbench.cluster.slurm.rhythm import QUIET_S, Rhythm
from pytest_llmbench.cluster.slurm.states import (
    FIELD,
    RECORD,
    SACCT_FIELDS,
    SQUEUE_FIELDS,
    Identity,
    JobRow,
    JobState,
    JobStatus,
    job_rows,
    seconds_of,
    told,
)
from pytest_llmbench.core.errors import ClusterError

# Slurm may not know a job for a while (a restart, a fail-over); it is not lost before this.
PATIENCE_S = 120.0
# It may be silent for longer, until what does not run yet is given up. A run never is: it has its ranks.
SILENCE_S = 7200.0
# An epilog may take minutes. A job that Slurm still closes after this has an end that is known, or never will be.
CLOSING_S = 300.0
# Whoever has other runs to look after waits no longer than this for an answer: what was known last stands.
GLANCE_S = 2.0
# What was done to a job is asked for when a run is over, and others wait.
_MARKS_S = 10.0
_NEVER = float("inf")
# A controller that was away learns of its nodes within this time, and refuses what they could run until then.
_BACK_S = 60.0
_WAITED_S = 5.0
# Whoever waits for the end of a session is told what for after this long.
_PATIENCE_S = 1.0
# Steps go into a job that was seen as ours no longer ago than this.
_FRESH_S = 1.0
# States of a node, as sinfo begins them.
_UNAVAILABLE = ("down", "drain", "fail", "maint", "unknown", "power", "not_responding", "reboot")


@dataclass(kw_only=True)
class _Watched:
    """A job being watched.

    Attributes:
        submitted: when it was submitted, as Slurm says; empty until it was seen.
        comment: of it, as squeue shows it.
        seen: our clock before the last query that found it in squeue as the job that is meant.
        answered: our clock when Slurm last said anything of it.
        closing: our clock when it was first seen `COMPLETING`: nothing can start in it any more.
        ending: whether its files say that it is about to end.
        marks: its past events, as they were asked for when its end was seen.
    """

    identity: Identity
    status: JobStatus = field(default_factory=lambda: JobStatus(state=JobState.PENDING, reason="just submitted"))
    submitted: str = ""
    comment: str | None = None
    seen: float = -_NEVER
    answered: float = field(default_factory=time.monotonic)
    closing: float | None = None
    ending: bool = False
    marks: JobMarks | None = None


class Slurm:
    """Slurm's commands, and the last known state of the jobs being watched.

    Attributes:
        notes: lines for people, oldest first; the reader that shows them removes them.
        strays: jobs that Slurm may have taken without saying so, and that were not found so far.
        past: ids of jobs that are known to be over, or to be looked after.
    """

    def __init__(self, notes: deque[str] | None = None) -> None:
        self.notes: deque[str] = deque() if notes is None else notes
        self._jobs: dict[str, _Watched] = {}
        self._rhythm = Rhythm()
        self._testing = threading.Lock()
        self._tested: set[Hashable] = set()
        self._hosts: dict[str, tuple[str, ...]] = {}
        self._silent_since: float | None = None
        self._told_silence = False
        self._back_at = -_NEVER
        self._query: Aside[None] | None = None
        self._lock = threading.Lock()  # runs are launched by another thread than the one that looks after them
        self._end_by = _NEVER
        self.strays: list[Identity] = []
        self.past: set[str] = set()

    def end_within(self, seconds: float) -> None:
        """End every command within `seconds` from now, including the running one: the session waits for it."""
        self._end_by = min(self._end_by, time.monotonic() + seconds)

    @property
    def looking(self) -> bool:
        """Whether an answer about the watched jobs is still awaited."""
        return self._query is not None and not self._query.done()

    @property
    def _was_silent(self) -> bool:
        return self._silent_since is not None

    @property
    def silent_s(self) -> float:
        """For how many seconds the controller has not answered; 0 where it does."""
        return 0.0 if self._silent_since is None else time.monotonic() - self._silent_since

    @property
    def silent(self) -> bool:
        """Whether the controller did not answer when it was asked last, or does not at this moment."""
        query = self._query
        return self._was_silent or (self.looking and query is not None and time.monotonic() - query.began >= GLANCE_S)

    def ask(self, command: Sequence[str], timeout_s: float | None = None, questions: bytes = b"") -> SlurmAnswer:
        """Run one of Slurm's commands to its end, whatever that is; `questions` are its input.

        Raises:
            NoAnswerError: it was cut off.
            ClusterError: it is not installed.
        """
        told: list[str] = []
        began = time.monotonic()

        def limit_s() -> float:
            if not told and self._end_by != _NEVER and time.monotonic() - began > _PATIENCE_S:
                told.append(command[0])
                self.notes.append(f"waiting for {command[0]} to answer, at most {max(0.0, self.left_s):.0f} s")
            # Half of what is left: the next command must have time as well.
            return min(TIMEOUT_S if timeout_s is None else timeout_s, self.left_s / 2)

        return ask(command, limit_s, questions=questions)

    @property
    def left_s(self) -> float:
        """Seconds until the session stops waiting for us."""
        return self._end_by - time.monotonic()

    def run(self, command: Sequence[str]) -> str:
        """Run one of Slurm's commands and return what it printed.

        Raises:
            ClusterError: it is not installed, failed or did not answer.
        """
        return succeeded(command, self.ask(command))

    def test(self, shape: Hashable, script: Path) -> None:
        """See to it that Slurm could ever start a job like that of a script; asked once for each shape.

        Raises:
            ClusterError: it could not, in its own words, or does not answer.
        """
        with self._testing:
            if shape not in self._tested:
                began = time.monotonic()
                try:
                    self.run(["sbatch", "--test-only", str(script)])
                except ClusterError as error:
                    raise self.unless_just_back(error, began) from error
                self._tested.add(shape)

    def unless_just_back(self, refusal: ClusterError, began: float) -> ClusterError:
        """A refusal; no answer at all, where the controller may not know its nodes yet after a restart.

        Args:
            refusal: of a command.
            began: our clock when the command began: one that takes long has waited for the controller.
        """
        now = time.monotonic()
        if now - began > _WAITED_S:
            self._back_at = now
        known = self._silent_since is None and now - self._back_at > _BACK_S
        return refusal if known else NoAnswerError(f"{refusal} (it was away until now)", command=refusal.command)

    def watch(self, job_id: str, identity: Identity) -> None:
        """Include a job in every refresh from now on."""
        self._jobs[job_id] = _Watched(identity=identity)
        self._rhythm.stir()

    def expect(self, job_id: str) -> None:
        """Take note that a job is about to end, by its files: ask Slurm soon."""
        self._jobs[job_id].ending = True
        self._rhythm.stir(last=self._all_end)

    @property
    def _all_end(self) -> bool:
        return all(job.ending for job in list(self._jobs.values()) if job.status.alive)

    def watched(self, job_id: str) -> bool:
        """Whether a job of this id is or was looked at."""
        return job_id in self._jobs

    def status(self, job_id: str, *, since: float = -_NEVER) -> JobStatus:
        """Return the last known status of a watched job, asking Slurm if the answer is old, or older than `since`.

        It does not wait for a Slurm that hangs: while that has no answer, the last one stands.
        """
        asked_for = self._jobs[job_id].seen < since and not self.silent
        if asked_for or self.looking or self._rhythm.due(last=self._all_end):
            self.refresh(GLANCE_S)
        return self._jobs[job_id].status

    def confirm(self, job_id: str) -> None:
        """See to it that a job runs right now, and is the one that is meant.

        Raises:
            NoAnswerError: it does not, or Slurm does not say so; `status` tells what became of it.
        """
        since = time.monotonic() - _FRESH_S
        shut_off = self._was_silent and time.monotonic() < self._rhythm.next
        if self._jobs[job_id].seen < since and not shut_off:
            self.refresh()
        status = self._jobs[job_id].status
        if status.state is not JobState.RUNNING or status.word == "COMPLETING":
            raise NoAnswerError(f"Slurm job {job_id} is {told(status)}", job_id=job_id)
        if self._jobs[job_id].seen < since:
            raise NoAnswerError(f"Slurm does not report whether job {job_id} still runs", job_id=job_id)

    def marks(self, job_id: str) -> JobMarks | None:
        """Past events of a watched job, as far as Slurm still knows; None where it does not, or is silent."""
        job = self._jobs[job_id]
        if job.marks is None and not self.silent:
            return self._asked_marks({job_id: job}).get(job_id)
        return job.marks

    def _asked_marks(self, jobs: Mapping[str, _Watched]) -> dict[str, JobMarks]:
        """Past events of watched jobs, by one command."""
        with contextlib.suppress(ClusterError):  # it fails as a whole where one job is not known any more
            answer = self.ask(SHOW_JOBS, _MARKS_S, questions(jobs)).stdout
            known = ((job_id, submitted, marks) for job_id, submitted, marks in marks_in(answer) if job_id in jobs)
            return {job_id: marks for job_id, submitted, marks in known if jobs[job_id].submitted == submitted}
        return {}

    def suspended_s(self, job_id: str) -> float | None:
        """For how many seconds a watched job was suspended in all, as sacct has it; None where it does not say."""
        fields = "JobIDRaw,Submit,JobName,Suspended"
        command = ["sacct", "--noheader", "--parsable2", "--allocations", f"--delimiter={FIELD}", f"--format={fields}"]
        answer, _ = self._answer([*command, f"--jobs={job_id}"], _MARKS_S)
        job = self._jobs[job_id]
        for line in answer.splitlines():
            found = line.split(FIELD)
            if len(found) == 4 and found[:2] == [job_id, job.submitted] and job.identity.name in {"", found[2]}:
                return seconds_of(found[3])
        return None

    def refresh(self, within_s: float | None = None) -> None:
        """Ask for every living watched job; return with the answer, or after `within_s` seconds of waiting for it.

        Without a limit, nothing that was asked before counts as the answer.
        """
        if within_s is None and (earlier := self._query) is not None:
            earlier.done(None)
        with self._lock:
            if self._query is None or self._query.done():
                self._query = Aside(self._look, "squeue")
            query = self._query
        if query.done(within_s):
            query.result()

    def _look(self) -> None:
        """Ask for all jobs at once: squeue first, sacct for those it no longer lists; whether it is there, for none."""
        began = time.monotonic()
        wanted = {job_id: job for job_id, job in list(self._jobs.items()) if job.status.alive}
        if not wanted:
            _, error = self._answer(["sinfo", "--noheader", "--format=%P"])
            self._note_silence(error, began)
            return
        rows, squeue_error = self._squeue(f"--jobs={','.join(wanted)}")
        took_s = time.monotonic() - began
        self._note_silence(squeue_error, began)
        before = [job.status for job in wanted.values()]
        missing = self._take_rows(wanted, rows, began)
        strangers = {row.job_id: row for row in rows}
        self._end_what_closes(wanted, began)
        sacct_error = self._take_ends(missing) if missing else ""
        for job_id, job in missing.items():
            if job_id in strangers:
                stranger = strangers[job_id]
                why = f"its id belongs to another job now ({stranger.told}): Slurm has forgotten ours"
                if stranger.uid == str(os.getuid()) and job.submitted in {"", stranger.submitted}:
                    why += (
                        "; or it is ours, and a job_submit plugin of the site has changed its name, "
                        f"{job.identity.name}: ask the site to leave names that begin with llmbench- as they are"
                    )
                job.status = JobStatus(state=JobState.LOST, reason=why)
                if job.seen == -_NEVER:  # what sbatch printed was not its id: it may be there under another
                    self.strays.append(job.identity)
            elif self._was_silent and job.status.state is not JobState.PENDING:
                # Silence says nothing of it. What counts is how long Slurm, when it speaks, does not know it.
                job.answered = time.monotonic()
            elif time.monotonic() - job.answered > (SILENCE_S if self._was_silent else PATIENCE_S):
                why = squeue_error or sacct_error or "neither squeue nor sacct lists it"
                job.status = JobStatus(state=JobState.LOST, reason=why)
        changed = before != [job.status for job in wanted.values()]
        # Whoever asks a silent controller waits half a minute each time, and has runs to look after.
        self._rhythm.asked(changed=changed, last=self._all_end, took_s=took_s if self._was_silent else 0.0)

    def _take_rows(self, wanted: Mapping[str, _Watched], rows: Sequence[JobRow], began: float) -> dict[str, _Watched]:
        """Believe squeue about our jobs; return those that it does not show."""
        ours = [
            (job, row) for row in rows
            if (job := wanted.get(row.job_id)) is not None and row.fits(job.identity, job.submitted)
        ]  # fmt: skip
        for job, row in ours:
            self._say_if_rewritten(job, row)
            job.submitted, job.comment = row.submitted, row.comment
            job.seen, job.answered = began, time.monotonic()
            job.closing = (job.closing or began) if row.status.word == "COMPLETING" else None
        # Before anybody sees that they have ended.
        if ended := {row.job_id: job for job, row in ours if not row.status.alive}:
            for job_id, marks in self._asked_marks(ended).items():
                ended[job_id].marks = marks
        for job, row in ours:
            job.status = self._explained(row.status)
        seen = {row.job_id for _, row in ours}
        return {job_id: job for job_id, job in wanted.items() if job_id not in seen}

    def _note_silence(self, error: str, began: float) -> None:
        """Say once that the controller is silent, when it was so twice or for long, and once that it answers again."""
        if not is_silence(error):
            if self._told_silence:
                self.notes.append(f"Slurm answers again, after {self.silent_s:.0f} s")
            if self._silent_since is not None:
                self._back_at = time.monotonic()
            self._silent_since, self._told_silence = None, False
            return
        twice = self._silent_since is not None
        self._silent_since = self._silent_since or began
        if twice or time.monotonic() - began > GLANCE_S:
            self.say_silent(error)

    def say_silent(self, why: str) -> None:
        """Say that the controller is silent, if that was not said since it last answered."""
        if not self._told_silence:
            self._told_silence = True
            self.notes.append(
                f"Slurm does not answer ({why}): what runs goes on, what waits is launched when it does; it is asked "
                f"again every {QUIET_S:.0f} s"
            )

    def _say_if_rewritten(self, job: _Watched, row: JobRow) -> None:
        if job.comment is None and row.was_rewritten(job.identity):
            self.notes.append(
                f"Slurm job {row.job_id}: its comment is {plain(row.comment)!r} instead of {job.identity.token!r} "
                "(does a job_submit plugin rewrite it?); it is known by its script"
            )

    def _end_what_closes(self, jobs: Mapping[str, _Watched], now: float) -> None:
        """Take jobs for ended that have been closed for too long, in the way that sacct knows, if it does."""
        stuck = {key: job for key, job in jobs.items() if job.closing is not None and now - job.closing > CLOSING_S}
        if not stuck:
            return
        self._take_ends(stuck)
        for job in stuck.values():
            why = f"Slurm has been closing it for {CLOSING_S:.0f} s (see squeue: a process or an epilog does not end)"
            job.status = replace(job.status, state=JobState.FAILED, reason=why)

    def _take_ends(self, missing: dict[str, _Watched]) -> str:
        """Believe sacct about ends, take those jobs out of `missing`, and return why it failed, if it did.

        It lags behind by seconds, so its "still running" is believed only until squeue's silence lasts.
        """
        rows, error = self._sacct(f"--jobs={','.join(missing)}")
        for row in rows:
            job = missing.get(row.job_id)
            if job is None or not row.ends(job.identity, job.submitted, job.comment):
                continue
            job.answered = time.monotonic()
            if not row.status.alive:
                job.status = self._explained(row.status)
                del missing[row.job_id]
        return error

    def find(self, identity: Identity) -> str | None:
        """Find a job that Slurm has taken without saying so, and that is not watched yet; None where there is none.

        Raises:
            ClusterError: Slurm does not answer.
        """
        rows, error = self._squeue(f"--name={identity.name}")
        if error:
            raise ClusterError(error)
        recorded, _ = self._sacct(f"--name={identity.name}", "--starttime=now-1hour")
        for row in (*rows, *recorded):
            if row.fits(identity, "") and not self.watched(row.job_id) and row.job_id not in self.past:
                return row.job_id
        return None

    def hosts(self, nodelist: str) -> tuple[str, ...]:
        """Expand Slurm's node notation.

        Raises:
            ClusterError: scontrol refuses it.
        """
        if "[" not in nodelist:
            return tuple(nodelist.split(","))
        if nodelist not in self._hosts:
            self._hosts[nodelist] = tuple(self.run(["scontrol", "show", "hostnames", nodelist]).split())
        return self._hosts[nodelist]

    def partitions(self) -> str:
        """List the partitions with node counts and time limits, for people; empty when sinfo fails."""
        rows = self._sinfo(("%P", "%D", "%l"))
        return ", ".join(dict.fromkeys(f"{name} ({nodes} nodes, limit {limit})" for name, nodes, limit in rows))

    def unavailable(self, nodelist: str = "") -> str:
        """List the nodes that no job can get, with state and reason, for people; empty when there are none."""
        rows = self._sinfo(("%N", "%T", "%E"), "--Node", *([f"--nodes={nodelist}"] if nodelist else []))
        # While its last job is being cleaned up, a failed node is `completing`; the reason is there already.
        bad = (
            f"{node} {state} ({why})" for node, state, why in rows
            if state.startswith(_UNAVAILABLE) or (state.startswith("comp") and why != "none")
        )  # fmt: skip
        return ", ".join(dict.fromkeys(bad))

    def cancel(self, *job_ids: str) -> None:
        """Cancel watched jobs, all at once: one that is gone is not an error, one of another user is left alone.

        Raises:
            ClusterError: they could not be seen to be ours, or not be cancelled.
        """
        if not job_ids:
            return
        rows, error = self._squeue(f"--jobs={','.join(job_ids)}")
        known = ((row, self._jobs.get(row.job_id)) for row in rows if row.status.alive)
        ours = [row.job_id for row, job in known if job is not None and row.fits(job.identity, job.submitted)]
        if ours:
            self.run(["scancel", *ours])
        elif error and "Invalid job id" not in error:
            raise ClusterError(f"it is unknown whether it is still ours ({error})")

    def cancel_strays(self) -> list[str]:
        """Cancel the strays that have shown themselves since; return their ids.

        Raises:
            ClusterError: Slurm does not answer.
        """
        found = {job_id: stray for stray in self.strays if (job_id := self.find(stray)) is not None}
        for job_id, stray in found.items():
            self.watch(job_id, stray)
        self.cancel(*found)
        return list(found)

    def _explained(self, status: JobStatus) -> JobStatus:
        """Say which node it was that failed, while Slurm still shows it."""
        if status.state is not JobState.NODE_FAIL or not status.nodelist:
            return status
        bad = self.unavailable(status.nodelist)
        return replace(status, reason="; ".join(filter(None, (status.reason, bad))))

    def _squeue(self, *which: str) -> tuple[list[JobRow], str]:
        fields = RECORD + FIELD.join(SQUEUE_FIELDS)
        answer, error = self._answer(["squeue", "--noheader", "--states=all", f"--format={fields}", *which])
        return list(job_rows(answer.split(RECORD))), error

    def _sacct(self, *which: str) -> tuple[list[JobRow], str]:
        command = ["sacct", "--noheader", "--parsable2", "--allocations", "--duplicates", f"--delimiter={FIELD}"]
        answer, error = self._answer([*command, f"--format={','.join(SACCT_FIELDS)}", *which])
        rows = (line.split(FIELD, len(SACCT_FIELDS) - 1) for line in answer.split("\n"))
        return list(job_rows(FIELD.join((*row[:-1], "", *row[-1:])) for row in rows)), error

    def _sinfo(self, fields: Sequence[str], *which: str) -> Iterator[list[str]]:
        answer, _ = self._answer(["sinfo", "--noheader", f"--format={RECORD}{FIELD.join(fields)}", *which])
        for record in answer.split(RECORD):
            found = [plain(text) for text in record.split(FIELD)]
            if len(found) == len(fields):
                yield found

    def _answer(self, command: Sequence[str], timeout_s: float | None = None) -> tuple[str, str]:
        """The output of a command, and the reason if it failed."""
        try:
            return succeeded(command, self.ask(command, timeout_s)), ""
        except ClusterError as error:
            return "", str(error)
