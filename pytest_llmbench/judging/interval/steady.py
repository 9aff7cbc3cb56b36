"""The steady state of a run: the interval of its mean step time, with the parts that make up its width.

The rule and its measured error rates are in `docs/measurements/verdicts_cpu_2026-11-28.yaml`.
"""

import math
import statistics as stats
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, islice
from operator import mul
from typing import NamedTuple

from pytest_llmbench.core.quantity import USUAL_BETWEEN_RUNS
from pytest_llmbench.core.record.steady import Pauses, Steady
from pytest_llmbench.judging.interval.slow_steps import (
    NORMAL_MAD,
    find_pauses,
    further_pauses,
    slow_start,
    without_pauses,
)
from pytest_llmbench.judging.interval.spread import spread

ALPHA = 0.01
# Least number of steps for a verdict; after a slow start (at least three slow steps) more are needed.
LEAST = 20
_LEAST_WITH_START, _STARTED = 30, 3
# Least number of lines for a verdict, if each is a mean over at least this many steps.
LEAST_LINES, STEPS_OF_A_LINE = 5, 5
_BATCH = 5
# A line through the steps counts as a drift from here on, in standard errors.
_DRIFTS = 2.0
_SETTLED = 0.01
# The interval allows for a fall hidden by noise, as a share of what would count as a drift.
_HIDDEN = 0.4
# Noise that hides a fall of this share in fewer steps or lines than these hides the beginning of a long warm-up. So do
# fewer than 20 steps after a slow start. The first share is that of fewer than 40 steps.
_NOISE_OF_VERY_FEW, _NOISE, _FEW, _HIDDEN_IN_NOISE = 0.015, 0.02, 60, 3.0
_LEAST_FOR_A_LINE = 4
# A slow start falls further by at most this many times what it fell from the second third of the steps to the last.
_GOES_ON = 3.0
# The last of this many parts is a level of its own if it differs from the rest by more than this many standard errors.
_LATE, _DEVIATES = 4, 3.0
# Longer runs are reduced to this many means of consecutive steps at most.
_MOST = 400
# Least number of steps for an interval by the means of batches, and the number of batches.
_BATCHES = ((_MOST, 10), (100, 6), (0, 0))
# A run that changes between two levels 8 % apart, every 20 steps in the mean, may show one of them only. The mean of
# many more steps is half of that away. From 75 steps on, the chance of it falls exponentially. `_FADES_ALIKE` is the
# constant of this fall if all steps are alike, `_FADES` if a few are on another level.
_LEVELS, _SHORT, _FADES_ALIKE, _FADES = 0.04, 75, 10, 25
# Up to 8 neighbouring steps are on another level if their mean is 3 standard errors away. Noise may hide a level that
# is 1.5 standard deviations away.
_NEIGHBOURS, _ANOTHER, _HIDES = (1, 2, 4, 8), 3.0, 1.5
# Noise above 0.6 % in fewer than 40 steps may belong to a longer memory, or hide a slow start. The excess counts up to
# 60 times, and at most as much again as the levels.
_VERY_SHORT, _NOISY, _TIMES_NOISE = 40, 0.006, 60.0
# Two runs of fewer steps may each be on one of these levels throughout, in more than 0.3 % of pairs on different ones.
FEW_TO_COMPARE = 50
# Default standard deviation between runs of one system, for references without their own.
BETWEEN_RUNS, FREEDOM = USUAL_BETWEEN_RUNS.spread, USUAL_BETWEEN_RUNS.freedom


def steady_state(seconds: Sequence[float], *, steps_of_a_line: int = 1, alpha: float = ALPHA) -> Steady:
    """Find the steady state of a run and the interval of its mean.

    With an alpha of 1 %, at most 1 % of verdicts were wrong in the simulated cells of the domain: 25 to 5,000 steps (a
    verdict needs at least 20 after the warm-up, or 5 lines), noise with a coefficient of variation of 0.05 to 6 % and a
    correlation of neighbours up to 0.9 (0.98 from 40 steps on), bounds 0.5 to 5 % away; drift, pauses, evaluations,
    slow starts, swings of 3 % and levels 8 % apart. Limits: noise may hide the end of a slow start whose excess fades
    with a time constant of more than 0.6 of the steps; runs of one system that differ by more than 0.7 % need a
    calibrated `between_runs`, or several runs; pauses shorter than a line are part of the speed.

    Args:
        seconds: per step after the recipe's warm-up, of each step or of each line that is a mean over several.
        steps_of_a_line: steps in each entry.
        alpha: probability of an error on either side.

    Raises ValueError if `seconds` is empty, or has a value that must be a number above 0.
    """
    # `min` may overlook NaN; the sum does contain it.
    if not seconds or min(seconds) <= 0 or not math.isfinite(sum(seconds)):
        raise ValueError("step times must be numbers above 0, at least one")
    lines = steps_of_a_line >= STEPS_OF_A_LINE
    pauses = find_pauses(seconds, least_first=_STARTED if lines else 1)
    smooth = without_pauses(seconds, pauses)[pauses.first :]
    size = -(-len(smooth) // _MOST)
    reduced = _means(smooth, size)
    cut = slow_start(reduced, batch=1 if lines else _BATCH)
    start = pauses.first + cut * size
    judged = seconds[start:]
    level, *others = _levels(reduced, cut, judged, pauses, alpha, steps_of_a_line)
    rest, usual = reduced[cut:], stats.fmean(reduced[cut:])
    least = LEAST_LINES if lines else _LEAST_WITH_START if start >= _STARTED else LEAST
    return Steady(
        low=min(reading.low for reading in (level, *others)),
        high=max(reading.high for reading in (level, *others)),
        mean=level.mean,
        mean_with_pauses=sum(judged) / len(judged),
        left_out=start,
        judged=len(judged),
        half_width=level.width,
        scatter=math.dist(rest, [usual] * len(rest)) / math.sqrt(len(rest)) / usual,
        slope=level.slope,
        drift=level.drift,
        settled=level.drift is None or level.drift > (0.0 if cut else -_SETTLED),
        enough=len(seconds) - pauses.first >= least,
        least=pauses.first + least,
        pauses=pauses,
        fastest=min(judged),
        slowest=max(seconds),
        pausing=further_pauses(seconds, pauses, start, alpha) / len(judged),
        unseen=_unseen(rest, len(judged), steps_of_a_line, min(level.drift or 0.0, 0.0)) * level.mean,
    )


def unseen(steps: int, away: float = math.inf) -> float:
    """Share by which the mean of many more steps may differ because of a level of speed not seen here.

    `away` is the distance of another level that a few of the steps show or hide, as a share.
    """
    seen = min(away / 2, _LEVELS) * math.exp(min((_SHORT - steps) / _FADES, 0.0))
    return max(seen, _LEVELS * math.exp(min((_SHORT - steps) / _FADES_ALIKE, 0.0)))


def _unseen(reduced: Sequence[float], judged: int, line: int, fall: float) -> float:
    """Share of `unseen`, from the steps themselves or their means; `line` is the number of steps in each entry."""
    middle = stats.median(reduced)
    deviation = NORMAL_MAD * stats.median([abs(duration - middle) for duration in reduced])
    furthest = _HIDES * deviation
    sums = [0.0, *accumulate(duration - middle for duration in reduced)]
    for count in _NEIGHBOURS:
        away = max((abs(end - begin) for begin, end in zip(sums, sums[count:], strict=False)), default=0.0) / count
        if away > _ANOTHER * deviation / math.sqrt(count):
            furthest = max(furthest, away)
    few = max(1 - judged * line / _VERY_SHORT, 0.0)
    # A fall is not noise: the interval itself contains it.
    noise = math.sqrt(max(stats.pvariance(reduced) / middle**2 - fall**2 / 12, 0.0)) if few else 0.0
    noise = few * _TIMES_NOISE * max(noise - _NOISY, 0.0)
    return min(unseen(judged * line, line * furthest / middle) + noise, 2 * _LEVELS)


def unseen_between(steps: Iterable[int | None]) -> float:
    """Largest share by which runs with these numbers of judged steps may differ: each may have seen one level only."""
    return 2 * _LEVELS if all(each is not None and each < FEW_TO_COMPARE for each in steps) else 0.0


class _Level(NamedTuple):
    """Mean of some steps, with the parts of its uncertainty, in seconds.

    `steps` is their number, `width` the half width of the interval, `lean` its further reach to one side, `change` that
    of a line through the steps, `chance` the largest change that noise alone explains, and `hidden_fall` by how much
    the steps may still become faster, hidden by noise.
    """

    steps: int
    mean: float
    width: float
    lean: float = 0.0
    change: float = 0.0
    chance: float = 0.0
    hidden_fall: float = 0.0

    @property
    def slope(self) -> float:
        return self.change / self.mean

    @property
    def drift(self) -> float | None:
        return self.slope if abs(self.change) > self.chance else None

    @property
    def low(self) -> float:
        # A logarithm keeps the end of a duration above 0, however much the steps scatter.
        reach = max(self._drifted, self.hidden_fall / 2) + self.width - min(self.lean, 0.0)
        return self.mean * math.exp(-reach / self.mean)

    @property
    def high(self) -> float:
        return self.mean + self._drifted + self.width + max(self.lean, 0.0)

    @property
    def _drifted(self) -> float:
        return abs(self.change) / 2 if self.drift is not None else 0.0


def _levels(
    reduced: Sequence[float], cut: int, judged: Sequence[float], pauses: Pauses, alpha: float, line: int
) -> tuple[_Level, ...]:
    """The level of the judged steps, then the levels of other plausible readings of the same steps.

    `reduced` are the steps without pauses, of which the first `cut` are a slow start; `line` is the number of steps
    in each entry.
    """
    batches = next(count for least, count in _BATCHES if len(judged) >= least)
    level = _level(reduced[cut:], alpha, batches=batches, line=line, started=cut > 0)
    others = []
    if cut:
        uncut = _level(reduced, alpha, batches=batches, line=line)
        # Unlike in a drift, the rest falls more slowly than a line through all steps by more than chance.
        levels_off = level.change / level.steps - uncut.change / uncut.steps > level.chance / level.steps
        middle = (sum(reduced[:cut]) / cut + level.mean) / 2
        returns = max(_means(reduced[cut:], min(_BATCH, level.steps))) > middle
        # One or two slow lines at the beginning may be due to a pause within them.
        may_be_pause = line >= STEPS_OF_A_LINE and cut <= _BATCH
        others = [uncut] if may_be_pause or returns or not levels_off else []
        others.append(level._replace(mean=level.mean - _still_to_fall(reduced, level)))
    last = level.steps // _LATE
    if last >= _BATCH:
        late = sum(reduced[-last:]) / last
        apart = (late - level.mean) / (1 - 1 / _LATE)
        if abs(apart) > _DEVIATES * level.chance / (_DRIFTS * math.sqrt(12)) * _LATE / math.sqrt(_LATE - 1):
            others.append(_Level(last, late, level.width * math.sqrt(_LATE)))
    if pauses.few:
        return (level, *others)
    # Too many slow steps to be pauses. If they come at equal distances, the means of whole periods are judged.
    if pauses.period is not None and pauses.regular and len(judged) >= LEAST_LINES * pauses.period:
        periods = _means(judged, pauses.period)
        return (_level(_means(periods, -(-len(periods) // _MOST)), alpha, batches=batches), *others)
    return (level, *others, _level(_means(judged, -(-len(judged) // _MOST)), alpha, batches=batches))


def _still_to_fall(steps: Sequence[float], level: _Level) -> float:
    """By how much steps that begin with a slow start may still fall below their level, in seconds.

    The falls from third to third of the steps shrink by one factor if the excess fades exponentially.
    """
    size = len(steps) // 3
    first, second, third = map(stats.fmean, (steps[:size], steps[size:-size], steps[-size:]))
    error = level.chance / (_DRIFTS * math.sqrt(12)) * math.sqrt(2 * level.steps / size)
    fall = max(second - third, 0.0) + error
    shrinks = max((first - second) / fall - 1, 1 / _GOES_ON) if fall else math.inf
    return min(fall / shrinks + max(level.mean - third, 0.0), level.mean / 2)


def _level(steps: Sequence[float], alpha: float, *, batches: int, line: int = 1, started: bool = False) -> _Level:
    m, mean = len(steps), sum(steps) / len(steps)
    if m < _LEAST_FOR_A_LINE:
        return _Level(m, mean, math.inf)
    centred = [duration - mean for duration in steps]
    times = _times(m)
    slope = sum(map(mul, times, centred)) / (m * (m * m - 1) / 12)
    sloped = spread(
        [duration - slope * time for duration, time in zip(centred, times, strict=True)],
        alpha,
        fitted=2,
        batches=batches,
    )
    change, chance = slope * m, _DRIFTS * math.sqrt(12) * sloped.error
    around = sloped if abs(change) > chance else spread(centred, alpha, batches=batches)
    # Noise may hide the end of a slow start.
    noise = _NOISE_OF_VERY_FEW if m * line < _VERY_SHORT else _NOISE
    loud = m * line < LEAST if started else m < _FEW and chance > noise * mean
    hidden = _HIDDEN_IN_NOISE if loud else 1.0 if started else _HIDDEN
    return _Level(m, mean, around.half_width, around.lean, change, chance, max(0.0, hidden * chance - change))


@lru_cache(maxsize=64)
def _times(m: int) -> tuple[float, ...]:
    return tuple(i - (m - 1) / 2 for i in range(m))


def _means(steps: Sequence[float], size: int) -> Sequence[float]:
    """Means of `size` consecutive steps; the steps that are left over are dropped at the beginning."""
    if size == 1:
        return steps
    return [sum(part) / size for part in zip(*[islice(steps, len(steps) % size, None)] * size, strict=True)]
