"""The steady state of a run: the interval of its mean step time, and why it is as wide as it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import Literal

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
        paused = self.mean_with_pauses
        if self.high <= bound:
            return "fast_enough" if paused <= bound else "pauses_decide"
        if self.low > bound:
            return "too_slow" if paused > bound else "pauses_decide"
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
    smooth = without_pauses(after, pauses)
    lines = steps_of_a_line >= _STEPS_OF_A_LINE
    start = slow_start(smooth, **({"batch": 1} if lines else {}))
    least = _LEAST_LINES if lines else _LEAST_WITH_START if start >= _STARTED else _LEAST
    judged = smooth[start:]
    m, mean = len(judged), sum(judged) / len(judged)
    slope, drift, falls, width = _drift(judged, mean, alpha, started=start > 0) if m > 2 else (0.0, None, 0.0, math.inf)
    settled = drift is None or drift > (0.0 if start else -_SETTLED)
    if between_runs is not None:
        width = math.hypot(width, quantile(1 - alpha, freedom) * between_runs * mean)
    half_drift = abs(drift or 0.0) * mean / 2
    return Steady(
        # The end of a slow start may hide in the noise.
        low=mean - max(half_drift, falls / 2) - width,
        high=mean + half_drift + width,
        mean=mean,
        mean_with_pauses=sum(after[start:]) / m,
        left_out=skip + start,
        judged=m,
        half_width=width,
        slope=slope,
        drift=drift,
        settled=settled,
        enough=len(after) >= least,
        least=skip + least,
        pauses=pauses,
    )


def _drift(judged: Sequence[float], mean: float, alpha: float, *, started: bool) -> tuple[float, float | None, float, float]:
    """Slope and drift as a share of the mean, None where it may be chance; by how much steps may still fall; the half width."""
    m = len(judged)
    centred = [each - mean for each in judged]
    times = [i - (m - 1) / 2 for i in range(m)]
    slope = sum(map(mul, times, centred)) / (m * (m * m - 1) / 12)
    line = spread([each - slope * time for each, time in zip(centred, times, strict=True)], alpha, fitted=2)
    change, chance = slope * m, _DRIFTS * math.sqrt(12) * line.error
    falls = max(0.0, (chance if started else 0.0) - change) if started or change < -chance / 2 else 0.0
    if abs(change) > chance:
        return change / mean, change / mean, falls, line.half_width
    return change / mean, None, falls, spread(centred, alpha).half_width
