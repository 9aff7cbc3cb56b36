"""Several runs of one recipe as one number, each of them counted once."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from pytest_llmbench.core.record.records import Metric, RunRecord
from pytest_llmbench.core.record.steady import Steady
from pytest_llmbench.judging.interval.decide import span
from pytest_llmbench.judging.interval.repeats import pool
from pytest_llmbench.judging.interval.steady import ALPHA
from pytest_llmbench.judging.statistics import judged_steps, steady_of

# Fewer different times, of a log with few digits, may be alike by chance.
_BY_CHANCE = 10


def steady_at(record: RunRecord, alpha: float) -> Steady | None:
    """The steady part of a run, by another probability of an error than its record's."""
    if alpha == alpha_of(record):
        return record.steady
    return steady_of(judged_steps(record.recipe, record.steps), alpha)


def alpha_of(record: RunRecord, runs: int = 1) -> float:
    """Probability of an error on either side of the interval of a run, one of several or one that was looked at."""
    return record.early.alpha if record.early is not None and record.early.looks else ALPHA / runs


def mean_of(statistic: str, records: Sequence[RunRecord]) -> Metric:
    """The mean of a number that each run has, with the interval of the system where it follows from their steps."""
    metrics = [record.metrics[statistic] for record in records]
    known: dict[str, Any] = {"value": fmean(metric.value for metric in metrics), "low": None, "high": None}
    amounts = [metric.amount for metric in metrics if metric.amount is not None]
    known |= {"amount": fmean(amounts)} if len(amounts) == len(metrics) else {"amount": None, "sense": None}
    metric = metrics[0].model_copy(update=known)
    states = [record.steady for record in records if record.steady is not None]
    if metric.sense is None or len(states) < len(metrics):
        return metric
    low, high = span(metric, pool(states))
    return metric.model_copy(update={"low": low, "high": high})


def one_run(records: Sequence[RunRecord]) -> str | None:
    """Say which of several runs is another one again: it would be counted twice."""
    seen: dict[tuple[float | None, ...], str] = {}
    for record in records:
        seconds = tuple(step.seconds for step in record.steps)
        first = seen.setdefault(seconds, record.key) if len(set(seconds)) >= _BY_CHANCE else record.key
        if first != record.key:
            return (
                f"runs {first} and {record.key} cannot be judged together: all their steps took the same time to the "
                "last digit, so they are one run"
            )
    return None
