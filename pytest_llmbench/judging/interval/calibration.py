"""Calculates a bound from good runs: the tightest one that a healthy run seldom misses."""

import math
import statistics as stats
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_llmbench.core.quantity import counted
from pytest_llmbench.judging.interval.steady import ALPHA, BETWEEN_RUNS, FREEDOM
from pytest_llmbench.judging.interval.student import above, quantile

# A run is left out if it differs from the median by more than this many median absolute deviations, and by more than
# this many times the usual standard deviation between runs of one system.
_DEVIATIONS, _TIMES = 5.0, 3.0
# One run of this many may be left out. More outliers mean that the runs are from different systems.
_ONE_OF = 4
# Runs that need a wider margin are from different systems or states, and the bound would miss slow systems.
_WIDEST = 0.2
# Largest margin that a user may choose; with more, a run at half the speed would pass.
_WIDEST_CHOSEN = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibrated:
    """A bound, and the numbers that it follows from. A later run is compared with it by its own interval alone."""

    bound: float  # value that a run has to reach, in the unit of the runs
    method: str  # its method in words, for the reader of the reference
    # Number and mean of the good runs
    n: int
    mean: float
    spread: float  # standard deviation between runs as a share of the mean, with `freedom` degrees of freedom
    freedom: float
    margin: float  # distance from the mean to the bound, as a share of the mean
    least_margin: float  # smallest margin that a healthy run misses with probability `ALPHA`
    left_out: tuple[int, ...]  # positions of the runs that were left out
    false_alarm: float  # probability that a healthy run misses the bound


def calibrate(values: Sequence[float], *, lower_is_better: bool = False, less: float | None = None) -> Calibrated:
    """Calculate a bound from good runs: a limit that the next run like them misses with probability `ALPHA`.

    Args:
        values: one number of each run, such as its throughput.
        lower_is_better: the numbers are times, and the bound is above them.
        less: a plain margin instead of that limit, as a share of the mean.

    Raises ValueError if `values` is empty, has a value that must be above 0, is constant or scatters too much, or the
    margin is outside 0 to 0.5.
    """
    if not values or min(values) <= 0 or not math.isfinite(sum(values)):
        raise ValueError("a bound is made of numbers above 0, at least one")
    if less is not None and not 0 < less < _WIDEST_CHOSEN:
        raise ValueError(f"a margin is above 0 and below {_WIDEST_CHOSEN}, as a share, not {less}")
    if len(values) > 1 and min(values) == max(values):
        raise ValueError(
            f"all {len(values)} runs have the number {values[0]:g} to the last digit: they are copies of one"
        )
    left_out = _outliers(values, _TIMES * BETWEEN_RUNS)
    good = [value for i, value in enumerate(values) if i not in left_out]
    n, mean = len(good), sum(good) / len(good)
    differing = stats.variance([value / mean for value in good]) if n > 1 else 0.0
    known = FREEDOM + n - 1
    spread = math.sqrt((FREEDOM * BETWEEN_RUNS**2 + (n - 1) * differing) / known)
    next_run = spread * math.sqrt(1 + 1 / n)
    least = quantile(1 - ALPHA, known) * next_run
    if less is None and least > _WIDEST:
        raise ValueError(
            f"the runs differ by {100 * spread:.2g} % (standard deviation): a bound that each healthy run meets is "
            f"{least:.0%} away from their mean, and finds no slow system. Find out why they differ, or give a margin"
        )
    margin, runs = least if less is None else less, counted(n, "run")
    plain = f"margin of {100 * margin:g} % on the mean of {runs}"
    return Calibrated(
        bound=mean * (1 + margin if lower_is_better else 1 - margin),
        method=f"{100 * (1 - ALPHA):g} % prediction limit of {runs}" if less is None else plain,
        n=n,
        mean=mean,
        spread=spread,
        freedom=known,
        margin=margin,
        least_margin=least,
        left_out=left_out,
        false_alarm=above(margin / next_run, known),
    )


def _outliers(values: Sequence[float], share: float) -> tuple[int, ...]:
    middle = stats.median(values)
    limit = max(_DEVIATIONS * stats.median([abs(value - middle) for value in values]), share * middle)
    far_away = tuple(i for i, value in enumerate(values) if abs(value - middle) > limit)
    if len(far_away) > max(1, len(values) // _ONE_OF) or len(values) - len(far_away) < 2 <= len(values):
        raise ValueError(
            f"{len(far_away)} of {len(values)} runs differ from the median by more than {limit / middle:.2%}: "
            "calibrate runs of one system in one state"
        )
    return far_away
