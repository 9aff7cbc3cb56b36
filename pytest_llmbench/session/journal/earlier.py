"""Remains of the earlier processes of a session: records to keep, jobs to adopt, and everything else to put aside.

A session is resumed in its own folder, under its own token. So jobs that still run find the sign of life that they
look for, and their logs have the tokens that are expected of them.
"""

import os
import shutil
import socket
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from pytest_llmbench.cluster.executors import let_begin
from pytest_llmbench.cluster.heartbeat import PERIOD_S, write_stop
from pytest_llmbench.cluster.jobs import SlurmJob
from pytest_llmbench.cluster.runs import Plan, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.slurm.queries import JobMarks, SlurmQueries
from pytest_llmbench.cluster.slurm.queue import Slurm
from pytest_llmbench.cluster.slurm.states import JobIdentity, OurJob
from pytest_llmbench.core.errors import ClusterError, ConfigError
from pytest_llmbench.core.files import make_folder, write_text
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.wire import layout
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


@dataclass(frozen=True, kw_only=True)
class LeftJob:
    """A Slurm job that an earlier process submitted, or was about to.

    Attributes:
        name: key of its run, or `allocation`.
        plan: digest of the run's plan; empty for the job that holds nodes.
        job_id: empty if unknown.
        submitted: Unix time.
    """

    name: str
    plan: str
    identity: JobIdentity
    job_id: str
    submitted: float

    def is_of(self, run: RunSpec, settings: Settings) -> bool:
        """True if the job is the run's own, and can be adopted."""
        return settings.runs_are_jobs and self.name == run.key and self.plan == digest_of_plan(run, settings)


class Earlier:
    """The remains of a session's earlier processes.

    Attributes:
        journal: open, which keeps other processes out.
        orphaned: the session's jobs may have ended themselves, after its silence or at its request.
    """

    def __init__(self, session: Session, journal: Journal, *, orphaned: bool) -> None:
        self.journal = journal
        self.orphaned = orphaned
        self._session = session
        self._submitting: dict[str, JournalEvent] = {}
        self._job_ids: dict[str, str] = {}
        self._digests: dict[str, str] = {}
        for event in journal.earlier:
            if event.event == "submitting":
                self._submitting[event.name] = event
                self._job_ids.pop(event.name, None)
            elif event.event == "submitted":
                self._job_ids[event.name] = event.job_id
            elif event.event == "finished":
                self._digests[event.name] = event.record

    @property
    def submitted(self) -> set[OurJob]:
        """All jobs that earlier processes submitted, by the journal."""
        jobs, identities = set(), dict[str, JobIdentity]()
        for event in self.journal.earlier:
            if event.event == "submitting" and event.job:
                identities[event.name] = self._identity(event)
            elif event.event == "submitted" and event.name in identities:
                jobs.add(OurJob(event.job_id, identities[event.name]))
        return jobs

    def not_selected(self, plan: Plan) -> int:
        """Number of tests of the first process that are missing in a plan."""
        first = next((event.tests for event in self.journal.earlier if event.event == "began"), ())
        return len(set(first) - {test.test for test in plan.tests})

    @property
    def jobs(self) -> Iterator[LeftJob]:
        """The jobs that may still be there."""
        for name, event in self._submitting.items():
            if event.job:
                yield LeftJob(
                    name=name, plan=event.plan, identity=self._identity(event), job_id=self._job_ids.get(name, ""),
                    submitted=event.at,
                )  # fmt: skip

    def counts(self, plan: Plan, settings: Settings) -> tuple[int, int, int]:
        """Numbers of runs of a plan with a final record, with a job to look for, and the others."""
        left = [run for run in plan.runs if not isinstance(self.finished(run, settings), RunRecord)]
        jobs = {job.name: job for job in self.jobs}
        adoptable = sum(run.key in jobs and jobs[run.key].is_of(run, settings) for run in left)
        return len(plan.runs) - len(left), adoptable, len(left) - adoptable

    def finished(self, run: RunSpec, settings: Settings) -> RunRecord | str:
        """The final record of a run of the same plan, with the thresholds of today; else the reason, perhaps empty.

        Half a record is none: it was renamed into place whole, and has the digest that the journal has.
        """
        path, submitted = self._session.run_folder(run.key) / layout.EARLIER, self._submitting.get(run.key)
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
        return JobIdentity(token=self._session.token, name=event.job, script=event.script)

    def put_aside(self, key: str) -> None:
        """Move the files of an earlier attempt at a run out of the way."""
        put_aside(self._session, self._session.run_folder(key))


def put_aside(session: Session, folder: Path) -> Path | None:
    """Move the files of an attempt out of the way of later ones; return their new folder, None without files."""
    if not folder.exists():
        return None
    attempts = session.folder / layout.SUPERSEDED
    make_folder(attempts)
    number = sum(path.name.rpartition(".")[0] == folder.name for path in attempts.iterdir()) + 1
    return folder.rename(attempts / f"{folder.name}.{number}")


def session_to_resume(run_dir: Path, which: str) -> Session:
    """Find a session by its id or folder, or the newest unfinished one. Raises ConfigError: there is none."""
    if which != layout.NEWEST:
        folder = next((path for path in (run_dir / which, Path(which)) if (path / layout.JOURNAL).is_file()), None)
        if folder is None:
            raise ConfigError(
                f"--resume {which}: neither a session of {run_dir} nor the folder of one with a journal; give "
                "--llmbench-run-dir, or --resume alone, behind the tests, for the newest that did not end"
            )
        return session_of(folder.absolute())
    folders = sessions_in(run_dir) if run_dir.is_dir() else []
    folder = next((folder for folder in folders if _may_go_on(folder)), None)
    if folder is None:
        raise ConfigError(
            f"--resume: no session in {run_dir} is left to resume: give its --llmbench-run-dir, or leave --resume out"
        )
    return session_of(folder)


def _may_go_on(folder: Path) -> bool:
    try:
        return not has_ended(folder)
    except ConfigError:
        return True


def take_over(session: Session, cluster: str) -> Earlier:
    """Become the owner of a session whose process has died.

    Raises:
        ConfigError: it lives, or has ended, or its runs were on another cluster, or its journal is damaged.
    """
    path = session.folder / layout.JOURNAL
    try:
        journal = Journal(path)
    except OwnedError as error:
        raise _alive_error(session, read_events(session.folder)) from error
    try:
        return _become_owner(session, cluster, journal)
    except BaseException:
        journal.close()
        raise


def _become_owner(session: Session, cluster: str, journal: Journal) -> Earlier:
    events = journal.earlier
    if events and events[-1].event == "ended":
        raise ConfigError(f"--resume: session {session.id} has ended; to judge it again: --replay {session.folder}")
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
    asked_to_end = local or stop.exists()
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
    return Earlier(session, journal, orphaned=asked_to_end or silent_s >= borne_s - PERIOD_S)


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
    """Launchers and ranks of a session on this machine: their command lines name its folder."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        ours = f"/{session.folder.name}/".encode() in words and any(
            name in words for name in (b"submitit", b"srun", b"llmbench.")
        )
        if ours and int(path.parent.name) != os.getpid():
            yield int(path.parent.name)


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """Adopts or ends the jobs that an earlier process of the session left, before anything is submitted.

    Attributes:
        wait: waits for the given seconds; true if the session is ending.
        say: called with a line for people.
    """

    earlier: Earlier
    settings: Settings
    slurm: Slurm
    wait: Callable[[float], bool]
    say: Callable[[str], None]

    def adopt(self, waiting: Iterable[PreparedRun], final: Container[str]) -> Iterator[Active]:
        """Yield the runs that wait whose job is there; put aside what is left of the others but the `final`."""
        runs, unwanted = {run.key: run for run in waiting}, []
        self.slurm.past |= self.earlier.submitted
        for job in self.earlier.jobs:
            job_id = job.job_id or self._answer(partial(self.slurm.find, job.identity))
            if job_id is None or job.name in final:
                continue
            watched = self.slurm.watch(job_id, job.identity)
            run = runs.get(job.name)
            if run is not None and job.is_of(run.spec, self.settings):
                yield self._active(run, job, watched)
                del runs[job.name]
            else:
                unwanted.append(watched)
        for key in runs:
            self.earlier.put_aside(key)
        self._answer(partial(self.slurm.cancel, *unwanted))

    def _active(self, run: PreparedRun, job: LeftJob, watched: OurJob) -> Active:
        accepted = let_begin(run.processes.request, watched)
        how = "" if job.job_id else ", found by its token"
        self.say(f"run {run.key}: job {watched.id} of the session's earlier process{how}: adopted")
        return Active(
            run=run, job=SlurmJob(accepted, self.slurm), lease=None, submitted=job.submitted, started=job.submitted,
            launched=time.monotonic() - (time.time() - job.submitted), marks=JobMarks(), orphan=self.earlier.orphaned,
        )  # fmt: skip

    def _answer(self, ask: Callable[[], T | None]) -> T | None:
        """Slurm's answer about the jobs that are left, however long it takes; None if the session ends before."""
        while True:
            try:
                return ask()
            except ClusterError as error:
                self.say(f"waiting for Slurm to tell which jobs are left of the session's earlier process: {error}")
                if self.wait(_AGAIN_S):
                    return None


def describe_dead_session(run_dir: Path) -> str | None:
    """A line about the newest dead session, what it left and how to go on; None if there is no such session."""
    dead = list(_dead_sessions(run_dir))
    if not dead:
        return None
    folder, events = dead[0]
    began = next(event for event in reversed(events) if event.event == "began")
    judged = {event.name for event in events if event.event == "judged"}
    others = f" (and {len(dead) - 1} before it)" if len(dead) > 1 else ""
    remains = _describe_remains(session_of(folder), began)
    return (
        f"session {folder.name}{others} never ended, and its process {began.pid} on {began.host} is gone: "
        f"{len(judged & set(began.tests))} of {len(began.tests)} tests judged, {remains}; "
        f"--resume={folder.name} goes on with it, llmbench prune deletes old ones"
    )


def _dead_sessions(run_dir: Path) -> Iterator[tuple[Path, tuple[JournalEvent, ...]]]:
    """Folder and events of each unfinished session whose process is gone; the newest first."""
    for folder in sessions_in(run_dir, without=layout.VERDICT) if run_dir.is_dir() else ():
        path = folder / layout.JOURNAL
        try:
            events = read_events(folder)
            began = [event for event in events if event.event == "began"]
            if began and events[-1].event != "ended" and not is_owned(path) and _is_gone(began[-1], folder):
                yield folder, events
        except (ConfigError, OSError):  # an error of `--resume` and of `llmbench prune`
            continue


def _is_gone(began: JournalEvent, folder: Path) -> bool:
    if began.host == socket.gethostname():
        return began.pid != os.getpid() and not Path(f"/proc/{began.pid}").exists()
    owner = folder / layout.OWNER
    return not owner.exists() or time.time() - owner.stat().st_mtime > max(_SILENT_S, began.ttl_s)


def _describe_remains(session: Session, began: JournalEvent) -> str:
    if began.cluster != "slurm":
        left = sorted(processes_of(session))
        return f"processes {', '.join(map(str, left))} still run" if left else "no process left"
    queries = SlurmQueries(deque())
    queries.end_within(_ASK_S)
    rows, error = queries.squeue("--me")
    inside = f"{session.folder.resolve()}/"
    ours = [
        f"{row.job_id} ({row.status.word})" for row in rows
        if row.status.alive and (row.comment.split(" ")[0] == session.token or row.script.startswith(inside))
    ]  # fmt: skip
    if error:
        return f"Slurm does not say whether it has jobs ({error})"
    return f"jobs {', '.join(ours)} are still there" if ours else "no job left"
