"""Whether one run did all its work."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.judging.sanity.evidence import Evidence, of_rank


def completed(e: Evidence) -> Iterator[Problem]:
    """Ask for proof that the run did all its work, or for the time limit it was meant to reach."""
    if e.series.completed is not None:
        return
    cut_off = e.cut_off or e.series.cut_off
    last = f" after step {e.series.steps[-1].step}" if e.series.steps else " without a single step"
    if cut_off is not None:
        if e.recipe.end != "time_limit":
            message = f"it was cut off{last} of {e.recipe.steps}, before it did all its work: {cut_off}"
            yield Problem(kind="time_limit", message=message)
        return  #: problem time_limit: the run did not finish in time, by our clock or by Slurm's line in its log
    why = f"; it said: {e.series.failure}" if e.series.failure else ""
    yield Problem(  #: problem no_evidence_of_completion: a framework's log lacks the [line that proves it](#engines)
        kind="no_evidence_of_completion",
        message=f"its log ends{last} and nothing proves that the run did all its work ({e.proof}){why}",
    )


def ended_whole(e: Evidence) -> Iterator[Problem]:
    """Compare the steps that each rank says it did with those in its log."""
    for info in e.series.ranks:
        logged = info.steps.count if info.steps else 0
        if info.end_steps not in (None, logged):
            said = f" says at its end that it did {info.end_steps} steps; its log has {logged}"
            yield of_rank("steps_missing", info, said)


def long_enough(e: Evidence) -> Iterator[Problem]:
    """Refuse a run that says itself that it made fewer steps."""
    if e.series.short is not None:  #: problem steps_missing: fewer steps than the recipe has
        yield Problem(kind="steps_missing", message=e.series.short)


def one_run(e: Evidence) -> Iterator[Problem]:
    """Refuse a log that holds more than one run."""
    if e.series.restarted is not None:
        #: problem restarted: a log or a folder has two runs in it: steps begin again, or there are too many step logs
        yield Problem(kind="restarted", message=e.series.restarted, log=e.series.restarted.partition(":")[0])
