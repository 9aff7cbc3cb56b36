"""Further attempts at runs that a fault of the infrastructure ended: what was measured is never measured again."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from pytest_llmbench.core.record.records import Problem, ProblemKind, RunRecord
from pytest_llmbench.core.wire import layout

# Ends of a run's job that say nothing of the run. Not among them: what may come again, as a program that runs out of
# memory, and what people did, who cancelled or suspended the job.
RETRIED: frozenset[ProblemKind] = frozenset(("job_lost", "job_node_fail", "job_preempted", "started_again"))


class Retries:
    """Decides which runs are made once more, and keeps what their attempts came to.

    Attributes:
        most: further attempts of one run, at most.
        superseded: kind and message of each attempt that another one followed, by the run's key.
    """

    def __init__(
        self, most: int, put_aside: Callable[[str], Path | None], write: Callable[[Path, RunRecord], object]
    ) -> None:
        self.most = most
        self.superseded: dict[str, tuple[str, ...]] = defaultdict(tuple)
        self._put_aside = put_aside
        self._write = write

    def wants(self, key: str, problem: Problem | None) -> bool:
        """Whether a run that ended with this problem is made once more."""
        return problem is not None and problem.kind in RETRIED and len(self.superseded[key]) < self.most

    def supersede(self, record: RunRecord, problem: Problem) -> str:
        """Put an attempt aside, with its record; say so, for people."""
        key = record.key
        folder = self._put_aside(key)
        if folder is not None:
            self._write(folder / layout.RECORD, record)
        self.superseded[key] += (f"{problem.kind}: {problem.message}",)
        return (
            f"run {key} is made again, retry {len(self.superseded[key])} of {self.most}: {problem.kind}: "
            f"{problem.message}; the attempt is in {folder}"
        )
