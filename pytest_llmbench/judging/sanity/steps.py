"""Whether every step was done, with all its work, in a time that can be true."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.judging.sanity.evidence import Evidence, of_rank
from pytest_llmbench.judging.sanity.outside import seconds_of

# Clocks of two processes on two nodes, and the time between a step's end and the observer's look.
_WALL_CLOCK_SLACK_S = 5.0


def steps(e: Evidence) -> Iterator[Problem]:
    """Ask for every step from every rank."""
    complete = [step for step in e.series.steps if step.ranks == e.topology.world_size]
    numbers = [step.step for step in complete]
    if numbers != list(range(1, e.recipe.steps + 1)):
        yield Problem(
            kind="steps_missing",  #: problem steps_missing: a step that not every rank logged
            message=f"{len(complete)} of {e.recipe.steps} steps were logged by all {e.topology.world_size} ranks",
        )


def work(e: Evidence) -> Iterator[Problem]:
    """Compare the tokens and sequences of each step with the recipe."""
    for step in e.series.steps:
        # A framework's log rounds large counts to six digits; ours does not.
        slack = 1e-4 if e.kind == "command" else 0.0
        work = ((step.tokens, e.recipe.tokens_per_step), (step.samples, e.recipe.samples_per_step))
        if any(counted is not None and not math.isclose(counted, due, rel_tol=slack) for counted, due in work):
            yield Problem(  #: problem wrong_work: a step with another number of tokens or sequences than the recipe has
                kind="wrong_work",
                message=f"step {step.step} counted {step.tokens} tokens in {step.samples} sequences; the recipe says "
                f"{e.recipe.tokens_per_step} in {e.recipe.samples_per_step}",
            )


def clock(e: Evidence) -> Iterator[Problem]:
    """Compare the steps' durations with the observer's clock."""
    durations = [step.seconds for step in e.series.steps if step.seconds is not None]
    seconds = seconds_of(e.series.steps)
    if e.wall_s is not None and seconds > e.wall_s + _WALL_CLOCK_SLACK_S:
        yield Problem(
            kind="implausible",  #: problem implausible: steps longer than the run, or against their time stamps
            message=f"the steps add up to {seconds:.4g} s, but the run took {e.wall_s:.4g} s from launch to end",
        )
    if not all(duration > 0.0 for duration in durations):  # NaN is not above 0 either
        yield Problem(kind="implausible", message="a step took no time at all")


def stamps(e: Evidence) -> Iterator[Problem]:
    """Compare each rank's durations with its time stamps, and these with its host's clock."""
    for info in e.series.ranks:
        for why in (info.steps.unlike_times, info.steps.unlike_clock) if info.steps else ():
            if why is not None:
                yield of_rank("implausible", info, f": {why}; in an unchanged log they agree")


def doubts(e: Evidence) -> Iterator[Problem]:
    """Pass on the contradictions that the engine found in its log."""
    for doubt in e.doubts:
        yield Problem(kind="implausible", message=doubt)  #: problem implausible: a log that contradicts itself
