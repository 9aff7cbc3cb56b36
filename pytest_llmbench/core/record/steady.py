"""The steady part of a run: the speed of its steps, with its interval, and the steps that stand out."""

import math
from dataclasses import dataclass, replace
from typing import Literal, Self

# As few steps as this decide on a bound if each of them is away from it by the first factor, or by the second if they
# are enough for an interval: in noise as strong as that, the interval may be infinite.
_LEAST_FAR, _FAR, _FAR_ENOUGH = 4, 10.0, 4.0
# Steps that still become faster may become faster by this many times the fall so far.
_GOES_ON = 4.0

Reason = Literal["too_short", "not_settled", "drifts", "pauses_decide", "within_noise"]
Decided = Literal["fast_enough", "too_slow"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pauses:
    """Steps of a run that stand out."""

    at: tuple[int, ...] = ()
    """Positions of the steps that stand out, from 0."""
    usual: float
    """Median duration of all steps in seconds: what a step takes without a pause."""
    share: float = 0.0
    """Extra time of the steps that stand out, as a share of the wall clock of all steps."""
    period: int | None = None
    """Number of steps from one pause to the next, if it is always the same and there are three pauses or more."""
    regular: bool = False
    """Whether pauses come at `period` from the first step to the last: part of how the run goes on."""
    first: int = 0
    """Number of pauses that are the very first steps, where these are slower."""
    few: bool = True
    """Whether the steps that stand out are pauses; more or longer ones may be part of the speed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Steady:
    """The steady state of a run, in seconds per step."""

    low: float
    """Lower end of the interval of the mean step time; the true mean is below it with probability alpha at most."""
    high: float
    """Upper end of the interval of the mean step time; the true mean is above it with probability alpha at most."""
    mean: float
    """Mean of the judged steps without pauses, in seconds."""
    mean_with_pauses: float
    """Mean of the judged steps with pauses, in seconds."""
    left_out: int
    """Number of steps before the judged ones."""
    judged: int
    """Number of judged steps."""
    half_width: float
    """Half width of the interval without the part that a drift adds, in seconds."""
    slope: float
    """Change from the first to the last judged step, by a line through them, as a share of the mean."""
    drift: float | None
    """Slope as a share of the mean where it is more than chance; else null."""
    settled: bool
    """Whether the steps no longer become faster."""
    enough: bool
    """Whether there are as many steps as the rule needs."""
    least: int
    """Smallest number of steps that the rule needs, including those that are left out."""
    pauses: Pauses
    """Pauses among the steps after the warm-up."""
    fastest: float
    """Duration of the fastest judged step in seconds, pauses included; 0 for a run that ended in its warm-up."""
    slowest: float
    """Duration of the slowest judged step in seconds, pauses included; infinite for a run that ended in its warm-up."""
    between: float = 0.0
    """Half width that the difference between runs adds to the interval, in seconds; 0 for a claim of this run alone."""

    @property
    def within(self) -> float:
        """Half width of the interval of this run alone."""
        return math.sqrt(max(self.half_width**2 - self.between**2, 0.0))

    def decide(self, bound: float) -> Decided | Reason:
        """Compare with a bound on the step time.

        Args:
            bound: seconds per step; a faster run is fast enough.
        """
        # Of a bound that is so far away, no noise and no slow start is in between.
        far = _FAR_ENOUGH if self.enough else _FAR
        if self.judged >= _LEAST_FAR and (self.slowest * far <= bound or self.fastest > far * bound):
            return "fast_enough" if self.slowest * far <= bound else "too_slow"
        if not self.enough:
            return "too_short"
        # Of steps that still become faster, those to come are faster than these.
        if self.high <= bound:
            return "fast_enough" if self.mean_with_pauses + self.half_width <= bound else "pauses_decide"
        # A fall that levels off has less to go than it went.
        further = 0.0 if self.settled else _GOES_ON * abs(self.drift or 0.0) * self.mean
        if not self.settled and self.low - further <= bound:
            return "not_settled"
        if self.low - further > bound:
            return "too_slow" if self.mean_with_pauses - self.half_width > bound else "pauses_decide"
        return "drifts" if self.drift is not None else "within_noise"

    def widened(self, between: float) -> Self:
        """This state with a half width for the difference between runs, in seconds: a claim of the system."""
        if math.isinf(self.half_width):
            return self
        width = math.hypot(self.within, between)
        more = width - self.half_width
        return replace(self, low=self.low - more, high=self.high + more, half_width=width, between=between)
