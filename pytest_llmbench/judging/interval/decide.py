"""Compares a measured number with a threshold; if undecided, with the number of steps or runs needed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pytest_llmbench.core.quantity import BetweenRuns, Quantity, counted, for_people
from pytest_llmbench.core.record.records import Metric
from pytest_llmbench.core.record.series import RankInfo
from pytest_llmbench.core.record.steady import Steady
from pytest_llmbench.judging.flops import describe_rates
from pytest_llmbench.judging.interval.repeats import pool, runs_to_decide, steps_to_decide
from pytest_llmbench.judging.interval.steady import ALPHA, FEW_TO_COMPARE

Op = Literal[">=", ">", "<=", "<"]

# Version of the rule; it increases with every change by which the same steps could get another verdict.
RULE = "steady-6"
_HOPELESS = 100_000
_NOTHING = "Fewer than 4 of its judged steps have a duration: train at least 20 steps after the warm-up"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """Result of the comparison of a measured number with a threshold."""

    holds: bool | None  # True if the threshold is met, False if it is missed, None if that is undecided
    # The interval that was compared, in the number's unit; None for a run that is too short for one
    low: float | None
    high: float | None
    claim: Literal["system", "run"]  # subject of the verdict: many runs of this system, or this run alone
    alpha: float = ALPHA
    between: BetweenRuns | None = None  # how runs of the system differ; None for a claim about the run
    steady: float | None = None  # the number in the steady part of all runs that are judged together
    by_rule: bool | None = None  # True if the number itself, by its statistic's own rule, meets the threshold
    # Number of runs that would decide; None if the comparison is decided, or any number would be too small
    needed: int | None = None
    why: str = ""  # for an undecided comparison, the reason and what would decide


def decide(
    metric: Metric,
    runs: Sequence[Steady | None],
    op: Op,
    bound: Quantity,
    between: BetweenRuns | None,
    alpha: float = ALPHA,
) -> Decision:
    """Compare a number that follows from the duration of a step with a threshold, by the steady state of its runs.

    Args:
        metric: the number of all runs, with an amount.
        runs: the steady state of each; None for one with too few steps.
        op: the comparison.
        bound: the threshold, in any unit of the metric's dimension.
        between: how runs of one system differ; None, or a spread of 0, for a verdict about a single run alone.
        alpha: probability of an error on either side, the same as in the steady states.
    """
    system = between if between and between.spread else None
    claim: Literal["system", "run"] = "system" if system else "run"
    known = [run for run in runs if run is not None]
    if len(known) < len(runs) or metric.amount is None:
        return Decision(holds=None, low=None, high=None, claim=claim, alpha=alpha, why=_NOTHING)
    wide = known[0]
    if system:
        wide = pool(known, between_runs=system.spread, freedom=system.freedom, known=system.known, alpha=alpha)
    if between and between.known:
        wide = replace(wide, unseen=0.0)
    rate, limit = metric.sense == "rate", bound.to(metric.unit).value
    low, high = span(metric.sense, metric.amount, wide)
    # A time of 0 or less is out of reach, and every run is above a rate of 0 or less.
    seconds = (metric.amount / limit if rate else limit / metric.amount) if limit > 0.0 else math.inf if rate else 0.0
    side = wide.decide(seconds)
    asks_for_fast, needed = (op in {">=", ">"}) == rate, None
    if side in {"fast_enough", "too_slow"}:
        holds, why = (side == "fast_enough") == asks_for_fast, ""
    else:
        if system:
            needed = runs_to_decide(
                wide, seconds, runs=len(runs), freedom=system.freedom, known=system.known, alpha=alpha
            )
        holds, why = None, _why(side, wide, seconds, system, len(runs), needed)
    return Decision(
        holds=holds, low=low, high=high, claim=claim, alpha=alpha, between=system,
        steady=_value(metric.sense, metric.amount, wide.mean), by_rule=metric.quantity.meets(op, bound), needed=needed,
        why=why,
    )  # fmt: skip


def with_own_rule(decision: Decision, metric: Metric, op: Op, bound: Quantity) -> Decision:
    """A decision on a number that was computed by a rule of its own, which has to be on the same side of the bound."""
    by_rule = metric.quantity.meets(op, bound)
    if decision.holds in {None, by_rule}:
        return decision
    steady, number = ("meets", "misses") if decision.holds else ("misses", "meets")
    why = (
        f"The steady part of the run {steady} it, and the number {number} it by its own rule: train longer, or bound a "
        "statistic of the steady part, such as throughput"
    )
    return replace(decision, holds=None, why=why)


def compare_metrics(metric: Metric, op: Op, other: Metric, apart: float = 0.0) -> Decision:
    """Compare the numbers of two runs, of one dimension, with each other by the intervals of both.

    `apart` is a share by which numbers of speed may differ in addition, by levels that the steps of neither show.
    """
    if metric.low is None and metric.high is None:
        return Decision(holds=None, low=None, high=None, claim="run", why=_NOTHING)
    if other.low is None and other.high is None and other.sense is not None:
        return Decision(
            holds=None, low=metric.low, high=metric.high, claim="run", why="the other run has too few judged steps"
        )
    low, high = _ends(metric)
    other_low, other_high = (Quantity(1.0, other.unit).to(metric.unit).value * end for end in _ends(other))
    factor = 1.0 if metric.sense is None else 1.0 + apart
    more, less = low >= other_high * factor, high * factor <= other_low
    holds = None if more == less else more == (op in {">=", ">"})
    why = "" if holds is not None else "The intervals of the two runs overlap: train both longer"
    if why and not (low < other_high and high > other_low):
        few = f"Runs of fewer than {FEW_TO_COMPARE} judged steps"
        why = f"{few} may be on two levels of speed, up to {apart:.0%} apart: train both longer"
    return Decision(holds=holds, low=metric.low, high=metric.high, claim="run", why=why)


def _ends(metric: Metric) -> tuple[float, float]:
    """The interval of a number, infinite at an open end: steps that scatter much leave a rate without an upper end."""
    if metric.low is None and metric.high is None:
        return metric.value, metric.value
    return (-math.inf if metric.low is None else metric.low), (math.inf if metric.high is None else metric.high)


def decide_by_ceiling(metric: Metric, op: Op, bound: Quantity, ranks: Sequence[RankInfo]) -> Decision | None:
    """An undecided comparison if the uncertain ceiling of a share leaves it open; None if the number itself decides.

    The ceiling is the highest matrix-product rate of the ranks. Other programs that slowed some measurements may have
    slowed the highest one as well, by the same factor, so the share lies between `low` and `high`. A threshold that
    both ends meet, or both miss, is decided.
    """
    if metric.low is None or metric.high is None:
        return None
    low, high = (Quantity(end, metric.unit) for end in (metric.low, metric.high))
    if low.meets(op, bound) == high.meets(op, bound):
        return None
    return Decision(
        holds=None, low=None, high=None, claim="run", why=f"it is between {low} and {high}; {describe_rates(ranks)}"
    )


def span(sense: str | None, amount: float, steady: Steady) -> tuple[float | None, float | None]:
    """The interval of a number that has an amount, pauses included; None for an open end."""
    low, high = (_value(sense, amount, end) for end in steady.span)
    return (high, low) if sense == "rate" else (low, high)


def _value(sense: str | None, amount: float, seconds: float) -> float | None:
    if sense == "rate":
        return amount / seconds if seconds > 0.0 else None
    return amount * seconds


def _why(side: str, steady: Steady, seconds: float, between: BetweenRuns | None, runs: int, needed: int | None) -> str:
    """The reason of an undecided comparison in a sentence, and what to do."""
    if side == "too_short" and runs > 1:
        return f"One of the runs has too few judged steps: train at least {steady.least} after the warm-up"
    if side == "too_short":
        slow = f", {steady.left_out} of them slow ones at the start," if steady.left_out else ""
        few = counted(steady.judged + steady.left_out, "judged step")
        return f"{few}{slow} are too few: train at least {steady.least} after the warm-up"
    if side == "not_settled":
        return "The steps still became faster at the end: train longer, or let the recipe leave out more as warm-up"
    if side == "drifts":
        change, word = abs(steady.drift or 0.0), "slower" if (steady.drift or 0.0) > 0.0 else "faster"
        change_text = f"{for_people(100 * change, 2)} % {word}"
        return f"The steps became {change_text} from the first to the last: find out why, or train longer"
    if side == "pauses_decide":
        pauses = "Pauses that are too seldom to be among so few steps may"
        if steady.pauses.at:
            count = counted(len(steady.pauses.at), "pause")
            pauses = f"{count} took {100 * steady.pauses.share:.2g} % of the time, and"
        return f"{pauses} decide whether the threshold is met: find out what the run did then"
    return _more(side, steady, seconds, between, runs, needed)


def _more(side: str, steady: Steady, seconds: float, between: BetweenRuns | None, runs: int, needed: int | None) -> str:
    """The number of steps or runs that would decide, or the advice if any number is too small."""
    if side == "unseen_levels":
        few, steps = counted(steady.judged, "judged step"), steps_to_decide(steady, seconds)
        longer = f"about {for_people(steps, 2)} steps after the warm-up" if steps else "longer"
        return (
            f"{few} may not show levels between which the speed changes now and then, and these may decide: train "
            f"{longer}, or calibrate the threshold"
        )
    steps = steps_to_decide(steady, seconds) if runs == 1 else None
    if steps is not None and steps < _HOPELESS:
        return f"About {for_people(steps, 2)} steps after the warm-up would decide: train longer"
    if between is None:
        return "No number of steps decides that: the speed is the threshold"
    differ = f"Runs of one system differ by more than that ({100 * between.spread:.2g} % between runs): "
    if needed is not None:
        return f"{differ}about {needed} runs would decide; pass `--llmbench-repeat {needed}`"
    return (
        f"{differ}no number of steps or runs decides it. Set the threshold further away, or judge each run alone "
        "(`claim: run` in the reference)"
    )
