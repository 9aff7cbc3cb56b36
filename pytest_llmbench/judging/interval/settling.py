"""The slow start of a run: the number of steps to leave out, by a test of the steps themselves."""

import math
from collections.abc import Sequence
from itertools import accumulate

from pytest_llmbench.judging.interval.spread import Spread, spread

_BATCH = 5
# A slow start is at least this many standard errors above the rest, and its first third this many.
_ERRORS = 3.0
_FIRST_ERRORS = 2.0
# It is left out with half as many steps more, up to this share of all.
_FURTHER = 0.5
_MOST = 2 / 3


def slow_start(seconds: Sequence[float], *, batch: int = _BATCH) -> int:
    """Return the number of steps at the beginning that are a slow start; 0 if they are like the rest.

    The cut is where the rest has the smallest standard error (MSER-5 of White, 1997). That rule alone would also cut at
    chance variations and make the rest look more certain than it is. So a cut counts only if the steps before it are
    slower than the rest by more than chance, and level off, which tells them from a drift.

    Args:
        seconds: duration of each step.
        batch: steps in each mean that the rule reads.
    """
    cut = batch * _truncation([sum(steps) / batch for steps in zip(*[iter(seconds)] * batch, strict=False)])
    if cut < 2:
        return 0
    start, rest = seconds[:cut], seconds[cut:]
    level = sum(rest) / len(rest)
    usual = spread([duration - level for duration in rest], 0.01)
    third, half = max(1, cut // 3), max(1, cut // 2)
    slower = _mean(start) - level > _ERRORS * _error(usual, rest, cut)
    begins = _mean(start[:third]) - level > _FIRST_ERRORS * _error(usual, rest, third)
    first, second = _mean(start[:half]), _mean(start[half:])
    levels_off = first - second > second - level
    if not (slower and begins and levels_off):
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


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _error(usual: Spread, rest: Sequence[float], steps: int) -> float:
    """Standard error of the difference of a mean over `steps` steps from the mean of the rest."""
    return usual.error * math.sqrt(1 + len(rest) / steps)
