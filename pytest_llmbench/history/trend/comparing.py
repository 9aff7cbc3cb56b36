"""Two sets of runs of one series: how one number changed between them, and how surely."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from pytest_llmbench.core.quantity import USUAL_BETWEEN_RUNS, BetweenRuns
from pytest_llmbench.history.store.rows import MetricRow
from pytest_llmbench.history.trend.change_points import change_points
from pytest_llmbench.judging.interval.steady import ALPHA
from pytest_llmbench.judging.interval.student import quantile
from pytest_llmbench.judging.telemetry import Better

# From so many earlier runs on, they say how runs differ.
LEAST_PAST = 3
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
    alpha: float = ALPHA,
) -> Change:
    """Compare a number of two sets of runs.

    The interval is that of the ratio of both means. It holds how well each run is known by its own steps, and how runs
    of one system differ: as it is known of others, and from `past` and the new runs themselves.

    Args:
        before: the number of each earlier run, at least one, all in one unit.
        after: the same of the new ones.
        past: the number of earlier runs of the same series, in order of time; fewer than 3 say nothing.
        usual: the difference between runs that is known of others.
        alpha: probability that an end of the interval is wrong.

    Raises:
        ValueError: a set is empty, units differ, or the mean before is not above 0.
    """
    if not before or not after:
        raise ValueError("two sets with at least one run each can be compared")
    units = {row.unit for row in (*before, *after)}
    if len(units) > 1:
        raise ValueError(f"numbers in {' and '.join(sorted(units))} cannot be compared")
    means = fmean(row.value for row in before), fmean(row.value for row in after)
    if means[0] <= 0.0:
        raise ValueError(f"a mean of {means[0]:g} before has no shares")
    ratio = means[1] / means[0]
    told = Change(
        before=means[0], after=means[1], unit=units.pop(), runs_before=len(before), runs_after=len(after),
        share=ratio - 1.0, better=after[-1].better or before[-1].better, alpha=alpha,
    )  # fmt: skip
    errors = [[_error(row) for row in rows] for rows in (before, after)]
    for which, of_runs in zip(("earlier", "new"), errors, strict=True):
        if None in of_runs:
            why = f"one of the {which} runs has no interval: it is too short, or its statistic has none"
            return replace(told, why=why)
    error_before, error_after = (_root_mean_square(error for error in of_runs if error) for of_runs in errors)
    values = [row.value for row in before], [row.value for row in after]
    deviation, freedom = deviation_of_runs(past, *values, usual, error_before)
    if freedom <= 0.0:
        why = f"runs on CPUs and of scale smoke scatter: it takes {LEAST_PAST} earlier runs to know by how much"
        return replace(told, why=why)
    # Of new runs that are less well known by their own steps than the earlier ones.
    more = max(0.0, error_after**2 - error_before**2)
    width = quantile(1 - alpha, freedom) * math.sqrt(deviation**2 / len(before) + (deviation**2 + more) / len(after))
    return replace(told, low=ratio * max(0.0, 1 - width) - 1.0, high=ratio * (1 + width) - 1.0, deviation=deviation)


def deviation_of_runs(
    past: Sequence[float], before: Sequence[float], after: Sequence[float], usual: BetweenRuns | None, error: float
) -> tuple[float, float]:
    """Standard deviation of the numbers of one series, as a share, and its degrees of freedom; 0 of these if unknown.

    Before any run is there, it is that of runs of other systems together with that of the steps of one run. The
    scatter of the runs themselves has both in it, and counts the more the more there are. Earlier runs scatter about
    the mean of their time: a change of the system that the history shows is not scatter.

    Args:
        past: earlier runs, in order of time.
        before: those of the baseline.
        after: the new ones.
        usual: the difference between runs that is known of others.
        error: standard error of a run by its own steps, as a share.
    """
    squares, freedom = 0.0, 0.0
    if usual is not None:
        squares, freedom = usual.freedom * (usual.spread**2 + error**2), usual.freedom
    elif len(past) < LEAST_PAST:
        return 0.0, 0.0
    parts: list[Sequence[float]] = [after]
    if len(past) >= LEAST_PAST:
        ends = [0, *(point.index for point in change_points(past)), len(past)]
        parts += [past[start:end] for start, end in itertools.pairwise(ends)]
    else:
        parts.append(before)
    for part in parts:
        mean = fmean(part)
        squares += math.fsum((value / mean - 1.0) ** 2 for value in part)
        freedom += len(part) - 1
    return (math.sqrt(squares / freedom), float(freedom)) if freedom > 0.0 else (0.0, 0.0)


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
