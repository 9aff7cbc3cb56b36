"""Whether every line that should be in a log is there and could be read."""

from __future__ import annotations

import statistics as stats
from collections.abc import Iterator
from itertools import pairwise

from pytest_llmbench.core.records import Problem
from pytest_llmbench.judging.sanity.evidence import Evidence

# Of a framework's step lines, this share may be unreadable (two ranks that wrote at once) before nothing is judged.
_MOST_UNREAD = 0.02


def unreadable(e: Evidence) -> Iterator[Problem]:
    """Refuse a log with any unreadable line."""
    if e.series.unreadable:
        count = max(e.series.unread, len(e.series.unreadable))
        lines = "line that looks like a step" if count == 1 else "lines that look like steps"
        yield Problem(
            kind="unreadable_log",
            message=f"{count} {lines} could not be read, first {e.series.unreadable[0]}",
            log=e.series.unreadable[0].partition(":")[0],
        )


def lines(e: Evidence) -> Iterator[Problem]:
    """A few unreadable lines are shown and judged without; where more is missing than they explain, nothing is."""
    numbers = [step.step for step in e.series.steps]
    if e.series.unread > max(1, _MOST_UNREAD * len(numbers)):
        yield from unreadable(e)
    if not numbers:
        if not e.series.totals:
            yield Problem(kind="steps_missing", message="its log has not a single step, nor a number about the whole")
        return
    if numbers[-1] > e.recipe.steps:
        message = f"its log goes on to step {numbers[-1]}; the recipe ends at step {e.recipe.steps}"
        yield Problem(kind="wrong_work", message=message)
    gaps = [number - before for before, number in pairwise([0, *numbers])]
    # The first step may have a line of its own, so that the first two gaps tell nothing.
    usual = stats.mode(gaps[2:] or [e.series.steps[-1].interval])
    missing = sum(max(0, round(gap / usual) - 1) for gap in gaps)
    if e.recipe.end == "steps":
        missing += max(0, (e.recipe.steps - numbers[-1]) // usual)
    if missing > e.series.unread:
        yield Problem(
            kind="steps_missing",
            message=f"its log speaks of {len(numbers)} steps, every {usual} of them, up to step {numbers[-1]} of "
            f"{e.recipe.steps}; {missing} lines in between or at the end are missing",
        )
