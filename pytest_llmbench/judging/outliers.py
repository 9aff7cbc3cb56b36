"""Search for outliers among similar values by median and MAD, which are robust against a minority of bad ones."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

from pytest_llmbench.core.errors import RunError
from pytest_llmbench.judging.interval.slow_steps import NORMAL_MAD

# Two values that differ leave open which one is bad.
_FEWEST = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlier:
    """One value that differs from the rest: its `deviation` is a share of the median of all `among` values."""

    value: float
    median: float
    deviation: float
    among: int

    @property
    def text(self) -> str:
        """The distance from the median as words for a message, without a unit."""
        side = "below" if self.deviation < 0 else "above"
        return f"{abs(self.deviation):.1%} {side} the median {self.median:.6g} of {self.among}"


def outliers(
    values: Mapping[str, float], *, tolerance: float, side: Literal["low", "high", "both"] = "low", factor: float = 5.0
) -> dict[str, Outlier]:
    """Find the values that differ from the rest.

    An outlier lies more than `factor` scaled MADs (1.4826 · MAD) from the median, and at least `tolerance` of the
    median away, so that a value 0.3 % off counts as healthy among values that agree to 0.1 %. The MAD is that of the
    logarithms of the ratios, as differences would miss a rate that is forty times too slow.

    Args:
        values: one number for each name, all of the same unit.
        tolerance: the least distance from the median that counts, as a fraction of it.
        side: the bad side: low for rates, high for times.
        factor: scaled MADs; with 5, all of a thousand healthy values pass.

    Returns:
        The outliers by name, in the order of the values; empty for fewer than three values, or if the median is 0.

    Raises RunError `not_finite` or `negative` if a value is.
    """
    for name, value in values.items():
        if not math.isfinite(value):  #: error not_finite: Check: a number that is NaN or infinite
            raise RunError("not_finite", f"{name}: {value} is not a finite number")
        if value < 0:  #: error negative: Check: a rate or time below zero
            raise RunError("negative", f"{name}: {value:g} is negative: no rate, bandwidth or time")
    middle = median(values.values()) if len(values) >= _FEWEST else 0.0
    if middle == 0.0:
        return {}
    apart = {name: math.log(value / middle) if value > 0 else -math.inf for name, value in values.items()}
    spread = NORMAL_MAD * median(map(abs, apart.values()))
    return {
        name: Outlier(value=value, median=middle, deviation=(value - middle) / middle, among=len(values))
        for name, value in values.items()
        if (side == "both" or (value < middle) == (side == "low"))
        and abs(apart[name]) > factor * spread
        and abs(value - middle) >= tolerance * middle
    }
