"""Allocations: the sources of the nodes on which a session launches its runs."""

import math
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_llmbench.cluster.executors import JobRequest, sbatch_script, submit_slurm
from pytest_llmbench.cluster.heartbeat import Heartbeat
from pytest_llmbench.cluster.quarantine import read_quarantine
from pytest_llmbench.cluster.settings import Settings, existing_allocation
from pytest_llmbench.cluster.slurm.commands import NoAnswerError, QueueFullError
from pytest_llmbench.cluster.slurm.full_queue import QueueLimit
from pytest_llmbench.cluster.slurm.queue import Slurm
from pytest_llmbench.cluster.slurm.states import JobIdentity, JobState, JobStatus, OurJob, judge_holder
from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.core.wire.task import Owner
from pytest_llmbench.workloads.node.machine_lock import holders, is_held, take
from pytest_llmbench.workloads.rank.deadman import hold


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """The reason why nodes are still awaited, such as `Priority`."""

    reason: str
    # Unix time at which Slurm expects to start the job that will hold the nodes; None if unknown.
    starts: float | None = None


class JobEndedError(ClusterError):
    """The job that holds the session's nodes is over; `status` is how it ended."""

    def __init__(self, job_id: str, status: JobStatus, log: Path | None = None) -> None:
        super().__init__(describe_end(job_id, status, log))
        self.status = status


class Allocation:
    """The source of the nodes of runs, and the base of those that hold nodes; here every run is a Slurm job of its own.

    Attributes:
        job: the Slurm job that holds the nodes, if one does.
        note: oddities of its start, for people.
    """

    job: OurJob | None = None
    note = ""

    @property
    def job_id(self) -> str | None:
        """The id of the job that holds the nodes, if one does."""
        return None if self.job is None else self.job.id

    def start(self) -> None:
        """Ask for the nodes; return without waiting for them. Raises ClusterError: Slurm refuses the request."""

    def hosts(self) -> tuple[str, ...] | Waiting | None:
        """The nodes held; Waiting until they are there; None when each run brings its own.

        Raises ClusterError if the allocation is lost, or its job can never start.
        """
        return None

    def ends_at(self) -> float:
        """Unix time at which Slurm takes the nodes back, once they are there; infinite unless a job holds them."""
        return math.inf

    def release(self) -> None:
        """Give the nodes back. Jobs of other users are left alone."""


class HeldJob(Allocation):
    """A Slurm job that only holds nodes, as its `request` asks. It ends itself when its owner falls silent."""

    def __init__(
        self, request: JobRequest, heartbeat: Heartbeat, slurm: Slurm, max_wait_min: int | None = None
    ) -> None:
        self._limit = QueueLimit(slurm, max_wait_min)
        self._log: Path | None = None
        self.request = request
        self._heartbeat = heartbeat
        self._slurm = slurm
        self._hosts: tuple[str, ...] = ()

    def start(self) -> None:
        """Submit the holder."""
        try:
            submitted = submit_slurm(
                self._slurm, self.request, hold, str(self._heartbeat.path), self._heartbeat.ttl_s, seen=True
            )
        except ClusterError as error:
            raise refusal(error, self.request, self._slurm) from error
        self.job, self.note, self._log = submitted.job, submitted.note, submitted.stderr

    def hosts(self) -> tuple[str, ...] | Waiting:
        """The job's nodes while it runs."""
        if self.job is None:
            return Waiting(reason="its job is not submitted yet")
        job_id, status = self.job.id, self._slurm.status(self.job)
        if self._hosts and (judged := judge_holder(status)) is not status:
            lost_script = judged.state is JobState.NODE_FAIL  # which lies on the first node
            status = replace(judged, nodelist=self._hosts[0], failed=self._hosts[:1]) if lost_script else judged
        if status.state is JobState.RUNNING:
            try:
                self._hosts = self._hosts or self._slurm.hosts(self.job)
            except ClusterError as error:  # a command that fails once succeeds on the next look
                return Waiting(reason=str(error))
            if self._hosts:
                return self._hosts
        if status.alive:
            if why := self._limit.why_never(job_id, status.reason):
                raise ClusterError(f"Slurm job {job_id} will never start: {why}")
            gone = self._slurm.queries.unavailable() if "DOWN" in status.reason or "Resources" in status.reason else ""
            if not self._hosts:
                self._limit.enforce(self.job)
            reason = f"{status.reason or 'no reason given'}{f'; not available: {gone}' if gone else ''}"
            return Waiting(reason=f"job {job_id} {status.word or 'PENDING'} ({reason})", starts=status.starts)
        if not self._hosts and (reason := self._limit.reason_of_end(self.job, status)):
            raise ClusterError(reason)
        raise JobEndedError(job_id, status, self._log)

    def ends_at(self) -> float:
        """Unix time at which the requested time limit is over, counted from now."""
        return time.time() + 60.0 * self.request.time_min

    def release(self) -> None:
        """Cancel the holder."""
        if self.job is not None:
            self._slurm.let_go(self.job)
            self._slurm.cancel(self.job)


class ExistingJob(Allocation):
    """The user's Slurm job (salloc, sbatch) in which pytest runs. It is never cancelled."""

    def __init__(self, settings: Settings, slurm: Slurm) -> None:
        self._settings = settings
        self._slurm = slurm
        self._hosts: tuple[str, ...] = ()

    def start(self) -> None:
        """Look up the job's nodes."""
        # The user's job lacks our token: it is recognised by its user and by the submit time that is seen first.
        identity = JobIdentity(uid=os.environ.get("SLURM_JOB_UID") or str(os.getuid()))
        self.job = self._slurm.watch(existing_allocation() or "", identity)
        self._slurm.confirm(self.job)
        barred = read_quarantine(self._settings.quarantine)
        every = self._slurm.hosts(self.job)
        hosts = tuple(host for host in every if host not in barred)
        asked = self._settings.nodes or len(hosts)
        if asked > len(hosts):
            where = f"in quarantine ({self._settings.quarantine})"
            left_out = "".join(f", without {host}, {where}" for host in every if host in barred)
            raise ClusterError(
                f"--nodes {asked}, but this Slurm job {self.job_id} has {len(hosts)} nodes ({', '.join(hosts)})"
                f"{left_out}: give --nodes {len(hosts)} or less, or a larger allocation"
            )
        self._hosts = hosts[:asked]

    def hosts(self) -> tuple[str, ...] | Waiting:
        """The job's first `--nodes` nodes."""
        if self.job is None:
            return Waiting(reason="its nodes are not known yet")
        status = self._slurm.status(self.job)
        if not status.alive:
            raise JobEndedError(self.job.id, status)
        if status.state is JobState.SUSPENDED:
            return Waiting(reason=f"job {self.job_id} {status.word}")
        return self._hosts

    def ends_at(self) -> float:
        """Unix time in `SLURM_JOB_END_TIME`; infinite where that is missing."""
        text = os.environ.get("SLURM_JOB_END_TIME", "")
        return float(text) if text.isdecimal() else math.inf


class ThisHost(Allocation):
    """This machine. A lock lets one session at a time measure on it, because two would share its cores.

    The session holds the first lock, and its ranks hold the second, because they outlive a session that is killed.
    """

    def __init__(self) -> None:
        self._lock: int | None = None

    def hosts(self) -> tuple[str, ...] | Waiting:
        """This host, as soon as other sessions and the ranks that they left behind are gone from it.

        Raises ClusterError if opening a lock fails.
        """
        own, ranks = _lock_file("this-host"), _lock_file("ranks")
        try:
            if self._lock is None:
                self._lock = take(own)
                if self._lock is None:
                    return Waiting(reason=f"another session measures on this machine{_processes(own)}")
                if is_held(ranks):
                    self.release()
                    who = f"ranks of a session that was killed still run on this machine{_processes(ranks)}"
                    return Waiting(reason=f"{who}; they end themselves soon")
        except OSError as error:
            raise ClusterError(
                f"{error.filename}: {error.strerror}. It shows whether another session measures on this machine: let "
                "its owner delete it, or let everybody read it (chmod a+r)"
            ) from error
        return (socket.gethostname(),)

    def release(self) -> None:
        """Let the next session measure."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def owner_of(settings: Settings, heartbeat: Heartbeat) -> Owner | None:
    """Name the owner of a session's ranks; None if they run in pytest's own process."""
    if settings.cluster == "debug":
        return None
    lock = _lock_file("ranks") if settings.cluster == "local" else None  # Slurm keeps sessions apart
    return Owner(path=heartbeat.path, ttl_s=heartbeat.ttl_s, machine_lock=lock)


def _lock_file(what: str) -> Path:
    #: variable TMPDIR: folder of `llmbench-this-host.lock` and `llmbench-ranks.lock`, by which one session at a time
    #:  measures on this machine
    return Path(tempfile.gettempdir()) / f"llmbench-{what}.lock"


def _processes(lock: Path) -> str:
    pids = [pid for pid in holders(lock) if pid > 0 and pid != os.getpid()]
    return f" (process {', '.join(map(str, pids[:4]))}{' and others' if len(pids) > 4 else ''})" if pids else ""


def ask_slurm(requests: Iterable[JobRequest]) -> str:
    """Ask Slurm by `sbatch --test-only` whether such jobs can ever start, without submitting them.

    Returns:
        Its answer, for people.

    Raises NoAnswerError if Slurm is missing or silent, and ClusterError if it refuses a request.
    """
    slurm = Slurm()
    if shutil.which("sbatch") is None:
        raise NoAnswerError("Slurm was not asked, as there is no sbatch on PATH")
    with tempfile.TemporaryDirectory(prefix="llmbench-") as folder:
        for request in requests:
            script = Path(folder) / "submission.sh"
            script.write_bytes(os.fsencode(sbatch_script(request)))
            try:
                slurm.controller.test(request.shape, script)
            except ClusterError as error:
                raise refusal(error, request, slurm) from error
    return "Slurm could start that (sbatch --test-only)"


def refusal(error: ClusterError, request: JobRequest, slurm: Slurm) -> ClusterError:
    """The error for a request that failed: the options asked for, Slurm's own words, and the partitions there are."""
    if isinstance(error, QueueFullError):
        return error
    options = {
        "nodes": request.nodes,
        "time": request.time_min,
        "gpus-per-node": request.gpus_per_node,
        **request.slurm,
    }
    asked = " ".join(f"--{name} {value}" for name, value in options.items() if value and name != "comment")
    if isinstance(error, NoAnswerError):
        return type(error)(f"Slurm gave no answer to {asked}: {error}")
    there, gone = slurm.queries.partitions(), slurm.queries.unavailable()
    hints = (f". Partitions here: {there}" if there else "") + (f". Not available: {gone}" if gone else "")
    if any(word in str(error).lower() for word in ("account", "qos")):
        hints = f". `sacctmgr show associations user=$USER` lists yours{hints}"
    return ClusterError(f"Slurm refuses {asked}: {error}{hints}")


def describe_end(job_id: str, status: JobStatus, log: Path | None = None) -> str:
    """Describe how a Slurm job of the session ended, what that means, and what to do about it."""
    meaning = {
        JobState.COMPLETED: "it ended itself, because pytest had given no sign of life for longer than "
        "llmbench_heartbeat_timeout: pytest was stopped, or the file system with the session's folder stood still",
        JobState.CANCELLED: "it was cancelled from outside",
        JobState.TIMEOUT: "it reached its time limit: give a longer --time",
        JobState.NODE_FAIL: f"a node of {status.nodelist or 'the job'} failed: `sinfo -R` and `scontrol show node` "
        "show the reason",
        JobState.PREEMPTED: "a job of higher priority took its nodes: use a --partition or a qos that is not preempted",
        JobState.SUSPENDED: "it was suspended for a while; a rate across a pause is not the hardware's: run it again",
        JobState.OUT_OF_MEMORY: "a task used more memory than it was given",
        JobState.LOST: "it is not used any more",
    }.get(status.state, f"see {log}" if log else "see its log")
    reason = f" ({status.reason})" if status.reason else ""
    how = "was" if status.state is JobState.SUSPENDED else "ended as"
    return f"Slurm job {job_id} {how} {status.word or status.state}{reason}: {meaning}"
