"""What was started for one run, behind one interface: a step, a Slurm job, local processes, or this process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Protocol

from pytest_llmbench.cluster.executors import Submitted
from pytest_llmbench.cluster.slurm import JobState, JobStatus, Slurm
from pytest_llmbench.core.errors import ClusterError

# The driver of a command gives what it started twice 10 s to end.
_TERMINATE_GRACE_S = 25.0
# Long enough for one more answer of squeue after a step failed.
_HINDSIGHT_S = 3.0


class Job(Protocol):
    """One run's processes.

    Attributes:
        job_id: Slurm's job id, or the process id of the launcher.
        hosts: the nodes, known once it runs.
        command: what was started, for people.
    """

    job_id: str | None
    hosts: tuple[str, ...]
    command: str

    def status(self) -> JobStatus:
        """Return where it stands."""

    def cancel(self) -> None:
        """End it, and return when it is on its way out."""

    def last_words(self) -> str:
        """Return what the launcher itself printed about the end, empty when it said nothing."""


class StepJob:
    """An srun step inside a held allocation, started from outside it."""

    def __init__(
        self,
        command: list[str],
        *,
        job_id: str,
        hosts: tuple[str, ...],
        slurm: Slurm,
        env: dict[str, str],
        log: Path,
    ) -> None:
        self.job_id: str | None = job_id
        self.hosts = hosts
        self.command = " ".join(command)
        self._slurm = slurm
        self._log = log
        self._failed_at: float | None = None
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as stderr:
            # A session of its own, so that Ctrl-C at the terminal reaches pytest alone, which then ends it in order.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )

    def status(self) -> JobStatus:
        """The step's state; when it failed because its allocation went, the allocation's."""
        code = self._process.poll()
        if code is None:
            return JobStatus(state=JobState.RUNNING)
        if code == 0:
            return JobStatus(state=JobState.COMPLETED)
        return self._why_failed(code)

    def _why_failed(self, code: int) -> JobStatus:
        """Tell a step that failed from one whose job was taken away, which Slurm shows a moment later."""
        now = time.monotonic()
        if self._failed_at is None:
            self._failed_at = now
            self._slurm.refresh()
        holder = self._slurm.status(self.job_id or "")
        if holder.state is JobState.COMPLETED:
            reason = f"its job {self.job_id} ended by itself, as it does when pytest gives no sign of life"
            return JobStatus(state=JobState.FAILED, reason=reason)
        if not holder.alive:
            return holder
        if holder.word == "COMPLETING" or now - self._failed_at < _HINDSIGHT_S:
            return JobStatus(state=JobState.RUNNING)
        return JobStatus(state=JobState.FAILED, reason=f"srun exited with {code}")

    def cancel(self) -> None:
        """Have srun end its tasks: it forwards SIGTERM, then KillWait, then SIGKILL."""
        _terminate(self._process)

    def last_words(self) -> str:
        """What srun printed."""
        return _tail(self._log)


class SlurmJob:
    """A Slurm job of its own, submitted through submitit."""

    def __init__(self, submitted: Submitted, slurm: Slurm) -> None:
        self.job_id: str | None = submitted.job_id
        self.hosts: tuple[str, ...] = ()
        self.command = f"sbatch {submitted.script}"
        self._stderr = Path(submitted.job.paths.stderr)
        self._slurm = slurm
        slurm.watch(submitted.job_id)

    def status(self) -> JobStatus:
        """Slurm's word on it; the hosts are filled in as soon as it runs."""
        status = self._slurm.status(self.job_id or "")
        if status.nodelist and not self.hosts:
            with contextlib.suppress(ClusterError):  # a command that fails once succeeds on the next look
                self.hosts = self._slurm.hosts(status.nodelist)
        return status

    def cancel(self) -> None:
        """Cancel the job."""
        self._slurm.cancel(self.job_id or "")

    def last_words(self) -> str:
        """What the batch script and srun printed."""
        return _tail(self._stderr)


class LocalJob:
    """Processes on this machine, started through submitit."""

    def __init__(self, submitted: Submitted, host: str, command: str, *, driven: bool = False) -> None:
        self.job_id: str | None = submitted.job_id
        self.hosts: tuple[str, ...] = (host,)
        self.command = command
        self._job = submitted.job
        self._driven = driven

    def status(self) -> JobStatus:
        """RUNNING while the controller lives. Its exit code says nothing about the ranks: they have to."""
        if not self._job.done():
            return JobStatus(state=JobState.RUNNING)
        return JobStatus(state=JobState.COMPLETED)

    def cancel(self) -> None:
        """End it, and wait for it: submitit's controller interrupts the ranks, and kills them a second later.

        A driver has to end more than itself. The controller hands SIGTERM on, and then waits without a limit.
        """
        if self._driven and not self._job.done():
            os.kill(int(self._job.job_id), signal.SIGTERM)
            self._wait()
        self._job.cancel()
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + _TERMINATE_GRACE_S
        while not self._job.done() and time.monotonic() < deadline:
            time.sleep(0.05)

    def last_words(self) -> str:
        """Nothing: each rank's own stderr is in the logs folder."""
        return ""


class FinishedJob:
    """A run that happened in this process and is over."""

    def __init__(self, host: str, command: str, error: BaseException | None) -> None:
        self.job_id: str | None = str(os.getpid())
        self.hosts: tuple[str, ...] = (host,)
        self.command = command
        self._error = error

    def status(self) -> JobStatus:
        """COMPLETED, or FAILED with what was raised."""
        if self._error is None:
            return JobStatus(state=JobState.COMPLETED)
        return JobStatus(state=JobState.FAILED, reason=f"{type(self._error).__name__}: {self._error}")

    def cancel(self) -> None:
        """Do nothing: it is over."""

    def last_words(self) -> str:
        """Nothing: it printed to this process's own output."""
        return ""


def _terminate(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(_TERMINATE_GRACE_S)
        except subprocess.TimeoutExpired:
            continue
    raise ClusterError(f"process {process.pid} does not end")


def _tail(path: Path, most: int = 1 << 16) -> str:
    try:
        data = path.read_bytes()
    except OSError:
        return ""
    return data[-most:].decode("utf-8", errors="replace").strip()
