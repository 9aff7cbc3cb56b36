"""Remains of the earlier processes of a session: records to keep, jobs to adopt, and everything else to put aside.

A session is resumed in its own folder, under its own token. So jobs that still run find the sign of life that they
look for, and their logs have the tokens that are expected of them.
"""

import contextlib
import os
import shutil
import socket
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil

from pytest_llmbench.cluster.executors import can_begin, let_begin
from pytest_llmbench.cluster.heartbeat import PERIOD_S, write_stop
from pytest_llmbench.cluster.jobs import SlurmJob
from pytest_llmbench.cluster.runs import Plan, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.slurm.queries import JobMarks, SlurmQueries
from pytest_llmbench.cluster.slurm.queue import Slurm
from pytest_llmbench.cluster.slurm.states import JobIdentity, JobRow, OurJob
from pytest_llmbench.core.errors import ClusterError, ConfigError
from pytest_llmbench.core.files import make_folder, write_text
from pytest_llmbench.core.record.records import Problem, RunRecord
from pytest_llmbench.core.wire import layout
from pytest_llmbench.session.ending import began as has_begun
from pytest_llmbench.session.folder import has_ended, read_events, record_files, session_of, sessions_in
from pytest_llmbench.session.following import Active
from pytest_llmbench.session.journal.journal import (
    Journal,
    JournalEvent,
    OwnedError,
    digest_of_plan,
    digest_of_record,
    is_owned,
)
from pytest_llmbench.session.script.prepared import PreparedRun

# Problems of runs that are made once more: they come from outside the run.
_NOT_FINAL = {"session_ended", "not_repeated", "gated"}
# Ranks look for the end of their session every few seconds, and drivers give their scripts 10 s twice.
_END_S = 60.0
_LOOK_S = 0.1
T = TypeVar("T")

_AGAIN_S = 5.0
# A process on another host, whose lock may be invisible here, counts as dead after so long a silence.
_SILENT_S = 300.0
# Most seconds that a new session waits for Slurm's answer about an old one.
_ASK_S = 5.0


class Earlier:
    """The remains of a session's earlier processes.

    Attributes:
        journal: open, which keeps other processes out.
        orphaned: the session's jobs may have ended themselves, after its silence or at its request.
        asked_to_end: the session ended its jobs itself, as after Ctrl-C: none of them goes on.
        submitted: all jobs that earlier processes submitted, by the journal.
    """

    def __init__(self, session: Session, journal: Journal, *, orphaned: bool, asked_to_end: bool) -> None:
        self.journal = journal
        self.orphaned = orphaned
        self.asked_to_end = asked_to_end
        self.submitted: set[OurJob] = set()
        self.session = session
        self._submitting: dict[str, JournalEvent] = {}
        self._job_ids: dict[str, str] = {}
        self._digests: dict[str, str] = {}
        for event in journal.earlier:
            if event.event == "submitting":
                self._submitting[event.name] = event
                self._job_ids.pop(event.name, None)
            elif event.event == "submitted":
                self._job_ids[event.name] = event.job_id
                submitting = self._submitting.get(event.name)
                if submitting is not None and submitting.job:
                    self.submitted.add(OurJob(event.job_id, self._identity(submitting)))
            elif event.event == "finished":
                self._digests[event.name] = event.record

    def not_selected(self, plan: Plan) -> int:
        """Number of tests of the first process that are missing in a plan."""
        first = next((event.tests for event in self.journal.earlier if event.event == "began"), ())
        return len(set(first) - {test.test for test in plan.tests})

    @property
    def jobs(self) -> Iterator[tuple[JournalEvent, JobIdentity, str]]:
        """The jobs that may still be there: event of the submission, identity, and id, which is empty if unknown."""
        for name, event in self._submitting.items():
            if event.job:
                yield event, self._identity(event), self._job_ids.get(name, "")

    def can_adopt(self, run: RunSpec, settings: Settings) -> bool:
        """True if a job that may be there is the run's own, of the same plan."""
        event = self._submitting.get(run.key)
        if event is None or not event.job or not settings.runs_are_jobs or self.asked_to_end:
            return False
        return event.plan == digest_of_plan(run, settings)

    def counts(self, plan: Plan, settings: Settings) -> tuple[int, int, int]:
        """Numbers of runs of a plan with a final record, with a job to look for, and the others."""
        left = [run for run in plan.runs if not isinstance(self.finished(run, settings), RunRecord)]
        adoptable = sum(self.can_adopt(run, settings) for run in left)
        return len(plan.runs) - len(left), adoptable, len(left) - adoptable

    def finished(self, run: RunSpec, settings: Settings) -> RunRecord | str:
        """The final record of a run of the same plan, with the thresholds of today; else the reason, perhaps empty.

        Half a record is none: it was renamed into place whole, and has the digest that the journal has.
        """
        path, submitted = self.session.run_folder(run.key) / layout.EARLIER, self._submitting.get(run.key)
        if submitted is None or not path.exists():
            return ""
        try:
            record = RunRecord.read(path)
        except ConfigError as error:
            return f"its record cannot be read: {error}"
        if self._digests.get(run.key, "") not in {"", digest_of_record(record)}:
            return f"its record is not the one that was written: {path}"
        if record.problem is not None and record.problem.kind in _NOT_FINAL:
            return ""
        if submitted.plan != digest_of_plan(run, settings):
            return "its plan has changed"
        return record.model_copy(update={"recipe": run.recipe, "judgements": ()})

    def _identity(self, event: JournalEvent) -> JobIdentity:
        return JobIdentity(token=self.session.token, name=event.job, script=event.script)

    def explains(self, problem: Problem, active: Active) -> bool:
        """True if the problem of an adopted run may follow from the death of the process that launched it.

        Its job may have ended itself, with any problem. One that waited in the queue was cancelled by the watchman.
        """
        before_its_start = not has_begun(active.run.place.folder) and not active.was_pending
        return self.orphaned or (problem.kind == "job_cancelled" and before_its_start)


def put_aside(session: Session, folder: Path) -> Path | None:
    """Move the files of an attempt out of the way of later ones; return their new folder, None without files."""
    if not folder.exists():
        return None
    attempts = session.folder / layout.SUPERSEDED
    make_folder(attempts)
    number = sum(path.name.rpartition(".")[0] == folder.name for path in attempts.iterdir()) + 1
    return folder.rename(attempts / f"{folder.name}.{number}")


def session_to_resume(run_dir: Path, which: str) -> Session:
    """Find a session by its id or folder, or the newest unfinished one. Raises ConfigError: none is found."""
    if which != layout.NEWEST:
        folder = next((path for path in (run_dir / which, Path(which)) if (path / layout.JOURNAL).is_file()), None)
        if folder is None:
            raise ConfigError(
                f"--resume {which}: neither a session of {run_dir} nor the folder of one with a journal; give "
                "--llmbench-run-dir, or --resume alone, behind the tests, for the newest that did not end"
            )
        return session_of(folder.absolute())
    for folder in sessions_in(run_dir) if run_dir.is_dir() else ():
        with contextlib.suppress(ConfigError):  # a damaged journal is refused below
            if has_ended(folder):
                continue
        return session_of(folder)
    raise ConfigError(
        f"--resume: no session in {run_dir} is left to resume: give its --llmbench-run-dir, or leave --resume out"
    )


def take_over(session: Session, cluster: str) -> Earlier:
    """Become the owner of a session whose process has died.

    Raises ConfigError if it lives or has ended, its runs were on another cluster, its journal is damaged or read-only,
    or its folder is a copy while jobs write into the original.
    """
    path = session.folder / layout.JOURNAL
    try:
        journal = Journal(path)
        try:
            return _become_owner(session, cluster, journal)
        except BaseException:
            journal.close()
            raise
    except OwnedError as error:
        raise _alive_error(session, read_events(session.folder)) from error
    except OSError as error:
        raise ConfigError(
            f"--resume: session {session.id} cannot go on: {error}. Make its folder {session.folder} writable, "
            f"or judge what it has: --replay {session.folder}"
        ) from error


def _become_owner(session: Session, cluster: str, journal: Journal) -> Earlier:
    events = journal.earlier
    if events and events[-1].event == "ended":
        raise ConfigError(f"--resume: session {session.id} has ended; to judge it again: --replay {session.folder}")
    if (original := _original(session, events)) is not None:
        jobs, error = _jobs_of(session)
        if jobs or error:
            where = f"its jobs {', '.join(jobs)} still write" if jobs else f"jobs may still write ({error})"
            raise ConfigError(
                f"--resume: {session.folder} is a copy of {original}, where {where}: go on there (--resume={original})"
            )
    began = [event for event in events if event.event == "began"]
    if began and began[-1].cluster != cluster:
        raise ConfigError(
            f"--resume: session {session.id} has its runs on cluster {began[-1].cluster}, not {cluster}: give the "
            "options that it was begun with"
        )
    if began and (began[-1].host != socket.gethostname() or not journal.is_locked) and _shows_life(session.folder):
        raise _alive_error(session, events)
    owner, stop = session.folder / layout.OWNER, session.folder / layout.STOP
    local = any(event.event == "submitting" and not event.job for event in events)
    # In a copy, no job goes on: what they wrote since is in the original.
    asked_to_end = local or stop.exists() or original is not None
    # Both are times of one file server: the clocks of hosts may differ.
    before = owner.stat().st_mtime if owner.exists() else 0.0
    if local:
        _end_what_runs(session)
    write_text(owner, f"resumed {time.time_ns()}\n")  # unlike that of another resume
    borne_s = min((event.ttl_s for event in began), default=0.0)
    silent_s = owner.stat().st_mtime - before
    for record in record_files(session.folder, "run"):
        record.rename(record.with_name(layout.EARLIER))  # hidden from tests until it has proved to be final
    put_aside(session, session.folder / layout.FOLDERS["check"])  # nodes are checked again: they may be others
    shutil.rmtree(session.folder / layout.REPEATS, ignore_errors=True)
    for left in (stop, session.folder / layout.WORKERS_PLAN):
        left.unlink(missing_ok=True)
    orphaned = asked_to_end or silent_s >= borne_s - PERIOD_S
    return Earlier(session, journal, orphaned=orphaned, asked_to_end=asked_to_end)


def _original(session: Session, events: Iterable[JournalEvent]) -> Path | None:
    """The folder that a session's folder is a copy of, by the scripts of its jobs; None where it was only moved."""
    own = session.folder / layout.JOURNAL
    for script in (Path(event.script) for event in events if event.script):
        folder = next((path for path in script.parents if os.path.isfile(path / layout.JOURNAL)), None)  # noqa: PTH113
        if folder is not None:
            other = not own.samefile(folder / layout.JOURNAL) and session_of(folder).id == session.id
            return folder if other else None
    return None


def _alive_error(session: Session, events: tuple[JournalEvent, ...]) -> ConfigError:
    began = next((event for event in reversed(events) if event.event == "began"), None)
    who = f"process {began.pid} on {began.host}" if began is not None else "another process, which is just beginning"
    return ConfigError(
        f"--resume: session {session.id} still lives ({who}): wait for its end, or end that process first"
    )


def _shows_life(folder: Path) -> bool:
    def sign() -> bytes:
        try:
            return (folder / layout.OWNER).read_bytes()
        except OSError:
            return b""

    first, deadline = sign(), time.monotonic() + 2.5 * PERIOD_S
    while time.monotonic() < deadline and not (folder / layout.STOP).exists():
        if sign() != first:
            return True
        time.sleep(_LOOK_S)
    return False


def _end_what_runs(session: Session) -> None:
    """End the processes on this machine and wait: the next run needs the machine for itself."""
    write_stop(session.folder, "another process takes the session on")
    deadline = time.monotonic() + _END_S
    while left := list(processes_of(session)):
        if time.monotonic() > deadline:
            raise ConfigError(f"--resume: processes {left} of session {session.id} do not end: end them first")
        time.sleep(_LOOK_S)


def processes_of(session: Session) -> Iterator[int]:
    """Launchers and ranks of a session on this machine, found by the path of its folder in their command lines."""
    places = [f"{folder}/" for folder in {session.folder.absolute(), session.folder.resolve()}]
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or ())
        ours = any(place in words for place in places) and any(
            name in words for name in ("submitit", "srun", "llmbench.")
        )
        if ours and process.pid != os.getpid():
            yield process.pid


def adopt(
    earlier: Earlier, settings: Settings, slurm: Slurm, waiting: Iterable[PreparedRun], final: Container[str], *,
    wait: Callable[[float], bool], say: Callable[[str], None],
) -> Iterator[Active]:  # fmt: skip
    """Yield the waiting runs whose job is there; cancel other jobs, and put aside what is left of the other runs.

    Nothing was submitted so far. Runs in `final` have a record; `wait` returns true if the session is ending.
    """

    def answer(ask: Callable[[], T | None]) -> T | None:
        """Slurm's answer, however long it takes; None if the session ends before."""
        while True:
            try:
                return ask()
            except ClusterError as error:
                say(f"waiting for Slurm's list of the jobs that the session's earlier process left: {error}")
                if wait(_AGAIN_S):
                    return None

    runs, unwanted = {run.key: run for run in waiting}, []
    slurm.past |= earlier.submitted
    for submitting, identity, known_id in earlier.jobs:
        job_id = known_id or answer(partial(slurm.find, identity))
        if job_id is None or submitting.name in final:
            continue
        watched = slurm.watch(job_id, identity)
        run = runs.get(submitting.name)
        if run is None or not earlier.can_adopt(run.spec, settings):
            unwanted.append(watched)
            continue
        if not can_begin(run.processes.request, job_id):
            say(f"run {run.key} is made again: files of its job {job_id} are gone from {run.processes.request.folder}")
            unwanted.append(watched)
            continue
        accepted, submitted = let_begin(run.processes.request, watched), submitting.at
        how = "" if known_id else ", found by its token"
        say(f"run {run.key}: job {watched.id} of the session's earlier process{how}: adopted")
        yield Active(
            run=run, job=SlurmJob(accepted, slurm), lease=None, submitted=submitted, started=submitted,
            marks=JobMarks(), adopted=True,
        )  # fmt: skip
        del runs[run.key]
    for key in runs:
        put_aside(earlier.session, earlier.session.run_folder(key))
    answer(partial(slurm.cancel, *unwanted))


def describe_dead_session(run_dir: Path) -> str | None:
    """A line about the newest killed session: its remains, and how to resume it; None without one."""
    dead = []
    for folder in sessions_in(run_dir, without=layout.VERDICT) if run_dir.is_dir() else ():
        with contextlib.suppress(ConfigError, OSError):  # errors of `--resume` and of `llmbench prune`
            events = read_events(folder)
            began = next((event for event in reversed(events) if event.event == "began"), None)
            ended = began is None or events[-1].event == "ended"
            if began is not None and not ended and not is_owned(folder / layout.JOURNAL) and _is_gone(began, folder):
                dead.append((folder, began, {event.name for event in events if event.event == "judged"}))
    if not dead:
        return None
    folder, began, judged = dead[0]
    others = f" (and {len(dead) - 1} before it)" if len(dead) > 1 else ""
    return (
        f"session {folder.name}{others} never ended, and its process {began.pid} on {began.host} is gone: "
        f"{len(judged & set(began.tests))} of {len(began.tests)} tests judged, "
        f"{_describe_remains(session_of(folder), began)}; "
        f"--resume={folder.name} goes on with it, llmbench prune deletes old ones"
    )


def _is_gone(began: JournalEvent, folder: Path) -> bool:
    if began.host == socket.gethostname():
        return began.pid != os.getpid() and not psutil.pid_exists(began.pid)
    owner = folder / layout.OWNER
    return not owner.exists() or time.time() - owner.stat().st_mtime > max(_SILENT_S, began.ttl_s)


def _describe_remains(session: Session, began: JournalEvent) -> str:
    if began.cluster != "slurm":
        left = sorted(processes_of(session))
        return f"processes {', '.join(map(str, left))} still run" if left else "no process left"
    ours, error = _jobs_of(session)
    if error:
        return f"Slurm does not report whether it has jobs ({error})"
    return f"jobs {', '.join(ours)} are still there" if ours else "no job left"


def _jobs_of(session: Session) -> tuple[list[str], str]:
    rows, error = jobs_of_user()
    return jobs_in(rows, session), error


def jobs_of_user() -> tuple[list[JobRow], str]:
    """The jobs of this user in the queue, and the reason if Slurm does not answer."""
    queries = SlurmQueries(deque())
    queries.end_within(_ASK_S)
    return queries.squeue("--me")


def jobs_in(rows: Iterable[JobRow], session: Session) -> list[str]:
    """Those of a session, for people."""
    inside = f"{session.folder.resolve()}/"
    return [
        f"{row.job_id} ({row.status.word})" for row in rows
        if row.status.alive and (row.comment.split(" ")[0] == session.token or row.script.startswith(inside))
    ]  # fmt: skip
