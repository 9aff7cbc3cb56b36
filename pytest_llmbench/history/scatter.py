"""The scatter of the runs of one series, combined with that of other series and other systems."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance

from pytest_llmbench.core.quantity import BetweenRuns
from pytest_llmbench.history.change_points import P_VALUE, change_points
from pytest_llmbench.judging.interval.student import above

# Number of earlier runs from which on their scatter is used.
LEAST_PAST = 3
# Degrees of freedom that other series may be worth. From 4 on they are better than the scatter of other systems.
_FREEDOMS = tuple(4.0 * 1.5**power for power in range(-5, 12))
_LEAST_FREEDOM = 4.0
# The logarithm of the likelihood falls by this to a limit that holds with 95 %: half of chi square at 90 %, one side.
_FALL = 1.353


@dataclass(frozen=True, slots=True)
class Scatter:
    """Sum of the squares of the differences of single runs from their mean, as shares of it, and degrees of freedom."""

    squares: float
    freedom: float

    def __add__(self, other: "Scatter") -> "Scatter":
        return Scatter(self.squares + other.squares, self.freedom + other.freedom)

    @property
    def deviation(self) -> float:
        """Standard deviation of the number of one run, as a share of the mean; `freedom` must be above 0."""
        return math.sqrt(self.squares / self.freedom)


def without_outliers(values: Sequence[float]) -> list[int]:
    """Positions of the values but those that are unlike all others, such as one of a bad day; at most one in four.

    Student's t tests the furthest value against the rest, with the p of the furthest of that many; then the next one
    without it, as two outliers could hide each other (Rosner, "Percentage points for a generalized ESD many-outlier
    procedure", 1983).
    """
    left, without = list(range(len(values))), list(range(len(values)))
    for _ in range(len(values) // 4):
        middle = median(values[i] for i in left)
        far = max(left, key=lambda i: abs(values[i] - middle))
        left = [i for i in left if i != far]
        rest = [values[i] for i in left]
        error = math.sqrt(variance(rest) * (1 + 1 / len(rest)))
        away = abs(values[far] - fmean(rest))
        if error > 0.0 and 2 * (len(rest) + 1) * above(away / error, len(rest) - 1.0) <= P_VALUE:
            without = left
    return without


def current_level(values: Sequence[float], *, higher: bool) -> list[int]:
    """Positions of the values since the last change point, without outliers.

    A level that is worse and has lasted for fewer than 3 values is a bad day, and the one before it counts. `higher` is
    True if higher values are better.
    """
    starts = [0, *(point.index for point in change_points(values))]
    end = len(values)
    while len(starts) > 1 and end - starts[-1] < LEAST_PAST:
        before, now = fmean(values[starts[-2] : starts[-1]]), fmean(values[starts[-1] : end])
        if (now > before) == higher:
            break
        end = starts.pop()
    start = starts[-1]
    return [start + i for i in without_outliers(values[start:end])]


def scatter_of_runs(past: Sequence[float], before: Sequence[float], after: Sequence[float]) -> Scatter:
    """The scatter of the runs of one series; parts with a mean of 0 or less are left out.

    Earlier runs scatter about the mean between two change points of the history; outliers are left out.

    Args:
        past: earlier runs, in order of time; used from 3 runs on, and instead of `before`.
        before: runs of the baseline.
        after: new runs.
    """
    parts: list[Sequence[float]] = [after]
    if len(past) >= LEAST_PAST:
        ends = [0, *(point.index for point in change_points(past)), len(past)]
        segments = [past[start:end] for start, end in itertools.pairwise(ends)]
        parts += [[segment[i] for i in without_outliers(segment)] for segment in segments]
    else:
        parts.append(before)
    scatter = Scatter(0.0, 0.0)
    for part in parts:
        mean = fmean(part)
        if mean > 0.0:
            scatter += Scatter(math.fsum((value / mean - 1.0) ** 2 for value in part), len(part) - 1.0)
    return scatter


def usual_scatter(usual: BetweenRuns, error: float) -> Scatter:
    """The scatter of other systems, with the standard error of a run by its own steps, as a share."""
    return Scatter(usual.freedom * (usual.spread**2 + error**2), usual.freedom)


def shared_scatter(series: Iterable[Scatter]) -> Scatter | None:
    """The scatter to expect of one more series of the same kind; None if the series are too few or too different.

    The variances of series are taken as drawn from one inverse gamma distribution, as in a moderated t-test (Smyth,
    "Linear models and empirical Bayes methods", 2004): the more alike the series scatter, the more degrees of freedom
    it has. The result has the smallest number of them within 95 % confidence, so a few series that are alike by chance
    count for little.
    """
    known = [one for one in series if one.freedom > 0.0 and one.squares > 0.0]
    if len(known) < 2:
        return None
    fits = [(freedom, *_fit(known, freedom)) for freedom in _FREEDOMS]
    likely = max(likelihood for _, _, likelihood in fits) - _FALL
    freedom, variance = next((freedom, variance) for freedom, variance, likelihood in fits if likelihood >= likely)
    return Scatter(freedom * variance, freedom) if freedom >= _LEAST_FREEDOM else None


def _fit(series: Sequence[Scatter], freedom: float) -> tuple[float, float]:
    """The likeliest variance that all share, if it has these degrees of freedom, and its log-likelihood.

    Each observed variance, divided by the shared one, is then distributed as F.
    """
    low, high = (math.log(f(one.squares / one.freedom for one in series)) for f in (min, max))
    for _ in range(40):
        middle = (low + high) / 2
        # The slope of the likelihood falls as the shared variance grows.
        prior = freedom * math.exp(middle)
        slope = sum((one.freedom + freedom) * one.squares / (one.squares + prior) - one.freedom for one in series)
        low, high = (middle, high) if slope > 0.0 else (low, middle)
    log_variance = (low + high) / 2
    likelihood = 0.0
    for one in series:
        half, other = one.freedom / 2, freedom / 2
        log_ratio = math.log(one.squares / freedom) - log_variance
        likelihood += math.lgamma(half + other) - math.lgamma(half) - math.lgamma(other)
        likelihood += half * log_ratio - (half + other) * math.log1p(math.exp(log_ratio))
    return math.exp(log_variance), likelihood
