"""The steady state of a run: the interval of its mean step time, and why it is as wide as it is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import mul
from typing import Literal, NamedTuple

from pytest_llmbench.judging.interval.pauses import Pauses, find_pauses, without_pauses
from pytest_llmbench.judging.interval.settling import slow_start
from pytest_llmbench.judging.interval.spread import spread
from pytest_llmbench.judging.interval.student import quantile

ALPHA = 0.01
# Fewer steps decide nothing; more are needed where a slow start was found.
_LEAST, _LEAST_WITH_START, _STARTED = 20, 30, 3
# Lines that are means over several steps say more each.
_LEAST_LINES, _STEPS_OF_A_LINE = 5, 5
# A line through the steps counts as a drift from here on, in standard errors.
_DRIFTS = 2.0
_SETTLED = 0.01
_LEAST_FOR_A_LINE = 4
# Longer runs are read as means of some steps each, so many at most.
_MOST = 400
# Between runs of one system, where no reference says it: of healthy clusters 0.15 to 0.35 %.
BETWEEN_RUNS = 0.003
FREEDOM = 4.0

Reason = Literal["too_short", "not_settled", "drifts", "pauses_decide", "within_noise"]
Side = Literal["fast_enough", "too_slow"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Steady:
    """The steady state of a run, in seconds per step.

    Attributes:
        low, high: the interval; each end is beyond the true mean with probability α at most.
        mean: over the judged steps, without pauses.
        mean_with_pauses: over the judged steps, pauses included.
        left_out: steps before the judged ones.
        judged: their number.
        half_width: of the interval, without what a drift adds.
        slope: change from the first to the last judged step by a line through them, as a share of the mean.
        drift: the same, where it is more than chance; else None.
        settled: the steps no longer become faster.
        enough: there are as many steps as the rule needs.
        least: how many steps, with those left out, the rule needs at the least.
        pauses: among the steps after the warm-up.
    """

    low: float
    high: float
    mean: float
    mean_with_pauses: float
    left_out: int
    judged: int
    half_width: float
    slope: float
    drift: float | None
    settled: bool
    enough: bool
    least: int
    pauses: Pauses

    def decide(self, bound: float) -> Side | Reason:
        """Compare with a bound on the step time.

        Args:
            bound: seconds per step; a faster run is fast enough.
        """
        if not self.enough:
            return "too_short"
        if not self.settled:
            return "not_settled"
        if self.high <= bound:
            return "fast_enough" if self.mean_with_pauses + self.half_width <= bound else "pauses_decide"
        if self.low > bound:
            return "too_slow" if self.mean_with_pauses - self.half_width > bound else "pauses_decide"
        return "drifts" if self.drift is not None else "within_noise"


def steady_state(
    seconds: Sequence[float],
    *,
    skip: int,
    steps_of_a_line: int = 1,
    alpha: float = ALPHA,
    between_runs: float | None = None,
    freedom: float = FREEDOM,
) -> Steady:
    """Find the steady state of a run and the interval of its mean.

    Args:
        seconds: per step, of each step or of each line that is a mean over several; more than `skip`.
        skip: entries of `seconds` that the recipe leaves out as warm-up.
        steps_of_a_line: steps in each entry.
        alpha: probability of an error on either side.
        between_runs: standard deviation of runs of one system, as a share; None where the claim is of this run alone.
        freedom: degrees of freedom with which that is known.
    """
    after = seconds[skip:]
    pauses = find_pauses(after)
    first = pauses.first
    smooth = without_pauses(after, pauses)[first:]
    lines = steps_of_a_line >= _STEPS_OF_A_LINE
    size = -(-len(smooth) // _MOST)
    read = _means(smooth, size)
    cut = slow_start(read, batch=1 if lines else 5)
    start = first + cut * size
    level = _level(read[cut:], alpha, many=size > 1, started=cut > 0)
    also = [_level(read, alpha, many=size > 1)] if cut else []
    if also and _levels_off(level, also[0]):
        also = []
    if not pauses.few:
        whole = _periods(after[start:], pauses.period)
        as_they_are = _level(_means(whole, -(-len(whole) // _MOST)), alpha, many=size > 1)
        level, also = (as_they_are, also) if len(whole) < len(after) - start else (level, [*also, as_they_are])
    levels = [each.among(between_runs, quantile(1 - alpha, freedom)) if between_runs else each for each in (level, *also)]
    judged = after[start:]
    least = _LEAST_LINES if lines else _LEAST_WITH_START if start >= _STARTED else _LEAST
    return Steady(
        low=min(each.low for each in levels),
        high=max(each.high for each in levels),
        mean=level.mean,
        mean_with_pauses=sum(judged) / len(judged),
        left_out=skip + start,
        judged=len(judged),
        half_width=levels[0].width,
        slope=level.slope,
        drift=level.drift,
        settled=level.drift is None or level.drift > (0.0 if cut else -_SETTLED),
        enough=len(after) - first >= least,
        least=skip + first + least,
        pauses=pauses,
    )


class _Level(NamedTuple):
    """Mean of some steps, with all that makes it unsure.

    Attributes:
        width: half width of the interval of the mean.
        chance: a line through the steps may change by this much by chance alone.
        falls: by how much the steps may still become faster, from the first to the last.
    """

    steps: int
    mean: float
    width: float
    change: float
    chance: float
    falls: float

    @property
    def slope(self) -> float:
        return self.change / self.mean

    @property
    def drift(self) -> float | None:
        return self.slope if abs(self.change) > self.chance else None

    @property
    def low(self) -> float:
        return self.mean - max(abs(self.drift or 0.0) * self.mean, self.falls) / 2 - self.width

    @property
    def high(self) -> float:
        return self.mean + abs(self.drift or 0.0) * self.mean / 2 + self.width

    def among(self, between_runs: float, t: float) -> "_Level":
        """The same as a level of the system, whose runs differ."""
        return self._replace(width=math.hypot(self.width, t * between_runs * self.mean))


def _level(steps: Sequence[float], alpha: float, *, many: bool, started: bool = False) -> _Level:
    m, mean = len(steps), sum(steps) / len(steps)
    if m < _LEAST_FOR_A_LINE:
        return _Level(m, mean, math.inf, 0.0, 0.0, 0.0)
    centred = [each - mean for each in steps]
    times = _times(m)
    slope = sum(map(mul, times, centred)) / (m * (m * m - 1) / 12)
    line = spread([each - slope * time for each, time in zip(centred, times, strict=True)], alpha, fitted=2, many=many)
    change, chance = slope * m, _DRIFTS * math.sqrt(12) * line.error
    # The end of a slow start may hide in the noise.
    falls = max(0.0, (chance if started else 0.0) - change)
    width = line.half_width if abs(change) > chance else spread(centred, alpha, many=many).half_width
    return _Level(m, mean, width, change, chance, falls)


@lru_cache(maxsize=64)
def _times(m: int) -> tuple[float, ...]:
    return tuple(i - (m - 1) / 2 for i in range(m))


def _levels_off(rest: _Level, whole: _Level) -> bool:
    """The rest falls less than a line through all steps, by more than chance: what was cut was no drift."""
    return rest.change / rest.steps - whole.change / whole.steps > rest.chance / rest.steps


def _means(steps: Sequence[float], size: int) -> Sequence[float]:
    """Means of so many steps each; what is left over is at the beginning."""
    if size == 1:
        return steps
    return [sum(steps[i : i + size]) / size for i in range(len(steps) % size, len(steps), size)]


def _periods(steps: Sequence[float], period: int | None) -> Sequence[float]:
    """Means of whole periods, if there are enough of them; else the steps."""
    if period is None or len(steps) < _LEAST_LINES * period:
        return steps
    return _means(steps, period)
