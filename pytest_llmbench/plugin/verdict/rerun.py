"""`--llmbench-inconclusive rerun`: further runs of one that decides nothing, as long as they can and there is time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_llmbench.cluster.runs import repeat_key
from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.plugin.verdict import outcome

if TYPE_CHECKING:
    from pytest_llmbench.plugin.bench import Waiter

_NONE_MADE = "No further run was made:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rerun:
    """Makes as many runs again as there are, for a test that waits for them.

    Attributes:
        waiter: the place at which the test waits.
        series: key of the first run.
        limit_min: minutes that all runs of it may take together: as many as the plan has for one.
    """

    waiter: Waiter
    series: str
    limit_min: int

    def more(self, records: Sequence[RunRecord], needed: int | None, look: int) -> tuple[RunRecord, ...] | str:
        """Make the runs for the next look, or say why there is none.

        Args:
            records: of the runs so far.
            needed: number of runs that would decide, with these; None where no number does.
            look: number of the next look.

        Raises:
            RunError: one of the further runs cannot be judged.
        """
        if (why_not := self._why_not(records, needed)) is not None:
            return f"{_NONE_MADE} {why_not}"
        numbers = range(len(records) + 1, 2 * len(records) + 1)
        self.waiter.repeat(self.series, numbers[-1], look)
        made = tuple(self.waiter.wait(RunRecord, repeat_key(self.series, number)) for number in numbers)
        broken = next((record for record in made if record.problem is not None), None)
        if broken is None or broken.problem is None:
            return made
        if broken.problem.kind == "not_repeated":
            return f"{_NONE_MADE} {broken.problem.message}"
        #: error repeat_broken: a further run that `--llmbench-inconclusive rerun` made cannot be judged
        raise RunError("repeat_broken", outcome.broken(broken))

    def _why_not(self, records: Sequence[RunRecord], needed: int | None) -> str | None:
        if records[0].cluster == "replay":
            return "logs are replayed"
        if needed is None:
            return "more runs do not decide that"
        room = int(self.limit_min * 60 / max(1.0, *(record.took_s for record in records)))
        wanted = max(needed, 2 * len(records))
        if wanted <= room:
            return None
        return (
            f"it takes about {wanted} runs in all, and the time limit of {self.limit_min} min has room for {room} "
            "(give a longer --time)"
        )
