"""Talking to Slurm: one place that runs its commands and reads their answers."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pytest_llmbench.core.errors import ClusterError

_TIMEOUT_S = 60.0
# Slurm may answer nothing for a while (a restart, a fail-over); a job is not lost before this.
PATIENCE_S = 120.0
# One query for all jobs, at most this often: Slurm's controller is a shared service.
_REFRESH_S = 2.0

# A pending job with one of these reasons waits for an administrator, not for nodes.
HOPELESS_REASONS = frozenset(
    {
        "AccountNotAllowed",
        "AssociationJobLimit",
        "BadConstraints",
        "InvalidAccount",
        "InvalidQOS",
        "JobHeldAdmin",
        "JobHeldUser",
        "PartitionInactive",
        "PartitionNodeLimit",
        "PartitionTimeLimit",
        "QOSNotAllowed",
        "launch_failed_requeued_held",
    }
)


class JobState(StrEnum):
    """Slurm's job states, as far as they make a difference to us."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    PREEMPTED = "PREEMPTED"
    LOST = "LOST"


# States of a node, as sinfo begins them.
_UNAVAILABLE = ("down", "drain", "fail", "maint", "unknown", "power", "not_responding", "reboot")
_ALIVE = {JobState.PENDING, JobState.RUNNING}
_STATE_WORDS: Mapping[str, JobState] = {
    **{state.value: state for state in JobState},
    "CONFIGURING": JobState.PENDING,
    "REQUEUED": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,
    "SUSPENDED": JobState.RUNNING,
    "STOPPED": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "STAGE_OUT": JobState.RUNNING,
    "COMPLETING": JobState.RUNNING,
    "BOOT_FAIL": JobState.NODE_FAIL,
    "DEADLINE": JobState.TIMEOUT,
    "REVOKED": JobState.CANCELLED,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStatus:
    """What Slurm says of one job.

    Attributes:
        state: where it stands.
        reason: why it is pending or ended, in Slurm's word.
        nodelist: its nodes in Slurm's notation, empty while it is pending.
        word: the state as Slurm printed it.
    """

    state: JobState
    reason: str = ""
    nodelist: str = ""
    word: str = ""

    @property
    def alive(self) -> bool:
        """Whether the job is still pending or running."""
        return self.state in _ALIVE


def parse_state(word: str) -> JobState:
    """Read a state as squeue or sacct print it (`CANCELLED by 1000`, `COMPLETED+`)."""
    name = word.split(maxsplit=1)[0].rstrip("+") if word.split() else ""
    return _STATE_WORDS.get(name, JobState.LOST)


class Slurm:
    """Slurm's commands, and the last known state of the jobs being watched."""

    def __init__(self) -> None:
        self._known: dict[str, JobStatus] = {}
        self._refreshed = -_REFRESH_S
        self._answered: dict[str, float] = {}

    def watch(self, job_id: str) -> None:
        """Include a job in every refresh from now on."""
        self._known[job_id] = JobStatus(state=JobState.PENDING, reason="just submitted")
        self._answered[job_id] = time.monotonic()

    def status(self, job_id: str) -> JobStatus:
        """Return the last known status of a watched job, asking Slurm if the answer is old."""
        if time.monotonic() - self._refreshed >= _REFRESH_S:
            self.refresh()
        return self._known[job_id]

    def refresh(self) -> None:
        """Ask for every living watched job at once: squeue first, sacct for those it no longer lists."""
        self._refreshed = time.monotonic()
        wanted = [job_id for job_id, status in self._known.items() if status.alive]
        if not wanted:
            return
        found, squeue_error = self._squeue(wanted)
        missing = [job_id for job_id in wanted if job_id not in found]
        sacct_error = ""
        if missing:
            # sacct lags behind by seconds, so its "still running" is believed only until squeue's silence lasts.
            ended, sacct_error = self._sacct(missing)
            found |= ended
        now = time.monotonic()
        for job_id in wanted:
            if job_id in found:
                self._known[job_id], self._answered[job_id] = found[job_id], now
            elif now - self._answered[job_id] > PATIENCE_S:
                why = squeue_error or sacct_error or "neither squeue nor sacct knows it"
                self._known[job_id] = JobStatus(state=JobState.LOST, reason=why)

    def hosts(self, nodelist: str) -> tuple[str, ...]:
        """Expand Slurm's node notation.

        Raises:
            ClusterError: scontrol refuses it.
        """
        return tuple(run(["scontrol", "show", "hostnames", nodelist]).split())

    def partitions(self) -> str:
        """List the partitions with node counts and time limits, for people; empty when sinfo fails."""
        try:
            lines = run(["sinfo", "--noheader", "--format=%P (%D nodes, limit %l)"]).splitlines()
        except ClusterError:
            return ""
        return ", ".join(line.strip() for line in lines)

    def unavailable(self) -> str:
        """List the nodes that no job can get, with state and reason, for people; empty when there are none."""
        try:
            lines = run(["sinfo", "--noheader", "--Node", "--format=%N %T (%E)"]).splitlines()
        except ClusterError:
            return ""
        bad = (line.strip() for line in lines if line.split()[1].startswith(_UNAVAILABLE))
        return ", ".join(dict.fromkeys(bad))

    def cancel(self, job_id: str) -> None:
        """Cancel one job by its id; one that is gone already is no error."""
        try:
            run(["scancel", job_id])
        except ClusterError as error:
            if "Invalid job id" not in str(error):
                raise

    def _squeue(self, job_ids: Sequence[str]) -> tuple[dict[str, JobStatus], str]:
        command = [
            "squeue",
            "--noheader",
            "--states=all",
            "--format=%i|%T|%r|%N",
            f"--jobs={','.join(job_ids)}",
        ]
        return _query(command, columns=4)

    def _sacct(self, job_ids: Sequence[str]) -> tuple[dict[str, JobStatus], str]:
        command = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={','.join(job_ids)}"]
        found, error = _query([*command, "--format=JobIDRaw,State,Reason,NodeList"], columns=4)
        return {job_id: status for job_id, status in found.items() if not status.alive}, error


def _query(command: Sequence[str], columns: int) -> tuple[dict[str, JobStatus], str]:
    try:
        answer = run(command)
    except ClusterError as error:
        return {}, str(error)
    found = {}
    for line in answer.splitlines():
        fields = line.strip().split("|")
        if len(fields) == columns:
            job_id, word, reason, nodelist = fields
            found[job_id] = JobStatus(
                state=parse_state(word),
                reason="" if reason == "None" else reason,
                nodelist="" if nodelist == "None assigned" else nodelist,
                word=word,
            )
    return found, ""


def run(command: Sequence[str]) -> str:
    """Run one Slurm command and return what it printed.

    Raises:
        ClusterError: it is not installed, failed (with Slurm's own words) or did not answer.
    """
    text = " ".join(command)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S, env=clean_environment()
        )
    except FileNotFoundError as error:
        raise ClusterError(
            f"{command[0]} is not on PATH: run this on a login node of the cluster, or use --cluster local",
            command=text,
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{command[0]} did not answer within {_TIMEOUT_S:g} s", command=text) from error
    if done.returncode != 0:
        raise ClusterError(slurm_words(done.stderr) or f"{text} exited with {done.returncode}", command=text)
    return done.stdout


def slurm_words(stderr: str) -> str:
    """Keep what Slurm says, without the `sbatch: error:` in front of each line."""
    lines = (line.strip() for line in stderr.splitlines())
    words = (line.split(": error: ", 1)[-1].split("error: ", 1)[-1] for line in lines if line)
    return "; ".join(dict.fromkeys(words))


def clean_environment(extra: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> dict[str, str]:
    """This environment without what Slurm set for the job we may be running in.

    Inside a job, SLURM_NTASKS, SLURM_CPU_BIND and the like would silently become options of every
    srun and sbatch we start. SLURM_CONF stays: it says which cluster; SBATCH_* are the user's own.
    """
    # pytest changes its own variables meanwhile, in another thread.
    keep = {
        name: value
        for name in list(os.environ)
        if not _set_by_slurm(name) and (value := os.environ.get(name)) is not None
    }
    return keep | dict(extra)


def _set_by_slurm(name: str) -> bool:
    return name.startswith(("SLURM_", "SLURMD_", "PMI_", "PMIX_")) and name != "SLURM_CONF"
