"""The longest wait in the queue, `--llmbench-max-wait`: a job that waited longer is cancelled, unless it has begun."""

import time
from dataclasses import dataclass, field

from pytest_llmbench.cluster.slurm.aside import Aside
from pytest_llmbench.cluster.slurm.queries import GLANCE_S
from pytest_llmbench.cluster.slurm.queue import Slurm
from pytest_llmbench.cluster.slurm.states import JobState, JobStatus, OurJob
from pytest_llmbench.core.durations import format_minutes
from pytest_llmbench.core.errors import ClusterError

_MINUTE_S = 60.0
# A command that failed, or came to nothing, is given again after this.
_AGAIN_S = 30.0


@dataclass
class QueueLimit:
    """Ends the waiting of Slurm jobs.

    Attributes:
        longest_min: how long a job may wait, minutes; None for any time.
    """

    slurm: Slurm
    longest_min: int | None
    _asked: dict[OurJob, float] = field(default_factory=dict)
    _why: dict[OurJob, str] = field(default_factory=dict)

    def enforce(self, job: OurJob) -> None:
        """Cancel a watched job that has waited for too long, without waiting long for Slurm's answer.

        A silent controller may have started it: nothing is done until Slurm shows that it still waits.
        """
        longest, now = self.longest_min, time.monotonic()
        if longest is None or self.slurm.silent or self.slurm.waited_s(job) <= _MINUTE_S * longest:
            return
        if job in self._asked and now - self._asked[job] < _AGAIN_S:
            return
        self._asked[job] = now
        reason = self.slurm.status(job).reason or "none given"
        self._why[job] = (
            f"Slurm job {job.id} waited in the queue for longer than --llmbench-max-wait {format_minutes(longest)}, "
            f"and was cancelled (Slurm's reason of its waiting: {reason}): give a longer --llmbench-max-wait, fewer "
            "--nodes, or another --partition or --slurm qos=NAME"
        )
        Aside(lambda: self._cancel(job), "scancel").done(GLANCE_S)

    def why_ended(self, job: OurJob, status: JobStatus) -> str:
        """The reason for the end of a job that never began, if it is its long wait; else empty."""
        return self._why.get(job, "") if status.state in {JobState.CANCELLED, JobState.LOST} else ""

    def _cancel(self, job: OurJob) -> None:
        try:
            self.slurm.cancel_waiting(job)
        except ClusterError as error:
            self.slurm.notes.append(f"Slurm job {job.id} has waited for too long, and is not cancelled yet: {error}")
