"""The error of a mean over steps that depend on those before them."""

import math
import statistics as stats
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

from pytest_llmbench.judging.interval.student import quantile

# Few steps underestimate the correlation of neighbours, so it is raised, up to this limit.
_MOST_CORRELATION = 0.97
_FEW, _VERY_FEW = 40, 20
# Least number of independent steps to assume: of 40 steps or more, and of 20 or fewer. It is the third of these where
# the correlation alone would leave 5 or fewer, and no longer counts from 10 on.
_INDEPENDENT, _INDEPENDENT_OF_VERY_FEW, _INDEPENDENT_OF_ALIKE = 4.0, 2.8, 2.6
_ALIKE, _UNLIKE = 5.0, 10.0
# Correlations over two and three steps count from this many standard errors on, and show how fast they fade.
_SEEN, _MOST_FADING = 1.2, 0.95
# The correction for skew holds for small deviations; above this quantile it would be larger than the error it corrects.
_MOST_LEAN = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Uncertainty of the mean of some steps: its distance from the mean of many more like them, in seconds.

    The true mean is closer than `half_width` with confidence 1 - alpha on either side; `error` is its standard error.
    By `lean` the interval reaches further to slow outliers, or, if negative, to fast ones.
    """

    half_width: float
    error: float
    lean: float


def spread(residuals: Sequence[float], alpha: float, *, fitted: int = 1, batches: int = 0) -> Spread:
    """Estimate the error of a mean from the residuals of the steps, at least 2, in order.

    Args:
        residuals: difference of each step from the mean, or from a line through the steps.
        alpha: probability of being beyond the half width on one side.
        fitted: number of fitted parameters: 1 for a mean, 2 for a line.
        batches: number of parts of a long run whose means count as well: they show a dependence over many steps.
    """
    m = len(residuals)
    squared = list(map(mul, residuals, residuals))
    squares = sum(squared)
    if squares == 0.0:
        return Spread(half_width=0.0, error=0.0, lean=0.0)
    r = sum(map(mul, residuals, residuals[1:])) / squares
    second, third = (sum(map(mul, residuals, residuals[lag:])) / squares for lag in (2, 3))
    if r > 0.0 and min(second, third) > _SEEN / math.sqrt(m):
        # Noise on top of a long memory hides how long it is.
        later = r / (1 - min((second + third) / (r + second), _MOST_FADING))
        r = max(r, later / (1 + later))
    by_correlation = m * (1 - r) / (1 + r)
    r += (fitted + (3 + fitted) * max(r, 0.0)) / m + (1.5 if m < _FEW else 1.0) * math.sqrt(max(1 - r * r, 0.0) / m)
    r = min(max(r, 0.0), _MOST_CORRELATION)
    independent = max(m * (1 - r) / (1 + r), _least_independent(m, by_correlation))
    error = math.sqrt(squares / (m * (1 - 1 / independent)) / independent)
    t = quantile(1 - alpha, _grid(independent - 1))
    half_width: float = t * error
    if batches:
        half_width = max(half_width, _of_batches(residuals, batches, alpha))
    # Twice the first term of the expansion of Cornish and Fisher, as Johnson (1978) has it for t, and what one more of
    # the furthest steps would add: few steps show a part of their skew.
    skew = sum(map(mul, squared, residuals)) / (squares * math.sqrt(squares / m))
    lean = skew * (1 + 2 * min(t, _MOST_LEAN) ** 2) / (3 * math.sqrt(independent)) * error
    lean += (max(residuals) if skew > 0.0 else min(residuals)) * abs(skew) / (2 * independent)
    return Spread(half_width=half_width, error=error, lean=lean)


def _least_independent(steps: int, by_correlation: float) -> float:
    share = min(max((steps - _VERY_FEW) / (_FEW - _VERY_FEW), 0.0), 1.0)
    least = _INDEPENDENT_OF_VERY_FEW + share * (_INDEPENDENT - _INDEPENDENT_OF_VERY_FEW)
    alike = min(max((_UNLIKE - by_correlation) / (_UNLIKE - _ALIKE), 0.0), 1.0)
    return least - alike * (least - _INDEPENDENT_OF_ALIKE)


def _grid(freedom: float) -> float:
    """Degrees of freedom, rounded down a little: neighbouring runs share a quantile."""
    unit = 10.0 ** (math.floor(math.log10(freedom)) - 1)
    return math.floor(freedom / unit) * unit


def _of_batches(residuals: Sequence[float], count: int, alpha: float) -> float:
    """Half width by the means of batches, which are assumed to be independent."""
    count = min(count, len(residuals))
    size = len(residuals) // count
    first = len(residuals) - size * count
    means = [sum(residuals[start : start + size]) / size for start in range(first, len(residuals), size)]
    return quantile(1 - alpha, count - 1.0) * stats.stdev(means) / math.sqrt(count)
