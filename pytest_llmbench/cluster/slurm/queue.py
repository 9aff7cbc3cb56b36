"""Watching jobs: what Slurm says of each, and whether it is still the job that is meant.

Slurm gives an id out again: at the latest after MaxJobId jobs, at the earliest when its controller was killed before it
had saved a job, and then even to another job of the same session. So an id alone is never looked at, used or cancelled:
see `OurJob`.
"""

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_llmbench.cluster.slurm.aside import Aside
from pytest_llmbench.cluster.slurm.commands import NoAnswerError, plain
from pytest_llmbench.cluster.slurm.controller import SlurmController
from pytest_llmbench.cluster.slurm.marks import JobMarks
from pytest_llmbench.cluster.slurm.queries import GLANCE_S, REFUSED, SlurmQueries, told_of
from pytest_llmbench.cluster.slurm.rhythm import Rhythm
from pytest_llmbench.cluster.slurm.states import JobIdentity, JobRow, JobState, JobStatus, OurJob, told
from pytest_llmbench.cluster.slurm.watched import NEVER, WatchedJob
from pytest_llmbench.core.errors import ClusterError

# Slurm may not know a job for a while (a restart, a fail-over); it is not lost before this.
PATIENCE_S = 120.0
# It may be silent for longer, until what does not run yet is given up. A run never is: it has its ranks.
SILENCE_S = 7200.0
# An epilog may take minutes. A job that Slurm still closes after this has an end that is known, or never will be.
CLOSING_S = 300.0
# A command that is killed has ended within this time.
_KILLED_S = 2.0
# Steps go into a job that was seen as ours no longer ago than this.
_FRESH_S = 1.0
# A job whose run is over is on its way out: Slurm was told, or its processes have ended. After this, it is told.
_LEAVING_S = 15.0


class Slurm:
    """The last known state of the jobs being watched.

    Attributes:
        notes: lines for people, oldest first; the reader that shows them removes them.
        queries: Slurm's commands.
        controller: whether it answers.
        strays: jobs that Slurm may have taken without saying so, and that were not found so far.
        past: jobs that are known to be over, or to be looked after.
    """

    def __init__(self, notes: deque[str] | None = None) -> None:
        self.notes: deque[str] = deque() if notes is None else notes
        self.queries = SlurmQueries(self.notes)
        self.controller = SlurmController(self.queries)
        self._jobs: dict[OurJob, WatchedJob] = {}
        self._goes_on: WatchedJob | None = None
        self._rhythm = Rhythm()
        self._query: Aside[None] | None = None
        self._lock = threading.Lock()  # runs are launched by another thread than the one that looks after them
        self.strays: list[JobIdentity] = []
        self.past: set[OurJob] = set()

    @property
    def looking(self) -> bool:
        """Whether an answer about the watched jobs is still awaited."""
        return self._query is not None and not self._query.done()

    @property
    def silent(self) -> bool:
        """Whether the controller did not answer when it was asked last, or does not at this moment."""
        query = self._query
        late = self.looking and query is not None and time.monotonic() - query.began >= GLANCE_S
        return self.controller.was_silent or late

    def watch(self, job_id: str, identity: JobIdentity) -> OurJob:
        """Include a job in every refresh from now on."""
        job = OurJob(job_id, identity)
        self._jobs[job] = WatchedJob(identity=identity)
        self._rhythm.stir()
        return job

    def expect(self, job: OurJob) -> None:
        """Take note that a job is about to end, by its files: ask Slurm soon."""
        self._jobs[job].ending = True
        self._rhythm.stir(last=self._all_end)

    def let_go(self, job: OurJob) -> None:
        """Take note that a job's run is over: it is cancelled if Slurm takes it for alive a while later.

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

    @property
    def _any_lives(self) -> bool:
        return not self._all_end or any(job.status.alive for job in list(self._jobs.values()))

    def status(self, job: OurJob, *, since: float = NEVER) -> JobStatus:
        """Return the last known status of a watched job, asking Slurm if the answer is old, or older than `since`.

        It does not wait for a Slurm that hangs: while that has no answer, the last one stands. It asks nothing while no
        watched job lives.
        """
        asked_for = self._jobs[job].seen < since and not self.silent
        if asked_for or self.looking or (self._any_lives and self._rhythm.due(last=self._all_end)):
            self.refresh(GLANCE_S)
        return self._jobs[job].status

    def waited_s(self, job: OurJob) -> float:
        """For how many seconds a watched job had waited in the queue when Slurm last showed it there; 0 if it is not.

        A job whose nodes start up waits no more.
        """
        watched = self._jobs[job]
        waits = watched.status.word == "PENDING" and not watched.missing
        return max(0.0, watched.seen - watched.watched) if waits else 0.0

    def confirm(self, job: OurJob) -> None:
        """See to it that a job runs right now, and is the one that is meant.

        Raises:
            NoAnswerError: it does not, or Slurm does not say so; `status` tells what became of it.
        """
        since = time.monotonic() - _FRESH_S
        shut_off = self.controller.was_silent and time.monotonic() < self._rhythm.next
        if self._jobs[job].seen < since and not shut_off:
            self.refresh()
        status = self._jobs[job].status
        if status.state is not JobState.RUNNING or status.word == "COMPLETING":
            raise NoAnswerError(f"Slurm job {job.id} is {told(status)}", job_id=job.id)
        if self._jobs[job].seen < since:
            raise NoAnswerError(f"Slurm does not report whether job {job.id} still runs", job_id=job.id)

    def hosts(self, job: OurJob) -> tuple[str, ...]:
        """The nodes of a watched job, as they were last seen; empty while it waits, and while Slurm closes it.

        While Slurm closes a job, it names only those of its nodes that are not ready for others.

        Raises:
            ClusterError: scontrol cannot tell their names.
        """
        status = self._jobs[job].status
        return self.queries.hosts(status.nodelist) if status.nodelist and status.word != "COMPLETING" else ()

    def misses(self, job: OurJob) -> bool:
        """Whether Slurm, when it answered last, did not know a job: it comes back, or is lost in a while."""
        return self._jobs[job].missing

    def refusing(self, job: OurJob) -> str:
        """The node of a job that runs, as Slurm says, which has refused to start it for its id; empty for none.

        slurmd remembers the id of a job that its controller has forgotten. Slurm drains the node, and leaves the new
        job of that id as if it ran.
        """
        try:
            return "" if self.silent else self.queries.refused(self.hosts(job))
        except ClusterError:
            return ""

    def marks(self, job: OurJob, *, recent: bool = False) -> JobMarks | None:
        """Past events of a watched job, as far as Slurm still knows; None where it does not, or is silent.

        An answer of a moment ago is `recent`: the next question finds events that came since.
        """
        watched, began = self._jobs[job], time.monotonic()
        if watched.marks is not None or self.silent:
            return watched.marks
        if recent and watched.marks_now is not None and began - watched.marks_now[0] < _FRESH_S:
            return watched.marks_now[1]
        found = self.queries.marks({job.id: watched.submitted}).get(job.id)
        watched.marks_now = None if found is None else (began, found)
        # By its id and the time of its submission, it is the job that squeue has shown to run.
        if found is not None and found.state == watched.status.word == "RUNNING":
            watched.seen, watched.answered = began, time.monotonic()
        return found

    def suspended_s(self, job: OurJob) -> float | None:
        """For how many seconds a watched job was suspended in all, as sacct has it; None where it does not say."""
        return self.queries.suspended_s(job, self._jobs[job].submitted)

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

    def look_no_more(self) -> None:
        """End the question that hangs, if one does: it would outlive this process."""
        self.queries.ask_no_more()
        if (query := self._query) is not None:
            query.done(time.monotonic() - query.began + _KILLED_S)

    def _look(self) -> None:
        """Ask for all jobs at once: squeue first, sacct for those it no longer lists; whether it is there, for none."""
        began = time.monotonic()
        jobs = dict(list(self._jobs.items()))
        wanted = {job: watched for job, watched in jobs.items() if watched.status.alive}
        if not wanted:
            _, error = self.queries.answer(["sinfo", "--noheader", "--format=%P"])
            self.controller.note_answer(error, began)
            return
        was_silent = self.controller.was_silent
        # A controller that is back may have others for alive than before.
        asked = {job.id: None for job in (jobs if was_silent or self.controller.is_just_back else wanted)}
        rows, squeue_error = self.queries.squeue(f"--jobs={','.join(asked)}")
        took_s = time.monotonic() - began
        self.controller.note_answer(squeue_error, began)
        self._cancel_what_is_over(jobs, rows)
        before = [watched.status for watched in wanted.values()]
        missing = self._take_rows(wanted, rows, began)
        strangers = {row.job_id: row for row in rows}
        self._end_what_closes(wanted, began)
        sacct_error = self._take_ends(missing) if missing else ""
        for job, watched in wanted.items():
            watched.missing = job in missing and not self.controller.was_silent
        for job, watched in missing.items():
            if job.id in strangers:
                watched.lose_to(strangers[job.id])
                if watched.seen == NEVER:  # what sbatch printed was not its id: it may be there under another
                    self.strays.append(watched.identity)
            elif self.controller.was_silent and watched.status.state is not JobState.PENDING:
                # Silence says nothing of it. What counts is how long Slurm, when it speaks, does not know it.
                watched.answered = time.monotonic()
            elif time.monotonic() - watched.answered > (SILENCE_S if self.controller.was_silent else PATIENCE_S):
                why = squeue_error or sacct_error or "neither squeue nor sacct lists it"
                watched.status = JobStatus(state=JobState.LOST, reason=why)
        changed = before != [watched.status for watched in wanted.values()]
        # Whoever asks a silent controller waits half a minute each time, and has runs to look after.
        self._rhythm.asked(changed=changed, last=self._all_end, took_s=took_s if self.controller.was_silent else 0.0)

    def _cancel_what_is_over(self, jobs: Mapping[OurJob, WatchedJob], rows: Sequence[JobRow]) -> None:
        """Cancel jobs whose runs were over a while ago, and which the controller takes for alive."""
        now = time.monotonic()
        revived = [
            row.job_id for job, watched in jobs.items() for row in rows
            if watched.over is not None and now - watched.over > _LEAVING_S and row.job_id == job.id
            and watched.is_shown(row) and row.status.alive and row.status.word != "COMPLETING"
        ]  # fmt: skip
        if not revived:
            return
        try:
            self.queries.run(["scancel", *revived])
        except ClusterError as error:
            self.notes.append(f"Slurm takes job {', '.join(revived)} for alive, whose run is over: {error}")
        else:
            self.notes.append(f"cancelled: job {', '.join(revived)}, whose run is over, and which Slurm took for alive")

    def _take_rows(
        self, wanted: Mapping[OurJob, WatchedJob], rows: Sequence[JobRow], began: float
    ) -> dict[OurJob, WatchedJob]:
        """Believe squeue about our jobs; return those that it does not show."""
        ours = {
            job: (watched, row) for job, watched in wanted.items() for row in rows
            if row.job_id == job.id and watched.is_shown(row)
        }  # fmt: skip
        for watched, row in ours.values():
            self._say_if_rewritten(watched, row)
            watched.submitted, watched.comment = row.submitted, row.comment
            watched.seen, watched.answered = began, time.monotonic()
            watched.closing = (watched.closing or began) if row.status.word == "COMPLETING" else None
        # Before anybody sees that they have ended.
        if ended := {job.id: watched for job, (watched, row) in ours.items() if not row.status.alive}:
            found = self.queries.marks({job_id: watched.submitted for job_id, watched in ended.items()})
            for job_id, marks in found.items():
                ended[job_id].marks = marks
        for watched, row in ours.values():
            watched.status = self._explained(watched, row.status)
        return {job: watched for job, watched in wanted.items() if job not in ours}

    def _say_if_rewritten(self, watched: WatchedJob, row: JobRow) -> None:
        if watched.comment is None and row.was_rewritten(watched.identity):
            self.notes.append(
                f"Slurm job {row.job_id}: its comment is {plain(row.comment)!r} instead of {watched.identity.token!r} "
                "(does a job_submit plugin rewrite it?); it is known by its script"
            )

    def _end_what_closes(self, jobs: Mapping[OurJob, WatchedJob], now: float) -> None:
        """Take jobs for ended that have been closed for too long, in the way that sacct knows, if it does."""
        stuck = {job: each for job, each in jobs.items() if each.closing is not None and now - each.closing > CLOSING_S}
        if not stuck:
            return
        self._take_ends(stuck)
        for watched in stuck.values():
            why = f"Slurm has been closing it for {CLOSING_S:.0f} s (see squeue: a process or an epilog does not end)"
            watched.status = replace(watched.status, state=JobState.FAILED, reason=why)

    def _take_ends(self, missing: dict[OurJob, WatchedJob]) -> str:
        """Believe sacct about ends, take those jobs out of `missing`, and return why it failed, if it did.

        It lags behind by seconds, so its "still running" is believed only until squeue's silence lasts.
        """
        rows, error = self.queries.sacct(f"--jobs={','.join(job.id for job in missing)}")
        for row in rows:
            for job, watched in list(missing.items()):
                if row.job_id != job.id or not row.ends(watched.identity, watched.submitted, watched.comment):
                    continue
                watched.answered = time.monotonic()
                if not row.status.alive:
                    watched.status = self._explained(watched, row.status)
                    del missing[job]
        return error

    def find(self, identity: JobIdentity) -> str | None:
        """Find a job that Slurm has taken without saying so, and that is not watched yet; None where there is none.

        Raises:
            ClusterError: Slurm does not answer.
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
        """Cancel watched jobs, all at once: one that is gone is not an error, one of another user is left alone.

        Raises:
            ClusterError: they could not be seen to be ours, or not be cancelled.
        """
        if jobs and (ours := self._alive(jobs)):
            self.queries.run(["scancel", *ours])

    def cancel_waiting(self, job: OurJob) -> None:
        """Cancel a watched job if it waits in the queue; one that has begun is left alone.

        Raises:
            ClusterError: it could not be seen to be ours, or not be cancelled.
        """
        if ours := self._alive([job]):
            self.queries.run(["scancel", "--state=PENDING", *ours])
            self._rhythm.stir()

    def _alive(self, jobs: Sequence[OurJob]) -> list[str]:
        """Ids of those jobs that Slurm shows alive now, and that are ours."""
        rows, error = self.queries.squeue(f"--jobs={','.join(job.id for job in jobs)}")
        ours = [
            job.id for job in jobs for row in rows
            if row.job_id == job.id and row.status.alive and job in self._jobs and self._jobs[job].is_shown(row)
        ]  # fmt: skip
        if not ours and error and "Invalid job id" not in error:
            raise ClusterError(f"it is unknown whether it is still ours ({error})")
        return ours

    def cancel_strays(self) -> list[str]:
        """Cancel the strays that have shown themselves since; return their ids.

        Raises:
            ClusterError: Slurm does not answer.
        """
        found = [self.watch(job_id, stray) for stray in self.strays if (job_id := self.find(stray)) is not None]
        self.cancel(*found)
        return [job.id for job in found]

    def _explained(self, watched: WatchedJob, status: JobStatus) -> JobStatus:
        """Say which node it was that failed, or that refused to start the job, while Slurm still shows it.

        slurmd refuses a job whose id it knows from a start that the controller has forgotten, and cancels it.
        """
        unasked = status.state is JobState.CANCELLED and watched.over is None
        if not status.nodelist or not (unasked or status.state is JobState.NODE_FAIL):
            return status
        ill = self.queries.ill_nodes(status.nodelist)
        bad = told_of(ill)
        if unasked and REFUSED not in bad:
            return status
        state = JobState.LOST if unasked else status.state
        failed = tuple(dict.fromkeys(node.name for node in ill if node.has_failed and not unasked))
        return replace(status, state=state, reason="; ".join(filter(None, (status.reason, bad))), failed=failed)
