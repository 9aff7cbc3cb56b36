"""One job that is watched, as Slurm has shown it so far."""

import os
import time
from dataclasses import dataclass, field

from pytest_llmbench.cluster.slurm.marks import JobMarks
from pytest_llmbench.cluster.slurm.states import JobIdentity, JobRow, JobState, JobStatus

NEVER = float("-inf")


@dataclass(kw_only=True)
class WatchedJob:
    """A job being watched.

    Attributes:
        submitted: when it was submitted, as Slurm says; empty until it was seen.
        comment: of it, as squeue shows it.
        seen: our clock before the last query that found it as the job that is meant: squeue, or scontrol while it runs.
        watched: our clock when it was submitted, or taken over from an earlier process.
        answered: our clock when Slurm last said anything of it.
        closing: our clock when it was first seen `COMPLETING`: nothing can start in it any more.
        ending: whether its files say that it is about to end.
        missing: whether Slurm, when it answered last, did not know it.
        over: our clock when its run was over, whatever Slurm says of it.
        marks: its past events, as they were asked for when its end was seen.
        marks_now: the same, as they were asked for last while it ran, and at which time of our clock before.
    """

    identity: JobIdentity
    status: JobStatus = field(default_factory=lambda: JobStatus(state=JobState.PENDING, reason="just submitted"))
    submitted: str = ""
    comment: str | None = None
    seen: float = NEVER
    watched: float = field(default_factory=time.monotonic)
    answered: float = field(default_factory=time.monotonic)
    closing: float | None = None
    ending: bool = False
    missing: bool = False
    over: float | None = None
    marks: JobMarks | None = None
    marks_now: tuple[float, JobMarks] | None = None

    def is_shown(self, row: JobRow) -> bool:
        """Whether squeue shows this job."""
        return row.fits(self.identity, self.submitted)

    def lose_to(self, stranger: JobRow) -> None:
        """Take note that another job has its id."""
        why = f"its id belongs to another job now ({stranger.told}): Slurm has forgotten ours"
        if stranger.uid == str(os.getuid()) and self.submitted in {"", stranger.submitted}:
            why += (
                f"; or it is ours, and a job_submit plugin of the site has changed its name, {self.identity.name}: ask "
                "the site to leave names that begin with llmbench- as they are"
            )
        self.status = JobStatus(state=JobState.LOST, reason=why)
