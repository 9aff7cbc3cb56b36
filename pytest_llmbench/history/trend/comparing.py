"""Two sets of runs of one series: how one number changed between them, and how surely."""

import itertools
import math
from collections.abc import Sequence
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
# Ends of an interval at another alpha: those of means whose deviation is known about as well as that of 20 steps.
_FREEDOM_WITHIN = 8.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """How a number changed.

    Attributes:
        before, after: means of the runs, in `unit`.
        runs_before, runs_after: their numbers.
        share: the change as a share of the mean before.
        low, high: the interval of the share; None where one run does not say how well it is known.
        better: which direction is an improvement.
        between: standard deviation between runs, as a share; None where it is not known.
        alpha: probability that an end of the interval is wrong.
        why: why there is no interval.
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
    between: float | None = None
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
    """What is known of the difference between runs before any is there; None on CPUs and of tiny shapes."""
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

    The interval is that of the ratio of both means. It holds how well each run is known by its own steps, and how
    runs of one system differ: as it is known of others, and from `past` and both sets themselves.

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
    of_before, of_after = _within(before, means[0]), _within(after, means[1])
    if of_before is None or of_after is None:
        which = "earlier" if of_before is None else "new"
        return replace(told, why=f"one of the {which} runs has no interval: it is too short, or its statistic has none")
    deviation, freedom = between_runs(past, [row.value for row in before], [row.value for row in after], usual)
    if freedom <= 0.0:
        why = f"runs on CPUs and of scale smoke scatter: it takes {LEAST_PAST} earlier runs to know by how much"
        return replace(told, why=why)
    between = quantile(1 - alpha, freedom) * deviation * math.sqrt(1 / len(before) + 1 / len(after))
    factor = quantile(1 - alpha, _FREEDOM_WITHIN) / quantile(1 - ALPHA, _FREEDOM_WITHIN)
    down = math.hypot(between, factor * of_after[0], factor * of_before[1])
    up = math.hypot(between, factor * of_after[1], factor * of_before[0])
    return replace(told, low=ratio * max(0.0, 1 - down) - 1.0, high=ratio * (1 + up) - 1.0, between=deviation)


def between_runs(
    past: Sequence[float], before: Sequence[float], after: Sequence[float], usual: BetweenRuns | None
) -> tuple[float, float]:
    """Standard deviation of runs of one series, as a share, and its degrees of freedom; 0 of these if unknown.

    Earlier runs scatter about the mean of their time: a change of the system that the history shows is no scatter.
    """
    squares, freedom = (usual.freedom * usual.spread**2, usual.freedom) if usual is not None else (0.0, 0.0)
    parts: list[Sequence[float]] = [after]
    if len(past) >= LEAST_PAST:
        ends = [0, *(point.index for point in change_points(past)), len(past)]
        parts += [past[start:end] for start, end in itertools.pairwise(ends)]
    else:
        parts.append(before)
    for part in parts:
        mean = fmean(part) if part else 0.0
        if mean > 0.0 and len(part) > 1:
            squares += math.fsum((value / mean - 1.0) ** 2 for value in part)
            freedom += len(part) - 1
    if usual is None and len(past) < LEAST_PAST:
        return 0.0, 0.0
    return (math.sqrt(squares / freedom), float(freedom)) if freedom > 0.0 else (0.0, 0.0)


def _within(rows: Sequence[MetricRow], mean: float) -> tuple[float, float] | None:
    """How far the mean of some runs may be off by their own steps, down and up, as shares."""
    if mean <= 0.0:
        return None
    down, up = [], []
    for row in rows:
        if row.low is None or row.high is None:
            return None
        down.append((row.value - row.low) / mean)
        up.append((row.high - row.value) / mean)
    return math.hypot(*down) / len(rows), math.hypot(*up) / len(rows)
