"""Processes of one run, with one interface: a step, a Slurm job, local processes, or this process."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from pytest_llmbench.cluster.executors import Accepted
from pytest_llmbench.cluster.slurm.queries import SHORT_WAIT_S, describe_nodes
from pytest_llmbench.cluster.slurm.queue import Slurm
from pytest_llmbench.cluster.slurm.states import JobState, JobStatus, OurJob, judge_holder
from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.core.files import make_folder
from pytest_llmbench.core.wire.beginning import result_file
from pytest_llmbench.readers.srun import cancel_reason, failed_node

# The driver of a command gives what it started twice 10 s to end.
_TERMINATE_GRACE_S = 25.0
# Long enough for one more answer of squeue after a step failed.
_HINDSIGHT_S = 3.0
# A controller that is silent when a step fails may have been restarted, and have had the step ended.
_UNSAID_S = 20.0
# Ranks of one run end within a moment of each other, and on busy cores within seconds.
_GONE_S = 10.0


class Job(ABC):
    """One run's processes.

    Attributes:
        job_id: Slurm's job id, or the process id of the launcher.
        hosts: the nodes, known once it runs.
        command: the started processes, for people.
        note: oddities of its start, for people.
        process: the process on this machine that ends with it, if there is one.
    """

    word = "job"
    process: subprocess.Popen[bytes] | None = None

    def __init__(self, job_id: str, hosts: tuple[str, ...], command: str, note: str = "") -> None:
        self.job_id = job_id
        self.hosts = hosts
        self.command = command
        self.note = note

    @property
    def title(self) -> str:
        """The job for people: `job 17`, or `pid 17` of a process on this machine."""
        return f"{self.word} {self.job_id}"

    @abstractmethod
    def status(self) -> JobStatus:
        """Return its state."""

    @abstractmethod
    def cancel(self) -> None:
        """Ask it to end, and return once that is under way."""

    def last_words(self) -> str:
        """Return the launcher's own output about the end; empty if it is silent, or only the ranks have logs."""
        return ""


class JobOnSlurm(Job):
    """Processes in the Slurm job `ours`."""

    def __init__(self, ours: OurJob, slurm: Slurm, hosts: tuple[str, ...], command: str, note: str = "") -> None:
        super().__init__(ours.id, hosts, command, note)
        self.ours = ours
        self._slurm = slurm


class StepJob(JobOnSlurm):
    """An srun step inside a held allocation, started from outside it."""

    def __init__(
        self, command: list[str], *, holder: OurJob, hosts: tuple[str, ...], slurm: Slurm, env: dict[str, str],
        log: Path,
    ) -> None:  # fmt: skip
        super().__init__(holder, slurm, hosts, " ".join(command))
        self._log = log
        self._failed_at: float | None = None
        make_folder(log.parent)
        # Here right before the launch, and in `status` right after it.
        slurm.confirm(holder)
        self._launched = time.monotonic()
        # An earlier launch of the same run may have left output, which is kept as evidence and skipped here.
        self._log_begins = log.stat().st_size if log.exists() else 0
        with log.open("ab") as stderr:
            # A session of its own, so that Ctrl-C at the terminal reaches pytest alone, which then ends it in order.
            self.process = self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stderr, stderr=subprocess.STDOUT,
                env=env, start_new_session=True,
            )  # fmt: skip

    def status(self) -> JobStatus:
        """The step's state, or the allocation's if that has ended."""
        code = self._process.poll()
        if code is None:
            since, self._launched = self._launched, float("-inf")  # asked for once: Slurm may be silent for long
            holder = judge_holder(self._slurm.status(self.ours, since=since))
            if holder.state is JobState.LOST:  # the job's id may be another job's by now
                self.cancel()
            return holder if holder.state in {JobState.LOST, JobState.SUSPENDED} else JobStatus(state=JobState.RUNNING)
        if code != 0:
            return self._judge_failure(code)
        words = self.last_words()
        # srun exits with 0 also when the step's only node is gone.
        return JobStatus(state=JobState.COMPLETED) if failed_node(words) is None else self._describe_end(words, code)

    def _judge_failure(self, code: int) -> JobStatus:
        """Distinguish a failed step from one whose job was taken away or forgotten, as Slurm shows a moment later."""
        now = time.monotonic()
        if self._failed_at is None:
            self._failed_at = now
            self._slurm.refresh(SHORT_WAIT_S)
        holder = judge_holder(self._slurm.status(self.ours))
        if holder.state is JobState.COMPLETED:
            reason = f"its job {self.job_id} ended itself, as it does if pytest gives no sign of life"
            return JobStatus(state=JobState.FAILED, reason=reason)
        if not holder.alive:
            return holder
        since = now - self._failed_at
        unsaid = self._slurm.looking or (self._slurm.silent and since < _UNSAID_S)
        # A restarted controller ends the steps of a job that it has forgotten; the job is lost, or back, in a while.
        if holder.word == "COMPLETING" or since < _HINDSIGHT_S or unsaid or self._slurm.misses(self.ours):
            return JobStatus(state=JobState.RUNNING)
        return self._describe_end(self.last_words(), code)

    def _describe_end(self, words: str, code: int) -> JobStatus:
        """How the step ended while its job goes on, by srun's output; for a failed node, also as Slurm shows it."""
        node, reason = failed_node(words), cancel_reason(words)
        status = JobStatus(state=JobState.FAILED, reason=f"srun exited with {code}")
        if node is not None:
            status = JobStatus(state=JobState.NODE_FAIL, reason="Slurm's word to the step", nodelist=node)
        elif reason is not None:
            states = {"TIME": JobState.TIMEOUT, "NODE": JobState.NODE_FAIL, "PREEMPTION": JobState.PREEMPTED}
            state = next((state for word, state in states.items() if reason.startswith(word)), JobState.CANCELLED)
            status = JobStatus(state=state, reason=f"its step{f': {reason}' if reason else ', and not the whole job'}")
        if status.state is not JobState.NODE_FAIL:
            return status
        ill = self._slurm.queries.ill_nodes(",".join(self.hosts))
        failed = tuple(dict.fromkeys(node.name for node in ill if node.has_failed))
        return replace(status, reason="; ".join(filter(None, (status.reason, describe_nodes(ill)))), failed=failed)

    def cancel(self) -> None:
        """Have srun end its tasks: it forwards SIGTERM, then KillWait, then SIGKILL."""
        # If the session has to end soon, the other half of the time is for the job that holds the nodes.
        grace_s = min(_TERMINATE_GRACE_S, max(0.0, self._slurm.queries.left_s / 2))
        for number, longest_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _TERMINATE_GRACE_S)):
            self._process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(longest_s)
                return
        raise ClusterError(f"process {self._process.pid} does not end")

    def last_words(self) -> str:
        """The output of srun."""
        return _tail(self._log, self._log_begins)


class SlurmJob(JobOnSlurm):
    """A Slurm job of its own, submitted through submitit."""

    def __init__(self, submitted: Accepted, slurm: Slurm) -> None:
        super().__init__(submitted.job, slurm, (), f"sbatch {submitted.script}", submitted.note)
        self._stderr = submitted.stderr
        self._waits = False
        # Written at the end of the first task, whether it returned or raised.
        self._result = result_file(submitted.stderr.parent, self.job_id)
        self._expected = False

    def status(self) -> JobStatus:
        """Slurm's state of the job, asked for once its result file is there; its log shows the start before Slurm."""
        # Of thousands of jobs that wait, each is looked at several times a second: by one look at the disk.
        begun = not self._waits or self._stderr.exists()
        if not self._expected and begun and self._result.exists():
            self._expected = True
            self._slurm.expect(self.ours)
        status = self._slurm.status(self.ours)
        if not self.hosts:
            with contextlib.suppress(ClusterError):  # a command that fails once succeeds on the next look
                self.hosts = self._slurm.hosts(self.ours)
        waited, self._waits = self._waits, status.state is JobState.PENDING
        if self._waits and (begun if waited else self._stderr.exists()):
            return replace(status, state=JobState.RUNNING, reason="")
        return status

    def cancel(self) -> None:
        """Cancel the job."""
        self._slurm.cancel(self.ours)

    def last_words(self) -> str:
        """The output of the batch script and srun."""
        return _tail(self._stderr)


class LocalJob(Job):
    """Processes on this machine, started through submitit."""

    word = "pid"

    def __init__(self, controller: subprocess.Popen[bytes], command: str, log: Path, *, driven: bool = False) -> None:
        super().__init__(str(controller.pid), (socket.gethostname(),), command)
        self._log = log
        self.process = self._controller = controller
        self._driven = driven
        self._seen = set[int]()
        self._whole_at = time.monotonic()

    @property
    def gone(self) -> int:
        """The number of its ranks whose processes ended some seconds ago while others go on; 0 once all have ended."""
        running: set[int] = set()
        with contextlib.suppress(psutil.Error):
            running = {child.pid for child in psutil.Process(self._controller.pid).children()}
        self._seen |= running
        missing = len(self._seen - running) if running else 0
        if not missing:
            self._whole_at = time.monotonic()
        return missing if time.monotonic() - self._whole_at > _GONE_S else 0

    def status(self) -> JobStatus:
        """RUNNING while the controller lives, then COMPLETED: whether the ranks failed is in their own logs."""
        return JobStatus(state=JobState.RUNNING if self._controller.poll() is None else JobState.COMPLETED)

    def cancel(self) -> None:
        """End it, and wait for it: submitit's controller interrupts the ranks, and kills them a second later.

        A driver has to end more than itself. The controller hands SIGTERM on, and then waits without a limit.
        """
        for number in (signal.SIGTERM, signal.SIGINT) if self._driven else (signal.SIGINT,):
            self._controller.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._controller.wait(_TERMINATE_GRACE_S)

    def last_words(self) -> str:
        """The errors of the controller, without those of its interruption."""
        words = _tail(self._log)
        return "" if words.endswith("KeyboardInterrupt") else words


class FinishedJob(Job):
    """A run that was made in this process and has ended."""

    word = "pid"

    def __init__(self, host: str, command: str, error: BaseException | None) -> None:
        super().__init__(str(os.getpid()), (host,), command)
        self._error = error

    def status(self) -> JobStatus:
        """COMPLETED, or FAILED with what was raised."""
        if self._error is None:
            return JobStatus(state=JobState.COMPLETED)
        return JobStatus(state=JobState.FAILED, reason=f"{type(self._error).__name__}: {self._error}")

    def cancel(self) -> None:
        """Return at once, because the run is over."""


def await_an_end(jobs: Iterable[Job], longest_s: float) -> bool:
    """Wait until a process of one of the jobs ends, at most `longest_s` seconds.

    Returns:
        False, at once, if all processes have ended or run elsewhere, or the kernel (before Linux 5.3) lacks pidfds.
    """
    running = [job.process for job in jobs if job.process is not None and job.process.returncode is None]
    ends = select.poll()
    with contextlib.ExitStack() as opened:
        for process in running:
            if process.poll() is not None:  # it ended before this call
                return True
            try:
                descriptor = os.pidfd_open(process.pid)
            except OSError:
                return False
            opened.callback(os.close, descriptor)
            ends.register(descriptor, select.POLLIN)
        if running:
            ends.poll(1000 * longest_s)
    return bool(running)


def end_all(jobs: Sequence[Job], slurm: Slurm) -> None:
    """Ask jobs to end, all at once, and return once that is under way.

    Raises ClusterError if ending one of them failed.
    """
    for job in jobs:
        if isinstance(job, StepJob) and job.process is not None:
            job.process.terminate()  # its `cancel` waits for it
    slurm.cancel(*(job.ours for job in jobs if isinstance(job, SlurmJob)))
    for job in jobs:
        if not isinstance(job, SlurmJob):
            job.cancel()


def _tail(path: Path, begin: int = 0, most: int = 1 << 16) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(begin, file.seek(0, os.SEEK_END) - most))
            data = file.read(most)
    except OSError:
        return ""
    return data.decode("utf-8", errors="replace").strip()
