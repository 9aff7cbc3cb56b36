"""Checks that a log is complete and readable."""

import math
from bisect import bisect
from collections import Counter
from collections.abc import Iterator

from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.judging.sanity.evidence import Evidence

# A run is judged up to this share of unreadable step lines, as when two ranks write at once.
_MOST_UNREAD = 0.02


def unreadable(e: Evidence) -> Iterator[Problem]:
    """Refuse a log with any unreadable line."""
    if e.series.unreadable:
        count = max(e.series.unread, len(e.series.unreadable))
        lines = "line that looks like a step" if count == 1 else "lines that look like steps"
        yield Problem(
            #: problem unreadable_log: a line of a step log, or more than 2 % of a framework's steps, could not be read
            kind="unreadable_log",
            message=f"{count} {lines} could not be read, first {e.series.unreadable[0]}",
            log=e.series.unreadable[0].partition(":")[0],
        )


def lines(e: Evidence) -> Iterator[Problem]:
    """Refuse a framework's log with too many unreadable lines, or with missing lines that these leave unexplained."""
    numbers = [step.step for step in e.series.steps]
    if e.series.unread > _MOST_UNREAD * len(numbers):
        yield from unreadable(e)
    if not numbers:
        if not e.series.totals:
            yield _missing("its log has not a single step, nor a number about the whole")
        return
    if numbers[-1] > e.recipe.steps:
        message = f"its log goes on to step {numbers[-1]}; the recipe ends at step {e.recipe.steps}"
        yield Problem(kind="wrong_work", message=message)  #: problem wrong_work: a log that goes on after its last step
    every = _interval(e, numbers)
    if every is None:
        yield _missing(
            f"of its lines only that of step {numbers[-1]} is there, and others may be missing: "
            "keep the part of the log that gives its log interval"
        )
        return
    missing = _unexplained(e, numbers, _due(e, every, numbers[-1]) - set(numbers))
    if missing:
        yield _missing(
            f"its log speaks of {len(numbers)} steps, every {every} of them, up to step {numbers[-1]} of "
            f"{e.recipe.steps}; {len(missing)} lines are missing, first that of step {missing[0]}"
        )


def _interval(e: Evidence, numbers: list[int]) -> int | None:
    """Steps from one line to the next; None if unknown.

    A framework logs the multiples of its interval. The interval is the one that the log reports, else the greatest
    common divisor of the numbers of its steps, which holds for any lost lines.
    """
    regular = [number for number in numbers if number > 1 or not e.series.first_apart]
    reported = [e.series.log_interval] if e.series.log_interval else []
    known = reported or len(regular) > 1 or regular == [1]
    return math.gcd(*regular, *reported) if regular and known else None


def _due(e: Evidence, every: int, last: int) -> set[int]:
    end = e.recipe.steps if e.recipe.end == "steps" else last
    return {*range(every, end + 1, every), *([1] if e.series.first_apart else [])}


def _unexplained(e: Evidence, numbers: list[int], missing: set[int]) -> list[int]:
    """Return the missing steps of the gaps in which more lines are missing than were unreadable."""
    begins = [0, *numbers]
    begin = {step: begins[bisect(begins, step) - 1] for step in sorted(missing)}
    lost = Counter(begin.values())
    return [step for step, before in begin.items() if lost[before] > e.series.unread_after.get(before, 0)]


def _missing(message: str) -> Problem:
    #: problem steps_missing: lines of a framework's log that are due and lacking
    return Problem(kind="steps_missing", message=message)
