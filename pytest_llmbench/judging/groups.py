"""Groups of nodes that train the same recipe: how much slower each is than the others, with an interval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from pytest_llmbench.core.quantity import USUAL_BETWEEN_RUNS
from pytest_llmbench.core.record.steady import Steady
from pytest_llmbench.judging.interval.slow_steps import NORMAL_MAD
from pytest_llmbench.judging.interval.steady import ALPHA
from pytest_llmbench.judging.interval.student import quantile

# Efficiency of the median absolute deviation of normally distributed values, as a share of the degrees of freedom.
_MAD_WORTH = 0.37
# Variance of the median of many values / variance of their mean.
_OF_MEDIAN = math.pi / 2
_FEW = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Lag:
    """How much longer a step of a group takes than the median of the other groups.

    `share` is the difference as a share of that median, negative for a faster group, in the interval from `low` to
    `high`. `seconds` is a step of this group, `usual` the median of the `others` other groups, in seconds.
    """

    share: float
    low: float
    high: float
    seconds: float
    usual: float
    others: int

    def within(self, tolerance: float) -> bool | None:
        """True if the group is as fast as the others within the tolerance, False if slower, None if undecided."""
        return True if self.high <= tolerance else False if self.low > tolerance else None


def share_of_alpha(groups: int) -> float:
    """The probability of an error of one group's interval, so that all together keep to `ALPHA`."""
    return ALPHA / groups


def lags(groups: Mapping[str, Sequence[Steady]]) -> dict[str, Lag]:
    """Compare each group with the others by the steady part of its runs and by its pauses, at `share_of_alpha`.

    Runs of one system differ by themselves. The size of this difference comes from earlier runs (0.3 %) and from the
    scatter of these groups about their median, which is robust against a minority of slow ones. The result is empty for
    fewer than two groups.
    """
    if len(groups) < 2:
        return {}
    means = {name: fmean(run.mean_with_pauses for run in runs) for name, runs in groups.items()}
    lows = {name: fmean(run.span[0] for run in runs) for name, runs in groups.items()}
    highs = {name: fmean(run.span[1] for run in runs) for name, runs in groups.items()}
    # The scatter of two values is their difference itself, so it counts from three groups on.
    usual, worth = USUAL_BETWEEN_RUNS, _MAD_WORTH * (len(groups) - 1) if len(groups) > 2 else 0.0
    freedom = usual.freedom + worth
    middle = median(means.values())
    scatter = NORMAL_MAD * median(abs(math.log(mean / middle)) for mean in means.values())
    deviation = math.sqrt((usual.freedom * usual.spread**2 + worth * scatter**2) / freedom)
    t = quantile(1 - share_of_alpha(len(groups)), freedom)
    lags_of_groups = {}
    for name, runs in groups.items():
        others = [other for other in groups if other != name]
        middle, low, high = (median(values[other] for other in others) for values in (means, lows, highs))
        of_median = (1.0 if len(others) < _FEW else _OF_MEDIAN) / len(others)
        between = t * deviation * math.sqrt(1 / len(runs) + of_median)
        ratio = means[name] / middle
        lags_of_groups[name] = Lag(
            share=ratio - 1,
            # A step time is above 0 however wide the interval is.
            low=ratio * max(0.0, 1 - math.hypot(between, 1 - lows[name] / means[name], high / middle - 1)) - 1,
            high=ratio * (1 + math.hypot(between, highs[name] / means[name] - 1, 1 - low / middle)) - 1,
            seconds=means[name],
            usual=middle,
            others=len(others),
        )
    return lags_of_groups
