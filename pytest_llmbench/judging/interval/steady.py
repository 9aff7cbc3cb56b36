"""The steady state of a run: the interval of its mean step time, and why it is as wide as it is.

The rule, and which error rates were measured for it: `docs/measurements/verdicts_cpu_2026-11-23.yaml`.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from operator import mul
from typing import NamedTuple

from pytest_llmbench.core.quantity import USUAL_BETWEEN_RUNS
from pytest_llmbench.core.record.steady import Pauses, Steady
from pytest_llmbench.judging.interval.pauses import find_pauses, without_pauses
from pytest_llmbench.judging.interval.settling import slow_start
from pytest_llmbench.judging.interval.spread import spread
from pytest_llmbench.judging.interval.student import quantile

ALPHA = 0.01
# Fewer steps decide nothing; more are needed where a slow start was found.
LEAST = 20
_LEAST_WITH_START, _STARTED = 30, 3
# Lines that are means over several steps say more each.
LEAST_LINES, STEPS_OF_A_LINE = 5, 5
_BATCH = 5
# A line through the steps counts as a drift from here on, in standard errors.
_DRIFTS = 2.0
_SETTLED = 0.01
# A fall that the noise may hide counts so far, as a share of what would count as a drift.
_HIDDEN = 0.4
_LEAST_FOR_A_LINE = 4
# Longer runs are read as means of some steps each, so many at most.
_MOST = 400
# Between runs of one system, where a reference does not name its own.
BETWEEN_RUNS, FREEDOM = USUAL_BETWEEN_RUNS.spread, USUAL_BETWEEN_RUNS.freedom


def steady_state(
    seconds: Sequence[float],
    *,
    skip: int,
    steps_of_a_line: int = 1,
    alpha: float = ALPHA,
    between_runs: float | None = None,
) -> Steady:
    """Find the steady state of a run and the interval of its mean.

    With an alpha of 1 %, at most 1 % of verdicts were wrong in every simulated cell of the domain: 25 to 5,000 steps
    (fewer than 20 after the warm-up, or 5 lines, decide nothing), noise with a coefficient of variation of 0.05 to 6 %
    and a correlation of neighbours up to 0.9, bounds 0.5 to 5 % away; drift, pauses, evaluations, and slow starts whose
    excess fades with a time constant of up to 0.3 of the steps. Limits: noise may hide the end of a longer slow start;
    runs of one system that differ by more than 0.6 % need a calibrated `between_runs`, or several runs; pauses rarer
    than one in n / 4.6 steps may not be seen, and pauses shorter than a line are part of the speed.

    Args:
        seconds: per step, of each step or of each line that is a mean over several.
        skip: entries of `seconds` that the recipe leaves out as warm-up.
        steps_of_a_line: steps in each entry.
        alpha: probability of an error on either side.
        between_runs: standard deviation of runs of one system, as a share; None where the claim is of this run alone.

    Raises:
        ValueError: there are no steps, or one took no time, or one is not a number.
    """
    _refuse(seconds)
    after = seconds[skip:] or seconds
    lines = steps_of_a_line >= STEPS_OF_A_LINE
    pauses = find_pauses(after, least_first=_STARTED if lines else 1)
    smooth = without_pauses(after, pauses)[pauses.first :]
    size = -(-len(smooth) // _MOST)
    read = _means(smooth, size)
    cut = slow_start(read, batch=1 if lines else _BATCH)
    start = pauses.first + cut * size
    judged = after[start:]
    # One or two slow lines at the beginning may as well contain a pause.
    surely = not lines or cut > _BATCH
    level, *others = _levels(read, cut, judged, pauses, alpha, surely=surely)
    least = LEAST_LINES if lines else _LEAST_WITH_START if start >= _STARTED else LEAST
    state = Steady(
        low=min(reading.low for reading in (level, *others)),
        high=max(reading.high for reading in (level, *others)),
        mean=level.mean,
        mean_with_pauses=sum(judged) / len(judged),
        left_out=min(skip, len(seconds) - len(after)) + start,
        judged=len(judged),
        half_width=level.width,
        slope=level.slope,
        drift=level.drift,
        settled=level.drift is None or level.drift > (0.0 if cut else -_SETTLED),
        enough=len(seconds) - skip - pauses.first >= least,
        least=skip + pauses.first + least,
        pauses=pauses,
        fastest=min(judged) if len(seconds) > skip else 0.0,
        slowest=max(judged) if len(seconds) > skip else math.inf,
    )
    return state if between_runs is None else state.widened(quantile(1 - alpha, FREEDOM) * between_runs * state.mean)


def _refuse(seconds: Sequence[float]) -> None:
    # The sum finds NaN, which the least hides.
    if not seconds or min(seconds) <= 0 or not math.isfinite(sum(seconds)):
        raise ValueError("step times must be numbers above 0, at least one")


class _Level(NamedTuple):
    """Mean of some steps, with all that makes it unsure, in seconds.

    `width` is the half width of its interval, which reaches `lean` further to one side; a line through the steps
    changes by `change` from the first to the last, by `chance` alone at most so much; they may become faster by
    `falls`.
    """

    steps: int
    mean: float
    width: float
    lean: float = 0.0
    change: float = 0.0
    chance: float = 0.0
    falls: float = 0.0

    @property
    def slope(self) -> float:
        return self.change / self.mean

    @property
    def drift(self) -> float | None:
        return self.slope if abs(self.change) > self.chance else None

    @property
    def low(self) -> float:
        return self.mean - max(self._drifted, self.falls / 2) - self.width + min(self.lean, 0.0)

    @property
    def high(self) -> float:
        return self.mean + self._drifted + self.width + max(self.lean, 0.0)

    @property
    def _drifted(self) -> float:
        return abs(self.change) / 2 if self.drift is not None else 0.0


def _levels(
    read: Sequence[float], cut: int, judged: Sequence[float], pauses: Pauses, alpha: float, *, surely: bool
) -> tuple[_Level, ...]:
    """The level of the judged steps, and of other ways to read the same steps, where these may be right.

    `read` are the steps without pauses, of which `cut` are a slow start, `surely` if it levels off.
    """
    many = len(judged) > _MOST
    level = _level(read[cut:], alpha, many=many, started=cut > 0)
    others = []
    if cut:
        uncut = _level(read, alpha, many=many)
        others = [] if surely and _levels_off(level, uncut) else [uncut]
    if pauses.few:
        return (level, *others)
    # Too many for pauses. Where they come at equal distances, whole periods are what repeats.
    if pauses.period is not None and pauses.regular and len(judged) >= LEAST_LINES * pauses.period:
        periods = _means(judged, pauses.period)
        return (_level(_means(periods, -(-len(periods) // _MOST)), alpha, many=many), *others)
    return (level, *others, _level(_means(judged, -(-len(judged) // _MOST)), alpha, many=many))


def _level(steps: Sequence[float], alpha: float, *, many: bool, started: bool = False) -> _Level:
    m, mean = len(steps), sum(steps) / len(steps)
    if m < _LEAST_FOR_A_LINE:
        return _Level(m, mean, math.inf)
    centred = [duration - mean for duration in steps]
    times = _times(m)
    slope = sum(map(mul, times, centred)) / (m * (m * m - 1) / 12)
    line = spread(
        [duration - slope * time for duration, time in zip(centred, times, strict=True)], alpha, fitted=2, many=many
    )
    change, chance = slope * m, _DRIFTS * math.sqrt(12) * line.error
    around = line if abs(change) > chance else spread(centred, alpha, many=many)
    # The end of a slow start may hide in the noise.
    falls = max(0.0, (chance if started else _HIDDEN * chance) - change)
    return _Level(m, mean, around.half_width, around.lean, change, chance, falls)


@lru_cache(maxsize=64)
def _times(m: int) -> tuple[float, ...]:
    return tuple(i - (m - 1) / 2 for i in range(m))


def _levels_off(rest: _Level, uncut: _Level) -> bool:
    """The rest falls less than a line through all steps, by more than chance: the cut is not a part of a drift."""
    return rest.change / rest.steps - uncut.change / uncut.steps > rest.chance / rest.steps


def _means(steps: Sequence[float], size: int) -> Sequence[float]:
    """Means of `size` steps each; the first steps are left out where the last mean would lack some."""
    if size == 1:
        return steps
    return [sum(part) / size for part in zip(*[islice(steps, len(steps) % size, None)] * size, strict=True)]
