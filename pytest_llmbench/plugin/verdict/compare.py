"""Compares a measured number with a bound: a pure function of records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from pytest_llmbench.core.quantity import BetweenRuns, Quantity
from pytest_llmbench.core.record.records import Metric, RunRecord
from pytest_llmbench.core.record.steady import Steady
from pytest_llmbench.engines.base import asks_for_speed, get_engine, statistics_of
from pytest_llmbench.judging.cause import Cause, find_cause
from pytest_llmbench.judging.interval.decide import (
    Decision,
    Op,
    compare_metrics,
    decide,
    decide_by_ceiling,
    span,
    with_own_rule,
)
from pytest_llmbench.judging.interval.repeats import pool
from pytest_llmbench.judging.interval.steady import ALPHA, unseen_between
from pytest_llmbench.judging.statistics import judged_steps, steady_of

# Fewer different times, of a log with few digits, may be alike by chance.
_BY_CHANCE = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Number:
    """A statistic of one run, or its mean over several runs that are judged together."""

    statistic: str
    metric: Metric
    record: RunRecord  # the run; of several, the first
    alpha: float = ALPHA  # probability of an error on either side of the interval that judges it
    parts: tuple[Number, ...] = ()  # the number of each run, where there are several

    def to(self, unit: str) -> Number:
        """Return the same number, with its interval, in another unit of its dimension.

        Raises UnitError if the unit is unknown or of another dimension.
        """
        ends = {name: getattr(self.metric, name) for name in ("value", "low", "high", "amount")}
        converted = {
            name: None if value is None else Quantity(value, self.metric.unit).to(unit).value
            for name, value in ends.items()
        }
        metric = self.metric.model_copy(update={**converted, "unit": unit})
        return replace(self, metric=metric, parts=tuple(part.to(unit) for part in self.parts))


@dataclass(frozen=True, slots=True)
class JudgedComparison:
    """How a comparison ended."""

    number: Number
    op: Op
    bound: Quantity
    holds: bool | None  # whether it holds for certain; None where that is undecided
    decisive: Number  # the number that decided: `number`, or one of its parts
    decision: Decision | None = None  # the interval that judged; None where the rule of the statistic did
    cause: Cause | None = None  # cause of a speed that misses the bound, or may miss it

    @property
    def threshold(self) -> str:
        """The bound as programs read it, such as `>= 200000 words/s`."""
        return f"{self.op} {self.bound.plain}"


def judge(
    number: Number, op: Op, bound: Quantity, between: BetweenRuns | None, other: Number | None = None
) -> JudgedComparison:
    """Compare a measured number with a bound, which is `other` if it was measured, too.

    Runs of one system differ as `between` has it; None, or no spread, asks for a verdict on each run alone. Raises
    UnitError if the bound is of another dimension.
    """
    metric = number.metric
    by_rule, alone = metric.quantity.meets(op, bound), between is None or not between.spread
    # Speed is a claim of the system, which all runs together make; anything else has to hold in each of them.
    if number.parts and (metric.sense is None or (alone and other is None)):
        return _judge_each(number, op, bound, between)
    own_rule = statistics_of(get_engine(number.record.recipe.engine))[number.statistic].steady is None
    if metric.sense is None:
        decision = decide_by_ceiling(metric, op, bound, number.record.rank_info)
    elif other is not None:
        runs = [part.record for side in (number, other) for part in side.parts or (side,)]
        apart = 0.0 if number.record is other.record else unseen_between(run.steady_steps for run in runs)
        decision = compare_metrics(metric, op, other.metric, apart)
    else:
        steady = [
            (_steady_of_mean(part) if own_rule and not alone else None) or _steady_at(part.record, number.alpha)
            for part in number.parts or (number,)
        ]
        decision = decide(metric, steady, op, bound, between, number.alpha)
    if own_rule and decision is not None:
        decision = with_own_rule(decision, metric, op, bound)
    holds = by_rule if decision is None else decision.holds
    cause = None if holds or other is not None else _find_cause(number, op, bound, decided=holds is not None)
    return JudgedComparison(number, op, bound, holds=holds, decisive=number, decision=decision, cause=cause)


def _judge_each(number: Number, op: Op, bound: Quantity, between: BetweenRuns | None) -> JudgedComparison:
    """Compare the number of each run: a miss counts for more than an undecided run."""
    judged = [judge(part, op, bound, between) for part in number.parts]
    missed = [comparison for comparison in judged if comparison.holds is False]
    undecided = [comparison for comparison in judged if comparison.holds is None]
    least = min if op in {">=", ">"} else max
    nearest = least(judged, key=lambda comparison: comparison.number.metric.quantity.base)
    return replace((missed or undecided or [nearest])[0], number=number)


def _find_cause(number: Number, op: Op, bound: Quantity, *, decided: bool) -> Cause | None:
    """Find the cause by the slowest of the runs; None where the bound is about something else, or the cause unclear."""
    if not asks_for_speed(number.statistic, number.record.recipe.engine, op, bound):
        return None
    time = bound.dimension == "time"
    slowest = (max if time else min)(number.parts or (number,), key=lambda part: part.metric.quantity.base)
    metric, record = slowest.metric, slowest.record
    limit, needed = bound.to(metric.unit).value, 0.0
    if record.steady is not None and limit > 0.0 and metric.value > 0.0:
        took = record.steady.mean_with_pauses
        if metric.sense is not None and metric.amount is not None:
            took = metric.amount / metric.value if metric.sense == "rate" else metric.value / metric.amount
        needed = took * (limit / metric.value if time else metric.value / limit)
    return find_cause(record, needed, by_interval=metric.sense is not None, decided=decided)


def _steady_at(record: RunRecord, alpha: float) -> Steady | None:
    if alpha == alpha_of(record):
        return record.steady
    return steady_of(judged_steps(record.recipe, record.steps), alpha)


def _steady_of_mean(number: Number) -> Steady | None:
    """The state of a run that logged its mean speed, and the durations of less than half of its steps, or of none.

    It is as certain as runs are alike, and contains the logged durations.
    """
    metric, judged = number.metric, judged_steps(number.record.recipe, number.record.steps)
    some = [step.seconds for step in judged if step.seconds is not None]
    most = judged[-1].step - judged[0].step if judged else 0
    if not metric.amount or metric.value <= 0.0 or (some and 2 * sum(step.interval for step in judged) >= most):
        return None
    seconds = metric.amount / metric.value if metric.sense == "rate" else metric.value / metric.amount
    return Steady.of_mean(seconds, some)


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
    if metric.amount is None or len(states) < len(metrics):
        return metric
    low, high = span(metric.sense, metric.amount, pool(states))
    return metric.model_copy(update={"low": low, "high": high})


def find_copy(records: Sequence[RunRecord]) -> str | None:
    """Report which of several runs is a copy of another one: it would be counted twice."""
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
