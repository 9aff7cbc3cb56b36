"""Checks that a run did all its steps, with the work of the recipe, in a plausible time."""

import math
from collections.abc import Iterator

from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.judging.sanity.evidence import Evidence, of_rank
from pytest_llmbench.judging.sanity.outside import seconds_of


def completed(e: Evidence) -> Iterator[Problem]:
    """Require proof that the run did all its work, or that it reached the time limit by which it was to end."""
    if e.series.completed is not None:
        return
    cut_off = e.cut_off or e.series.cut_off
    last = f" after step {e.series.steps[-1].step}" if e.series.steps else " without a single step"
    if cut_off is not None:
        if e.recipe.end != "time_limit":
            message = f"it was cut off{last} of {e.recipe.steps}, before it did all its work: {cut_off}"
            yield Problem(kind="time_limit", message=message)
        return  #: problem time_limit: the run did not finish in time, by our clock or by Slurm's line in its log
    failure = f"; it said: {e.series.failure}" if e.series.failure else ""
    yield Problem(  #: problem no_evidence_of_completion: a framework's log lacks the [line that proves it](#engines)
        kind="no_evidence_of_completion",
        message=f"its log ends{last} and nothing proves that the run did all its work ({e.proof}){failure}",
    )


def ended_whole(e: Evidence) -> Iterator[Problem]:
    """Compare the number of steps that each rank reports at its end with the steps in its log."""
    for info in e.series.ranks:
        logged = info.steps.count if info.steps else 0
        if info.end_steps not in (None, logged):
            words = f" says at its end that it did {info.end_steps} steps; its log has {logged}"
            yield of_rank("steps_missing", info, words)


def long_enough(e: Evidence) -> Iterator[Problem]:
    """Refuse a run with fewer steps than the recipe by its own report."""
    if e.series.short is not None:  #: problem steps_missing: fewer steps than the recipe has
        yield Problem(kind="steps_missing", message=e.series.short)


def one_run(e: Evidence) -> Iterator[Problem]:
    """Refuse a log that holds more than one run."""
    if e.series.restarted is not None:
        #: problem restarted: a log or a folder has two runs in it: steps begin again, or there are too many step logs
        yield Problem(kind="restarted", message=e.series.restarted, log=e.series.restarted.partition(":")[0])


# Clocks of two processes on two nodes, and the time between a step's end and the observer's look.
_WALL_CLOCK_SLACK_S = 5.0


def steps(e: Evidence) -> Iterator[Problem]:
    """Require every step from every rank."""
    complete = [step for step in e.series.steps if step.ranks == e.topology.world_size]
    numbers = [step.step for step in complete]
    if numbers != list(range(1, e.steps_due + 1)):
        yield Problem(
            kind="steps_missing",  #: problem steps_missing: a step that not every rank logged
            message=f"{len(complete)} of {e.steps_due} steps were logged by all {e.topology.world_size} ranks",
        )


def ended_when_asked(e: Evidence) -> Iterator[Problem]:
    """Require an early end of all ranks if the session asked for it, and of none otherwise."""
    asked = e.early is not None and e.early.ended_early
    for info in e.series.ranks:
        if info.asked_to_end and not asked:
            yield of_rank(
                "steps_missing", info, f" ended after step {info.end_steps}, and its session did not ask for it"
            )
        if asked and not info.asked_to_end:
            #: problem steps_missing: a rank that ended early by itself
            yield of_rank("steps_missing", info, f" ended by itself after step {info.end_steps} of {e.recipe.steps}")


def work(e: Evidence) -> Iterator[Problem]:
    """Compare the tokens and sequences of each step with the recipe."""
    for step in e.series.steps:
        # A framework's log rounds large counts to six digits; our step logs are exact.
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
    if not all(duration > 0.0 for duration in durations):  # catches NaN, too
        yield Problem(kind="implausible", message="a step took no time at all")


def stamps(e: Evidence) -> Iterator[Problem]:
    """Compare each rank's durations with its time stamps, and the time stamps with its host's clock."""
    for info in e.series.ranks:
        for fault in (info.steps.unlike_times, info.steps.unlike_clock) if info.steps else ():
            if fault is not None:
                yield of_rank("implausible", info, f": {fault}; in an unchanged log they agree")


def doubts(e: Evidence) -> Iterator[Problem]:
    """Report the contradictions that the engine found in its log."""
    for doubt in e.doubts:
        yield Problem(kind="implausible", message=doubt)  #: problem implausible: a log that contradicts itself
