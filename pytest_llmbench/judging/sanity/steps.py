"""Checks that a log is complete, and that the run did all its steps and work in a plausible time."""

import math
from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.core.record.series import Step
from pytest_llmbench.judging.sanity.evidence import Evidence, of_rank, problem

# A run is judged up to this share of unreadable step lines, as when two ranks write at once.
_MOST_UNREAD = 0.02
# Clocks of two processes on two nodes, and the time between a step's end and the observer's look.
_WALL_CLOCK_SLACK_S = 5.0
# Ranks begin their first step together: by clocks that are further apart, the time since the launch is unknown.
_CLOCKS_APART_S = 5.0


def check_readable(e: Evidence) -> Iterator[Problem]:
    """Refuse a log with any unreadable line."""
    if e.series.unreadable:
        first, count = e.series.unreadable[0], max(e.series.unread, len(e.series.unreadable))
        lines = "line that looks like a step" if count == 1 else "lines that look like steps"
        #: problem unreadable_log: a line of a step log, or more than 2 % of a framework's steps, is unreadable
        yield problem("unreadable_log", f"{count} {lines} could not be read, first {first}", first.partition(":")[0])


def check_lines(e: Evidence) -> Iterator[Problem]:
    """Refuse a framework's log with too many unreadable lines, or with missing lines that these leave unexplained."""
    numbers = [step.step for step in e.series.steps]
    if e.series.unread > _MOST_UNREAD * len(numbers):
        yield from check_readable(e)
    #: problem steps_missing: lines of a framework's log that are due and lacking
    if not numbers:
        if not e.series.totals:
            yield problem("steps_missing", "its log has neither a step nor a number about the whole run")
        return
    if numbers[-1] > e.recipe.steps:  #: problem wrong_work: a log that goes on after its last step
        yield problem("wrong_work", f"its log goes on to step {numbers[-1]}; the recipe ends at step {e.recipe.steps}")
    every = _interval(e, numbers)
    if every is None:
        yield problem(
            "steps_missing",
            f"of its lines only that of step {numbers[-1]} is there, and others may be missing: "
            "keep the part of the log that gives its log interval",
        )
        return
    end = e.recipe.steps if e.recipe.end == "steps" else numbers[-1]
    first, *others = e.series.steps
    # Only a line that gives its own number of steps has more of them than the line after it.
    longer = bool(others) and first.step == first.interval > others[0].interval
    due = {*range(first.step if longer else every, end + 1, every), *([1] if e.series.first_apart else [])}
    # Gaps in which no more lines are missing than were unreadable are explained.
    begins = [0, *numbers]
    begin = {step: begins[bisect(begins, step) - 1] for step in sorted(due - set(numbers))}
    lost = Counter(begin.values())
    missing = [step for step, before in begin.items() if lost[before] > e.series.unread_after.get(before, 0)]
    if missing:
        yield problem(
            "steps_missing",
            f"its log reports {len(numbers)} steps, every {every} of them, up to step {numbers[-1]} of "
            f"{e.recipe.steps}; {len(missing)} lines are missing, first that of step {missing[0]}",
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


def check_completed(e: Evidence) -> Iterator[Problem]:
    """Require proof that the run did all its work, or that it reached the time limit by which it was to end."""
    if e.series.completed is not None:
        return
    cut_off = e.cut_off or e.series.cut_off
    last = f" after step {e.series.steps[-1].step}" if e.series.steps else " without a single step"
    if cut_off is not None:
        if e.recipe.end != "time_limit":
            message = f"it was cut off{last} of {e.recipe.steps}, before it did all its work: {cut_off}"
            yield problem("time_limit", message)
        return  #: problem time_limit: the run did not finish in time, by our clock or by Slurm's line
    failure = f"; it said: {e.series.failure}" if e.series.failure else ""
    #: problem no_evidence_of_completion: a framework's log lacks the [line that proves it](#engines)
    yield problem(
        "no_evidence_of_completion",
        f"its log ends{last} and nothing proves that the run did all its work ({e.proof}){failure}",
    )


def check_end(e: Evidence) -> Iterator[Problem]:
    """Compare the number of steps that each rank reports at its end with the steps in its log."""
    for info in e.series.ranks:
        logged = info.steps.count if info.steps else 0
        if info.end_steps not in (None, logged):
            words = f" says at its end that it did {info.end_steps} steps; its log has {logged}"
            yield of_rank("steps_missing", info, words)


def check_length(e: Evidence) -> Iterator[Problem]:
    """Refuse a run with fewer steps than the recipe by its own report."""
    if e.series.short is not None:  #: problem steps_missing: fewer steps than the recipe has
        yield problem("steps_missing", e.series.short)


def check_one_run(e: Evidence) -> Iterator[Problem]:
    """Refuse a log that holds more than one run."""
    if e.series.restarted is not None:
        #: problem restarted: a log or a folder has two runs in it: steps begin again, or there are too many step logs
        yield problem("restarted", e.series.restarted, e.series.restarted.partition(":")[0])


def check_steps(e: Evidence) -> Iterator[Problem]:
    """Require every step from every rank."""
    numbers = [step.step for step in e.series.steps if step.ranks == e.topology.world_size]
    if numbers != list(range(1, e.steps_due + 1)):  #: problem steps_missing: a step that not every rank logged
        by = "the only rank" if e.topology.world_size == 1 else f"all {e.topology.world_size} ranks"
        yield problem("steps_missing", f"{len(numbers)} of {e.steps_due} steps were logged by {by}")


def check_early_end(e: Evidence) -> Iterator[Problem]:
    """Require an early end of all ranks if the session asked for it, and of none otherwise."""
    asked = e.early is not None and e.early.ended_early
    for info in e.series.ranks:
        if info.asked_to_end and not asked:
            words = f" ended after step {info.end_steps}, and its session did not ask for it"
            yield of_rank("steps_missing", info, words)
        if asked and not info.asked_to_end:
            #: problem steps_missing: a rank that ended early by itself
            yield of_rank("steps_missing", info, f" ended by itself after step {info.end_steps} of {e.recipe.steps}")


def check_work(e: Evidence) -> Iterator[Problem]:
    """Compare the tokens and sequences of each step with the recipe."""
    # A framework's log rounds large counts to six digits; our step logs are exact.
    slack = 1e-4 if e.kind == "command" else 0.0
    for step in e.series.steps:
        counts = ((step.tokens, e.recipe.tokens_per_step), (step.samples, e.recipe.samples_per_step))
        if any(count is not None and not math.isclose(count, due, rel_tol=slack) for count, due in counts):
            #: problem wrong_work: a step with other tokens or sequences than the recipe's
            yield problem(
                "wrong_work",
                f"step {step.step} counted {step.tokens} tokens in {step.samples} sequences; the recipe says "
                f"{e.recipe.tokens_per_step} in {e.recipe.samples_per_step}",
            )


def check_clock(e: Evidence) -> Iterator[Problem]:
    """Compare the steps' durations with the observer's clock."""
    seconds = seconds_of(e.series.steps)
    if e.wall_s is not None and seconds > e.wall_s + _WALL_CLOCK_SLACK_S:
        #: problem implausible: steps longer than the run, or against their time stamps
        yield problem(
            "implausible",
            f"the steps add up to {seconds:.4g} s, but the run took {e.wall_s:.4g} s from launch to end",
        )
    for step in e.series.steps:
        if step.seconds is not None and not 0.0 < step.seconds < math.inf:  # catches NaN, too
            yield problem("implausible", f"step {step.step} took {step.seconds:g} s")


def check_stamps(e: Evidence) -> Iterator[Problem]:
    """Compare each rank's durations with its time stamps, and both with its host's clock and counters."""
    for info in e.series.ranks:
        own = info.steps
        for fault in (own.unlike_times, own.unlike_clock, own.unlike_host) if own is not None else ():
            if fault is not None:
                yield of_rank("implausible", info, f": {fault}; in an unchanged log they agree")


def check_doubts(e: Evidence) -> Iterator[Problem]:
    """Report the contradictions that the engine found in its log."""
    for doubt in e.doubts:
        yield problem("implausible", doubt)  #: problem implausible: a log that contradicts itself


def outside(e: Evidence) -> dict[str, float]:
    """The parts of a run's time, in seconds; empty if no step has a duration, or these durations are the only times.

    `steps_s` is the time in steps, `before_s` that from launch to the first step (start of ranks, model, measured
    rates; absent if unknown, as where clocks differ), `around_s` the rest up to the end of the ranks or, if that is
    unknown, of the run.
    """
    seconds, ranks = seconds_of(e.series.steps), [info for info in e.series.ranks if info.steps is not None]
    if not seconds:
        return {}
    begins = [info.steps.began for info in ranks if info.steps]
    ends = [info.finished for info in ranks if info.finished is not None]
    launched, began = e.origin.launched, min(begins, default=0.0)
    one_clock = bool(begins) and max(begins) - began <= _CLOCKS_APART_S
    before = max(0.0, began - launched) if one_clock and launched is not None else None
    if before is not None and e.wall_s is not None and before + seconds > e.wall_s + _CLOCKS_APART_S:
        before = None
    # The time after the ranks' end belongs to the launcher. Where the clocks of nodes differ, each rank's own counts.
    spans = [info.finished - info.steps.began for info in ranks if info.steps and info.finished is not None]
    if spans:
        around = (max(ends) - began if one_clock else max(spans)) - seconds
    elif e.wall_s is not None:
        around = e.wall_s - seconds - (before or 0.0)
    else:
        return {}
    parts = {"steps_s": seconds, "before_s": before, "around_s": max(0.0, around)}
    return {name: part for name, part in parts.items() if part is not None} if math.isfinite(around) else {}


def seconds_of(steps: Sequence[Step]) -> float:
    """Add up the durations of all steps, each once."""
    seconds, begun = 0.0, math.inf
    for step in reversed(steps):
        if step.seconds is not None and step.step <= begun:  # else a later line's mean is about it, too
            seconds += step.seconds * step.interval
            begun = step.step - step.interval
    return seconds
