"""Whether a log was filled up with copies of its own steps, or put together from those of several runs."""

from __future__ import annotations

import math
import statistics as stats
from collections.abc import Iterator, Sequence
from itertools import pairwise

from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.core.repeats import repeated
from pytest_llmbench.judging.sanity.evidence import Evidence, of_rank

# Of so many logs one may have the same stretch twice by chance.
_BY_CHANCE = 1e9
_FEWEST = 5


def copied(e: Evidence) -> Iterator[Problem]:
    """Refuse steps of a rank that were copied from others of its own, and a highest memory so far that falls."""
    for info in e.series.ranks:
        for why in (info.steps.copied, info.steps.less_memory) if info.steps else ():
            if why is not None:
                #: problem implausible: a stretch of steps that is there twice to the last digit
                yield of_rank("implausible", info, f": {why}; its log was put together")


def copied_in_log(e: Evidence) -> Iterator[Problem]:
    """Refuse lines of a framework's log that were copied from others: as many as chance does not make alike."""
    lines = [(step, step.seconds, step.loss) for step in e.series.steps]
    known = [(step, seconds, loss) for step, seconds, loss in lines if seconds is not None and loss is not None]
    each = _told_by_one([seconds for _, seconds, _ in known]) + _told_by_one([loss for _, _, loss in known])
    if not each:
        return
    length = max(_FEWEST, math.ceil(math.log(_BY_CHANCE * len(known) ** 2) / each))
    found = repeated([line[1:] for line in known], length, length // 2 + 1)
    if found is not None:
        first, again = (f"{known[at][0].step} to {known[at + length - 1][0].step}" for at in found)
        yield Problem(
            kind="implausible",
            message=f"the lines of steps {again} have the very durations and losses of those of steps {first}: its log "
            "was put together",
        )


def _told_by_one(values: Sequence[float]) -> float:
    """How much one more value tells, in nat: by how many of the smallest differences neighbours differ."""
    apart = [abs(after - before) for before, after in pairwise(values)]
    ordered = sorted({value for value in values if math.isfinite(value)})
    least = min((after - before for before, after in pairwise(ordered)), default=0.0)
    usual = stats.median(apart) if apart else 0.0
    return math.log(max(1.0, usual / least)) if least > 0.0 and math.isfinite(usual) else 0.0
