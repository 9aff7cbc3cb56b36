"""The steps that stand out: pauses, during which the run did something else, and the slow start of a run."""

import math
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise
from operator import mul
from statistics import NormalDist, fmean, median

from pytest_llmbench.core.record.steady import Pauses
from pytest_llmbench.judging.interval.spread import spread

# A step stands out that differs from the median by more than this many standard deviations (of the median absolute
# deviation), and by more than this share of the median.
_DEVIATIONS = 6.0
SHARE = 0.2
# Pauses are few up to these limits; more of them may be part of the speed.
_IN_A_ROW = 3
_OF_ALL = 0.05
# Slow steps at the very beginning are at most this share of all.
_FIRST_OF_ALL = 0.25
# The median absolute deviation of normally distributed values is their standard deviation divided by this.
NORMAL_MAD = 1.4826

_BATCH = 5
# A slow start is at least this many standard errors above the rest, and its first third this many.
_ERRORS = 3.0
_FIRST_ERRORS = 2.0
# It is left out with half as many steps more, up to this share of all.
_FURTHER = 0.5
_MOST = 2 / 3


def find_pauses(seconds: Sequence[float], *, least_first: int = 1) -> Pauses:
    """Find the steps whose duration stands out; from `least_first` on, slow ones at the beginning are a slow start."""
    ordered = sorted(seconds)
    usual = median(ordered)
    nearer = SHARE * usual
    if ordered[-1] - usual <= nearer and usual - ordered[0] <= nearer:
        return Pauses(usual=usual)
    # Distances of sorted values fall and then rise, which Python sorts in linear time.
    away = sorted([abs(duration - usual) for duration in ordered])
    limit = max(_DEVIATIONS * NORMAL_MAD * median(away), nearer)
    if away[-1] <= limit:
        return Pauses(usual=usual)
    at = tuple([position for position, duration in enumerate(seconds) if abs(duration - usual) > limit])
    first = next((i for i, position in enumerate((*at, -1)) if position != i or seconds[i] < usual), 0)
    first = first if least_first <= first <= _FIRST_OF_ALL * len(seconds) else 0
    later = at[first:]
    neighbours = groupby(enumerate(later), key=lambda pair: pair[1] - pair[0])
    in_a_row = max((len(list(row)) for _, row in neighbours), default=0)
    gaps = {following - before for before, following in pairwise(later)}
    period = gaps.pop() if len(later) > 2 and len(gaps) == 1 else None
    regular = (
        period is not None
        and later[0] < period + first
        and len(seconds) - later[-1] <= period
        and all(seconds[position] > usual for position in later)
    )
    few = len(later) <= _OF_ALL * len(seconds) and in_a_row <= _IN_A_ROW
    share = sum(seconds[position] - usual for position in at) / sum(seconds)
    return Pauses(at=at, usual=usual, share=share, period=period, regular=regular, first=first, few=few)


def without_pauses(seconds: Sequence[float], pauses: Pauses) -> list[float]:
    """The durations with each pause replaced by the usual duration."""
    steady = list(seconds)
    for position in pauses.at:
        steady[position] = pauses.usual
    return steady


def further_pauses(seconds: Sequence[float], pauses: Pauses, start: int, alpha: float) -> float:
    """Seconds by which pauses from step `start` on may cost more in a longer run than here.

    More is lost with probability `alpha`. Pauses at random are a compound Poisson process. Its upper limit is that of a
    number of pauses of one length, which have the same sum and the same sum of squares. Pauses at equal distances are
    one more at most.
    """
    lost: list[float] = []
    for before, at in pairwise((-1, *pauses.at)):
        extra = abs(seconds[at] - pauses.usual) if at >= start else 0.0
        if at == before + 1 and lost:
            lost[-1] += extra
        else:
            lost.append(extra)
    total = math.fsum(lost)
    if total <= 0.0:
        return 0.0
    longest = math.fsum(map(mul, lost, lost)) / total
    if pauses.period is not None:
        return longest
    count = total / longest
    # The quantile of chi square by Wilson and Hilferty (1931).
    more, z = count + 1, NormalDist().inv_cdf(1 - alpha)
    most: float = more * (1 - 1 / (9 * more) + z / (3 * math.sqrt(more))) ** 3
    return (most - count) * longest


def slow_start(seconds: Sequence[float], *, batch: int = _BATCH) -> int:
    """Return the number of steps at the beginning that are a slow start; 0 if they are like the rest.

    The cut is where the rest has the smallest standard error (MSER-5 of White, 1997). That rule alone would also cut at
    chance variations and make the rest look more certain than it is. So a cut counts only if the steps before it are
    slower than the rest by more than chance, and level off, which distinguishes them from a drift. The rule reads means
    of `batch` steps.
    """
    cut = batch * _truncation([sum(steps) / batch for steps in zip(*[iter(seconds)] * batch, strict=False)])
    if cut < 2:
        return 0
    start, rest = seconds[:cut], seconds[cut:]
    level = fmean(rest)
    error = spread([duration - level for duration in rest], 0.01).error
    third, half = max(1, cut // 3), max(1, cut // 2)
    # The errors are those of the difference of a mean over some steps from the mean of the rest.
    slower = fmean(start) - level > _ERRORS * (error * math.sqrt(1 + len(rest) / cut))
    begins = fmean(start[:third]) - level > _FIRST_ERRORS * (error * math.sqrt(1 + len(rest) / third))
    first, second = fmean(start[:half]), fmean(start[half:])
    if not (slower and begins and first - second > second - level):
        return 0
    return min(cut + math.ceil(_FURTHER * cut), math.floor(_MOST * len(seconds)))


def _truncation(means: Sequence[float]) -> int:
    """Number of means to leave out, at most half, so that the rest has the smallest standard error."""
    n = len(means)
    best, cut = math.inf, 0
    sums = [0.0, *accumulate(reversed(means))]
    squares = [0.0, *accumulate(mean * mean for mean in reversed(means))]
    for left_out in range(n // 2 + 1):
        kept = n - left_out
        error = (squares[kept] - sums[kept] ** 2 / kept) / kept**2 if kept > 1 else math.inf
        if error < best:
            best, cut = error, left_out
    return cut
