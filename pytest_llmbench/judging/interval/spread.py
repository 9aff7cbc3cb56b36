"""The error of a mean over steps that depend on those before them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

from pytest_llmbench.judging.interval.student import quantile

# Correlation of neighbours is underestimated where there are few steps, and never above this believed.
_MOST_CORRELATION = 0.97
_FEW = 40
# Means of batches show a dependence over more than one step.
_BATCHES = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """How far the mean of some steps may be from that of many more like them.

    Attributes:
        half_width: the true mean is closer than this with confidence 1 − α on either side, seconds.
        error: standard error of the mean, seconds.
        correlation: of neighbouring steps, raised by its own uncertainty.
        independent: number of independent steps that tell as much.
    """

    half_width: float
    error: float
    correlation: float
    independent: float


def spread(residuals: Sequence[float], alpha: float, *, fitted: int = 1, many: bool = False) -> Spread:
    """Estimate the error of a mean from what the steps differ from it.

    Args:
        residuals: of each step from the mean, or from a line through the steps, in order; at least 3.
        alpha: probability of being beyond the half width on one side.
        fitted: numbers that were fitted: 1 for a mean, 2 for a line.
        many: a long run; means of batches are looked at, too.
    """
    m = len(residuals)
    squares = sum(map(mul, residuals, residuals))
    if squares == 0.0:
        return Spread(half_width=0.0, error=0.0, correlation=0.0, independent=float(m))
    r = sum(map(mul, residuals, residuals[1:])) / squares
    r += (fitted + (3 + fitted) * max(r, 0.0)) / m + (1.5 if m < _FEW else 1.0) * math.sqrt(max(1 - r * r, 0.0) / m)
    r = min(max(r, 0.0), _MOST_CORRELATION)
    independent = max(m * (1 - r) / (1 + r), 3.0 if m < _FEW else 4.0)
    error = math.sqrt(squares / (m * (1 - 1 / independent)) / independent)
    half_width = quantile(1 - alpha, _grid(independent - 1)) * error
    if many:
        half_width = max(half_width, _of_batches(residuals, alpha))
    return Spread(half_width=half_width, error=error, correlation=r, independent=independent)


def _grid(freedom: float) -> float:
    """Degrees of freedom, rounded down a little: neighbouring runs share a quantile."""
    unit = 10 ** (math.floor(math.log10(freedom)) - 1)
    return math.floor(freedom / unit) * unit


def _of_batches(residuals: Sequence[float], alpha: float) -> float:
    """Half width by means of batches, which are taken for independent."""
    size = len(residuals) // _BATCHES
    first = len(residuals) - size * _BATCHES
    means = [sum(residuals[start : start + size]) / size for start in range(first, len(residuals), size)]
    mean = sum(means) / _BATCHES
    deviation = math.sqrt(sum((each - mean) ** 2 for each in means) / (_BATCHES - 1))
    return quantile(1 - alpha, _BATCHES - 1.0) * deviation / math.sqrt(_BATCHES)
