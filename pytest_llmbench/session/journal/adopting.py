"""Jobs of an earlier process of this session: each is adopted, or ended, before anything is submitted."""

import time
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from pytest_llmbench.cluster.executors import let_begin
from pytest_llmbench.cluster.jobs import SlurmJob
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.slurm.marks import JobMarks
from pytest_llmbench.cluster.slurm.queue import Slurm
from pytest_llmbench.cluster.slurm.states import OurJob
from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.session.active import Active
from pytest_llmbench.session.journal.earlier import Earlier, LeftJob
from pytest_llmbench.session.script.prepared import PreparedRun

T = TypeVar("T")

_AGAIN_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """Looks after the jobs that an earlier process left.

    Attributes:
        wait: waits for the given seconds; true if the session is ending.
        say: told what people should know.
    """

    earlier: Earlier
    settings: Settings
    slurm: Slurm
    wait: Callable[[float], bool]
    say: Callable[[str], None]

    def adopted(self, waiting: Iterable[PreparedRun], final: Container[str]) -> Iterator[Active]:
        """Yield the runs of those that wait whose job is there; put aside what is left of the others.

        Args:
            waiting: the runs that are to be made.
            final: keys of those that have their record.
        """
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
