"""Two sets of runs of one series: how one number changed between them, and how surely."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from pytest_llmbench.core.quantity import USUAL_BETWEEN_RUNS, BetweenRuns
from pytest_llmbench.history.store.rows import MetricRow
from pytest_llmbench.history.trend.scatter import LEAST_PAST, Scatter, scatter_of_runs, usual_scatter
from pytest_llmbench.judging.interval.steady import ALPHA
from pytest_llmbench.judging.interval.student import quantile
from pytest_llmbench.judging.telemetry import Better

# In so many comparisons of sessions any number is called worse by chance. A gate that compares every night would call a
# healthy system slow three or four times a year at the usual 1 %.
ALPHA_OF_SESSION = ALPHA / 5
# An interval that reaches so far to the worse, as a share, would hide what matters.
COARSE = 0.05
# An end of a run's own interval is so many standard errors away as if they were known with these degrees of freedom.
_FREEDOM_WITHIN = 8.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """How a number changed.

    Attributes:
        before, after: means of the runs, in `unit`.
        runs_before, runs_after: their numbers.
        share: the change as a share of the mean before.
        low, high: the interval of the share; None where one run does not say how well it is known.
        better: direction of an improvement.
        deviation: standard deviation of the number of one run, as a share; None where it is not known.
        alpha: probability that an end of the interval is wrong.
        why: the reason that the interval is missing.
    """

    before: float
    after: float
    unit: str
    runs_before: int
    runs_after: int
    share: float
    better: Better | None
    low: float | None = None
    high: float | None = None
    deviation: float | None = None
    alpha: float = ALPHA
    why: str = ""

    @property
    def worst(self) -> float | None:
        """How much worse it may have become, as a share; below 0 if it certainly became better; None if unknown."""
        if self.low is None or self.high is None or self.better is None:
            return None
        return -self.low if self.better == "higher" else self.high

    @property
    def least_worse(self) -> float | None:
        """How much worse it became at the least, as a share; None if unknown."""
        if self.low is None or self.high is None or self.better is None:
            return None
        return -self.high if self.better == "higher" else self.low

    @property
    def regressed(self) -> bool | None:
        """Whether it became worse, beyond what is uncertain; None where that is unknown, or the interval too wide."""
        if self.worst is None or self.least_worse is None:
            return None
        if self.least_worse > 0.0:
            return True
        return None if self.worst > COARSE else False

    @property
    def improved(self) -> bool:
        """Whether it became better, beyond what is uncertain."""
        return self.worst is not None and self.worst < 0.0


def usual_spread(*, gpus: int, scale: str) -> BetweenRuns | None:
    """The difference between runs that is usual, before any is there; None on CPUs and of tiny shapes."""
    return USUAL_BETWEEN_RUNS if gpus and scale == "full" else None


def change(
    before: Sequence[MetricRow],
    after: Sequence[MetricRow],
    *,
    past: Sequence[float] = (),
    usual: BetweenRuns | None,
    shared: Scatter | None = None,
    alpha: float = ALPHA,
) -> Change:
    """Compare a number of two sets of runs.

    The interval is that of the ratio of both means. It holds how well each run is known by its own steps, and how runs
    of one system differ: as other series of it or other systems tell, and `past` and the new runs themselves. The
    scatter of these has both in it, and counts the more the more runs there are.

    Args:
        before: the number of each earlier run, at least one, all in one unit.
        after: the same of the new ones.
        past: the number of earlier runs of the same series, in order of time; fewer than 3 say nothing.
        usual: the difference between runs that is known of other systems; without it, `past` must have 3 runs.
        shared: the scatter that other series of this system tell, used instead of `usual`.
        alpha: probability that an end of the interval is wrong.

    Raises:
        ValueError: a set is empty, units differ, or the mean before is not above 0.
    """
    if problem := not_comparable(before, after):
        raise ValueError(problem)
    means = fmean(row.value for row in before), fmean(row.value for row in after)
    ratio = means[1] / means[0]
    told = Change(
        before=means[0], after=means[1], unit=after[-1].unit, runs_before=len(before), runs_after=len(after),
        share=ratio - 1.0, better=after[-1].better or before[-1].better, alpha=alpha,
    )  # fmt: skip
    errors = [[_error(row) for row in rows] for rows in (before, after)]
    for which, of_runs in zip(("earlier", "new"), errors, strict=True):
        if None in of_runs:
            why = f"one of the {which} runs has no interval: it is too short, or its statistic has none"
            return replace(told, why=why)
    error_before, error_after = (_root_mean_square(error for error in of_runs if error) for of_runs in errors)
    own = scatter_of_runs(past, [row.value for row in before], [row.value for row in after])
    if usual is None and (len(past) < LEAST_PAST or own.freedom <= 0.0):
        why = f"runs on CPUs and of scale smoke scatter: it takes {LEAST_PAST} earlier runs to know by how much"
        return replace(told, why=why)
    if shared is not None:
        own += shared
    elif usual is not None:
        own += usual_scatter(usual, error_before)
    # No run is better known than by its own steps: earlier runs that are alike beyond that may be copies of one.
    deviation = max(own.deviation, error_before)
    # Of new runs that are less well known by their own steps than the earlier ones.
    more = max(0.0, error_after**2 - error_before**2)
    width = quantile(1 - alpha, own.freedom) * math.sqrt(
        deviation**2 / len(before) + (deviation**2 + more) / len(after)
    )
    return replace(told, low=ratio * max(0.0, 1 - width) - 1.0, high=ratio * (1 + width) - 1.0, deviation=deviation)


def not_comparable(before: Sequence[MetricRow], after: Sequence[MetricRow]) -> str:
    """The reason that two sets have no ratio of their means; empty if they have one."""
    if not before or not after:
        return "two sets with at least one run each can be compared"
    units = {row.unit for row in (*before, *after)}
    if len(units) > 1:
        return f"numbers in {' and '.join(sorted(units))} cannot be compared"
    mean = fmean(row.value for row in before)
    return "" if mean > 0.0 else f"a mean of {mean:g} before has no shares"


def _error(row: MetricRow) -> float | None:
    """Standard error of a run's number by its own steps, as a share; None where it has no interval."""
    if row.low is None or row.high is None or row.value <= 0.0:
        return None
    # The other side has what a slow start may still hide, which is the same in runs of one length.
    half = min(row.high - row.value, row.value - row.low)
    return max(half, 0.0) / (row.value * quantile(1 - ALPHA, _FREEDOM_WITHIN))


def _root_mean_square(values: Iterable[float]) -> float:
    squares = [value**2 for value in values]
    return math.sqrt(fmean(squares)) if squares else 0.0
