"""Quantiles of Student's t distribution, also for fractional degrees of freedom."""

import math
from functools import lru_cache

_TINY = 1e-300


@lru_cache(maxsize=4096)
def quantile(probability: float, freedom: float) -> float:
    """Return the t below which this share of the distribution lies.

    Raises ValueError unless the share is above 0.5 and below 1, and the degrees of freedom are above 0.
    """
    if not (0.5 < probability < 1 and freedom > 0):
        raise ValueError(f"Student's t at {probability} with {freedom} degrees of freedom: need 0.5 < p < 1 and > 0")
    low, high = 0.0, 1.0
    while above(high, freedom) > 1 - probability:
        low, high = high, 2 * high
    t = high
    for _ in range(60):
        over = above(t, freedom) - (1 - probability)
        low, high = (t, high) if over > 0 else (low, t)
        # Newton's step, or bisection if that step leaves the bracket.
        step = t + over / _density(t, freedom)
        nearer = step if low < step < high else (low + high) / 2
        if abs(nearer - t) <= 1e-12 * t:
            break
        t = nearer
    return t


def _density(t: float, freedom: float) -> float:
    log_peak = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    return math.exp(log_peak - (freedom + 1) / 2 * math.log1p(t * t / freedom))


def above(t: float, freedom: float) -> float:
    """Share of the distribution above t ≥ 0: half of the regularized incomplete beta function."""
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t), t * t / (freedom + t * t)) / 2


def _incomplete_beta(a: float, b: float, x: float, y: float) -> float:
    """Regularized incomplete beta function of x = 1 - y; both are given, as the subtraction would lose digits."""
    if x in {0.0, 1.0}:
        return x
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(y)
    if x < (a + 1) / (a + b + 2):
        return math.exp(log_front) * _continued_fraction(a, b, x) / a
    return 1 - math.exp(log_front) * _continued_fraction(b, a, y) / b


def _continued_fraction(a: float, b: float, x: float) -> float:
    """Continued fraction of the incomplete beta function, by Lentz's method (Abramowitz and Stegun 26.5.8)."""
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or _TINY)
    value = d
    for m in range(1, 1000):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + numerator * d or _TINY)
            c = 1 + numerator / c or _TINY
            value *= c * d
        if abs(c * d - 1) < 1e-13:
            break
    return value
