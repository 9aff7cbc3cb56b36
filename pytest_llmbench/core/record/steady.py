"""The steady part of a run: the speed of its steps, with its interval, and the steps that stand out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

# As few steps as this decide on a bound if each of them is away from it by this factor.
_LEAST_FAR, _FAR = 4, 10.0
# Where there are enough steps for an interval, they also decide if each is away from the bound by this power of the
# ratio of the slowest to the fastest: they may still drift that far. A factor of 4 is always enough.
_FAR_ENOUGH, _RANGES = 4.0, 3.0
# A run whose steps show no trend is too slow if the fastest misses the bound by this factor, and by the square root of
# the factor by which it was faster than the mean.
_GAIN = 1.5
# Noise may hide that steps become faster: in fewer than 40 steps whose ratio is above 1.012, the fastest has to miss
# the bound by 9 %. Lines of several steps have less noise, and as many lines leave less of the speed unseen.
_FEW, _HIDING, _HIDDEN, _UNSEEN = 40, 1.012, 1.09, 0.03
# Steps that still become faster may become faster by this many times the fall so far.
_GOES_ON = 4.0
# In few steps, a fall of more than this share may be a slow start that noise hides: its excess is at most as far as two
# levels are apart.
_HIDDEN_FALL, _APART = 0.003, 2.0

Reason = Literal["too_short", "not_settled", "drifts", "pauses_decide", "unseen_levels", "within_noise"]
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
    """Duration of the fastest judged step in seconds, pauses included."""
    slowest: float
    """Duration of the slowest step after the warm-up in seconds, pauses and a slow start included."""
    scatter: float | None = None
    """Standard deviation of the judged steps without pauses, as a share of the mean; null for several runs together."""
    between: float = 0.0
    """Half width that the difference between runs adds to the interval, in seconds; 0 for a claim of this run alone."""
    pausing: float = 0.0
    """Seconds by which pauses may make the mean step longer than here: others may come more often."""
    unseen: float = 0.0
    """Seconds by which the mean of many more steps may differ from that of so few, which show no change of level."""

    @classmethod
    def of_mean(cls, seconds: float, some: Sequence[float]) -> Self:
        """The state of a run that logged its mean speed and the durations of `some` steps."""
        return cls(
            low=min([seconds, *some]), high=max([seconds, *some]), mean=seconds, mean_with_pauses=seconds, left_out=0,
            judged=0, half_width=0.0, slope=0.0, drift=None, settled=True, enough=True, least=0,
            pauses=Pauses(usual=seconds), fastest=seconds, slowest=seconds,
        )  # fmt: skip

    @property
    def within(self) -> float:
        """Half width of the interval of this run alone."""
        return math.sqrt(max(self.half_width**2 - self.between**2, 0.0))

    @property
    def reach(self) -> float:
        """Distance of the lower end from the mean in seconds, without the logarithm that keeps this end above 0."""
        return self.mean * math.log(self.mean / self.low) if self.low > 0.0 else math.inf

    @property
    def with_pauses(self) -> tuple[float, float]:
        """The ends of the mean step time with pauses, in seconds: further ones may come more often than here."""
        pausing = math.hypot(self.half_width, self.pausing)
        reach = self.half_width if self.mean_with_pauses >= self.mean else pausing
        return self.mean_with_pauses * math.exp(-reach / self.mean), self.mean_with_pauses + pausing

    @property
    def span(self) -> tuple[float, float]:
        """The interval of the mean step time in seconds, which contains both that with pauses and that without."""
        low, high = self.with_pauses
        return min(self.low, low), max(self.high, high)

    @property
    def _faster(self) -> float:
        """Factor by which further steps may be faster, by levels or a slow start that so few do not show."""
        return math.exp(-self.unseen / self.mean * min(max(1.0, -self.slope / _HIDDEN_FALL), _APART))

    def decide(self, bound: float) -> Decided | Reason:
        """Compare with a bound on the step time, seconds per step: a faster run is fast enough."""
        if self.judged >= _LEAST_FAR and (decided := self._decide_by_each_step(bound)):
            return decided
        if not self.enough:
            return "too_short"
        # If steps still become faster, the next ones are faster than these.
        fastest, slowest = self.with_pauses
        if self.high <= bound:
            return _guarded("fast_enough", pauses=slowest <= bound, levels=self.high + self.unseen <= bound)
        # A fall that levels off has less to go than it went.
        further = 0.0 if self.settled else _GOES_ON * abs(self.drift or 0.0) * self.mean
        if not self.settled and self.low - further <= bound:
            return "not_settled"
        if self.low - further > bound:
            return _guarded("too_slow", pauses=fastest > bound, levels=self.low * self._faster > bound)
        return "drifts" if self.drift is not None else "within_noise"

    def _decide_by_each_step(self, bound: float) -> Decided | None:
        """Compare each step with a bound that is far away; None for a nearer one, which needs the interval."""
        far = gain = _FAR
        if self.enough:
            ratio = min(self.slowest / self.fastest, _FAR_ENOUGH)
            far = gain = min(ratio**_RANGES * (1.0 + self.between / self.mean), _FAR_ENOUGH)
            if self.judged < _FEW and self.unseen > _UNSEEN * self.mean and ratio > _HIDING:
                gain = max(gain, _HIDDEN)
            if self.settled:
                gain = min(gain, max(_GAIN, math.sqrt(self.mean / self.fastest)))
        if max(self.slowest * far + self.pausing, self.slowest + self.unseen) <= bound:
            return "fast_enough"
        return "too_slow" if self.fastest * self._faster > bound and self.fastest > gain * bound else None

    def widened(self, between: float) -> Self:
        """This state with a half width for the difference between runs, in seconds: a claim of the system."""
        if math.isinf(self.half_width):
            return self
        width = math.hypot(self.within, between)
        more = width - self.half_width
        low = self.low * math.exp(-more / self.mean)
        return replace(self, low=low, high=self.high + more, half_width=width, between=between)


def _guarded(verdict: Decided, *, pauses: bool, levels: bool) -> Decided | Reason:
    """The verdict if it holds with further pauses, and with changes of level that the steps do not show."""
    if not pauses:
        return "pauses_decide"
    return verdict if levels else "unseen_levels"
