"""Jobs that Slurm does not take because too many are in its queue: the session holds them back until one has ended."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pytest_llmbench.cluster.slurm.commands import QueueFullError
from pytest_llmbench.cluster.slurm.queries import SlurmQueries
from pytest_llmbench.core.durations import format_minutes

_MINUTE_S = 60.0
# A job may end between a refusal and the question for the jobs that are there.
_SURE = 3


@dataclass
class FullQueue:
    """Decides for how long it is of use to hold back what Slurm refuses.

    Attributes:
        longest_min: how long a job may be held back, minutes; None for any time.
        say: told once of each limit.
    """

    queries: SlurmQueries
    longest_min: int | None
    say: Callable[[str], None]
    _since: dict[str, float] = field(default_factory=dict)
    _without_jobs: dict[str, int] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)

    def refused(self, name: str, error: QueueFullError, *, ours: int) -> str:
        """Note that a job was refused; return why waiting is of no use, or nothing if it is.

        A limit that lets no job at all into the queue refuses the same while no job is in it.

        Args:
            name: of the job.
            error: names the limit.
            ours: number of jobs of this session that are in the queue.
        """
        now = time.monotonic()
        since = self._since.setdefault(name, now)
        if self.longest_min is not None and now - since > _MINUTE_S * self.longest_min:
            return f"{error}: it was held back for longer than --llmbench-max-wait {format_minutes(self.longest_min)}"
        if ours or self._any_job(error):
            self._without_jobs[name] = 0
        else:
            self._without_jobs[name] = self._without_jobs.get(name, 0) + 1
        if self._without_jobs[name] >= _SURE:
            return f"{error}; and no job is in the queue that could count: the limit lets none in, so ask for another"
        if error.limit not in self._told:
            self._told.add(error.limit)
            self.say(f"held back until a job has ended: {error}")
        return ""

    def taken(self, name: str) -> None:
        """Note that Slurm has taken a job."""
        self._since.pop(name, None)
        self._without_jobs.pop(name, None)

    def _any_job(self, error: QueueFullError) -> bool:
        """Whether a job is in the queue that may count; so it is taken where Slurm does not say."""
        if not error.counts_this_user:  # jobs of others count, which Slurm may hide
            return True
        answer, failed = self.queries.answer(["squeue", "--noheader", f"--user={os.getuid()}", "--format=%i"])
        return bool(failed) or bool(answer.split())
