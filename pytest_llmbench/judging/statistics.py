"""Statistics: named rules that turn a run's judged steps into one number with a unit.

Every statistic reads the same `Measurement`. A statistic without a meaning for a run (MFU without a known peak, say)
returns None, and the record then lacks it.
"""

import math
import statistics as stats
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, partial
from typing import Any, Literal

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.extensions import Extensions
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.records import Metric
from pytest_llmbench.core.record.series import EarlyVerdict, Step
from pytest_llmbench.core.record.steady import Steady
from pytest_llmbench.core.record.telemetry import GpuTelemetry
from pytest_llmbench.judging.flops import flops_per_token
from pytest_llmbench.judging.interval.decide import span
from pytest_llmbench.judging.interval.early import at_a_look
from pytest_llmbench.judging.interval.steady import ALPHA, steady_state

TOKENS_OF_RECORD = 20_000_000

_DIMENSIONS_OF_SPEED = {
    "token rate", "token rate per GPU", "sample rate", "time", "compute rate", "compute rate per GPU",
}  # fmt: skip

Better = Literal["higher", "lower"]
# Relations of a number to the speed of a run, over all ranks unless they are `per_gpu`.
Speed = Literal[
    "tokens_per_s", "samples_per_s", "seconds_per_step", "seconds_for_20m_tokens", "tokens_per_s_per_gpu",
    "model_flops_per_s_per_gpu", "share_of_peak",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Inputs of the statistics."""

    recipe: Recipe
    steps: Sequence[Step]  # every step of the run, in order
    judged: Sequence[Step]  # the steps after the warm-up by the recipe's rule
    gpus: int  # 0 on CPUs
    matmul_flops_per_s: float | None  # highest matrix-product rate that all ranks showed together
    peak_flops_per_s: float | None  # published peak of all GPUs together at the recipe's precision
    matmul_doubt: float = 1.0  # factor by which the rate may be too low, if another program slowed its measurements
    unread: int = 0  # unreadable lines of its log; with any, rules over all lines have no value
    totals: Mapping[str, float] = field(default_factory=dict)  # numbers that the framework logged for the whole run
    counts_flops: bool = True  # whether a step trains the whole decoder on every token, as the formula of FLOPs assumes
    telemetry: Sequence[GpuTelemetry] = ()  # of each rank's GPU in the judged steps
    early: EarlyVerdict | None = None  # the looks at the run before its end; the judged steps end at the last look

    @property
    def seconds(self) -> float | None:
        """Wall clock of the judged steps; None if it is unknown for one of them."""
        return _sum((step.seconds, step.interval) for step in self.judged)

    @property
    def tokens(self) -> float | None:
        """Tokens of the judged steps; None if they are unknown for one of them."""
        return _sum((step.tokens, step.interval) for step in self.judged)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second of the judged steps; None if tokens or duration of one of them are unknown."""
        return ratio(self.tokens, self.seconds)

    @cached_property
    def steady(self) -> Steady | None:
        """The steady part of the judged steps; None for fewer than 4 steps, or if one lacks a duration."""
        plan = None if self.early is None else self.early.planned - self.recipe.warm_up.steps
        return steady_of(self.judged, plan=plan)

    def of_step(self, of: Callable[[Step], float | None]) -> float | None:
        """Mean of a number of the judged steps; None if it is unknown for one of them."""
        return ratio(
            _sum((of(step), step.interval) for step in self.judged), sum(step.interval for step in self.judged)
        )

    def of_each_gpu(self, of: Callable[[GpuTelemetry], float | None]) -> list[float] | None:
        """One number of each GPU; None if one is missing, or if ranks shared a GPU."""
        values = [value for gpu in self.telemetry if (value := of(gpu)) is not None]
        different = len({gpu.gpu for gpu in self.telemetry}) == len(self.telemetry)
        return values if values and different and len(values) == len(self.telemetry) == self.gpus else None

    @property
    def samples_per_s(self) -> float | None:
        """Sequences per second of the judged steps; None if sequences or duration of one of them are unknown."""
        return ratio(_sum((step.samples, step.interval) for step in self.judged), self.seconds)

    @property
    def starves_gpu(self) -> bool:
        """True if the GPUs mostly wait for the next kernel, so that a share of their peak would be meaningless."""
        return self.gpus > 0 and self.recipe.scale == "smoke"

    @property
    def model_flops_per_s(self) -> float | None:
        """Model FLOP/s of the judged steps; None if the token rate or the FLOPs of a step are unknown."""
        if self.tokens_per_s is None or not self.counts_flops:
            return None
        return self.tokens_per_s * flops_per_token(self.recipe.model, self.recipe.sequence_length)


def steady_of(judged: Sequence[Step], alpha: float = ALPHA, plan: int | None = None) -> Steady | None:
    """Find the steady part of judged steps; None for fewer than 4 steps, or if one lacks a duration.

    `alpha` is the probability of an error on either side, at all looks together; `plan` the planned number of judged
    steps of a run with early looks.
    """
    seconds = [step.seconds for step in judged]
    known = [duration for duration in seconds if duration is not None and duration > 0.0]
    if len(known) < max(4, len(seconds)):
        return None
    tokens = [step.tokens for step in judged]
    counted = [count for count in tokens if count]
    if len(counted) == len(tokens) and len(set(counted)) > 1:
        # If batches differ, durations are scaled to the same number of tokens.
        usual = stats.fmean(counted)
        known = [duration * usual / count for duration, count in zip(known, counted, strict=True)]
    if min(known) <= 0.0 or not math.isfinite(sum(known)):  # damaged numbers may be extremely large
        return None
    line = min(step.interval for step in judged)
    if plan is not None:
        return at_a_look(known, plan=plan, steps_of_a_line=line, alpha=alpha)
    return steady_state(known, steps_of_a_line=line, alpha=alpha)


def _sum(terms: Iterable[tuple[float | None, int]]) -> float | None:
    """Sum value × count; None for an empty sum, or if a value is missing."""
    products = []
    for value, count in terms:
        if value is None:
            return None
        products.append(value * count)
    return math.fsum(products) if products else None


def ratio(amount: float | None, by: float | None) -> float | None:
    """Divide; None if a number is missing or the divisor is 0."""
    return None if amount is None or not by else amount / by


def judged_steps(recipe: Recipe, steps: Sequence[Step]) -> tuple[Step, ...]:
    """Apply the recipe's warm-up rule: `skip_first` keeps the lines that cover only steps above `warm_up.steps`."""
    return tuple(step for step in steps if step.step - step.interval >= recipe.warm_up.steps)


def typical_steps(judged: Sequence[Step]) -> tuple[Step, ...]:
    """The judged steps without a slow start, and without pauses if these are few."""
    steady = steady_of(judged)
    if steady is None:
        return tuple(judged)
    pauses = set(steady.pauses.at) if steady.pauses.few else set()
    return tuple(step for at, step in enumerate(judged) if at >= steady.left_out and at not in pauses)


def window(recipe: Recipe, early: EarlyVerdict | None) -> str:
    """Name the judged steps and the rule that chose them."""
    rule = recipe.warm_up
    last = f"to {recipe.steps if early is None else early.look}" if recipe.end == "steps" else "to the last"
    return f"steps {rule.steps + 1} {last} (warm-up rule {rule.rule} {rule.steps})"


Compute = Callable[[Measurement], float | None]


@dataclass(frozen=True, slots=True)
class Statistic:
    """A named rule."""

    unit: str
    rule: str  # in words, for reports
    compute: Compute  # returns None if the statistic is meaningless for the run
    _: KW_ONLY
    # Its relation to the speed of the run, by which a bound is compared with the published peak of the GPUs; None
    # without one, or if it counts more than the model's FLOPs.
    speed: Speed | None = None
    of_speed: bool | None = None  # whether a bound is about the speed of the training; by default, by its unit
    # Its relation to the duration of a step: an amount / duration, a number of steps × duration, or the duration. The
    # steady state of the run then judges bounds. None for a rule of its own, with which the steady state has to agree.
    steady: Literal["rate", "time", "step"] | None = None
    of_ceiling: bool = False  # whether it is a share of the matrix-product rate that the ranks measured
    so_far: bool = False  # whether a bound that the first steps of a run meet is met
    better: Better | None = None  # by default higher for a rate, lower for a time, None for others

    def __post_init__(self) -> None:
        if self.better is None and self.steady is not None:
            object.__setattr__(self, "better", "higher" if self.steady == "rate" else "lower")
        if self.of_speed is None:
            of_speed = self.speed is not None or Quantity(0.0, self.unit).dimension in _DIMENSIONS_OF_SPEED
            object.__setattr__(self, "of_speed", of_speed)

    @property
    def needs_all_steps(self) -> bool:
        """True if the statistic needs the whole run, so that an early end leaves it without a value."""
        return self.steady is None and not self.so_far

    def amount(self, m: Measurement, value: float) -> float | None:
        """Work of a step for a rate, number of steps for a time: what ties the number to the duration of a step.

        A number of its own rule may differ from the judged steps, so its amount follows from the recipe.
        """
        if self.steady is None and self.speed in _AMOUNTS:
            return _AMOUNTS[self.speed](m)
        seconds = m.of_step(lambda step: step.seconds)
        if not seconds or not self.of_speed or self.of_ceiling:
            return None
        if self.is_rate:
            return value * seconds
        return 1.0 if self.steady == "step" else value / seconds if self.steady == "time" else None

    @property
    def is_rate(self) -> bool:
        """True for an amount / duration, False for a time."""
        return self.steady == "rate" or (self.steady is None and Quantity(0.0, self.unit).dimension != "time")


def _tokens_of_step(m: Measurement) -> float:
    return m.of_step(lambda step: step.tokens) or m.recipe.tokens_per_step


_AMOUNTS: Mapping[str | None, Callable[[Measurement], float]] = {
    "tokens_per_s": _tokens_of_step,
    "samples_per_s": lambda m: m.of_step(lambda step: step.samples) or m.recipe.samples_per_step,
    "seconds_per_step": lambda _: 1.0,
    "seconds_for_20m_tokens": lambda m: TOKENS_OF_RECORD / _tokens_of_step(m),
}

# Statistics for which higher is better, and those in seconds, for which lower is.
rate = partial(Statistic, better="higher")
time = partial(Statistic, "s", better="lower")


def _share_of(m: Measurement, flops_per_s: float | None) -> float | None:
    share = None if m.starves_gpu else ratio(m.model_flops_per_s, flops_per_s)
    return None if share is None else 100 * share


def _peak_memory(m: Measurement) -> float | None:
    measured = [step.peak_memory_bytes for step in m.steps if step.peak_memory_bytes is not None]
    return max(measured) / 2**30 if measured else None


def _loss_drop(m: Measurement) -> float | None:
    losses = [step.loss for step in m.steps[:1]] + [step.loss for step in m.judged]
    known = [loss for loss in losses if loss is not None]
    if len(known) < len(losses) or len(known) < 2:
        return None
    return known[0] - stats.fmean(known[-max(1, len(m.judged) // 4) :])


def _step_time(m: Measurement) -> float | None:
    seconds = [step.seconds for step in m.judged if step.seconds is not None]
    return stats.median(seconds) if seconds and len(seconds) == len(m.judged) else None


def _warm_up_time(m: Measurement) -> float | None:
    first = m.judged[0].step if m.judged else 0
    return _sum((step.seconds, step.interval) for step in m.steps if step.step < first)


def _joules(m: Measurement) -> float | None:
    energies = m.of_each_gpu(lambda gpu: gpu.energy_j)
    return None if energies is None else math.fsum(energies)


def _over(reduce: Callable[[list[float]], float], of: Callable[[GpuTelemetry], float | None]) -> Compute:
    """Reduce one number of each GPU to one of all."""
    return lambda m: None if (values := m.of_each_gpu(of)) is None else reduce(values)


def _share_of_samples(of: Callable[[GpuTelemetry], float | None]) -> Compute:
    """A count of samples as a share of all samples, in percent."""

    def share(m: Measurement) -> float | None:
        counts = m.of_each_gpu(of)
        return None if counts is None else 100.0 * math.fsum(counts) / sum(gpu.samples for gpu in m.telemetry)

    return share


# Numbers over the telemetry of all GPUs in the judged steps; they are unknown if one of the GPUs was unwatched.
OF_TELEMETRY: Mapping[str, Statistic] = {
    #: left out power_mean: as `energy_per_token`
    "power_mean": Statistic(
        "W", "energy of each GPU's own counter / wall clock of the judged steps, mean of all GPUs",
        _over(stats.fmean, lambda gpu: ratio(gpu.energy_j, gpu.seconds)),
    ),
    #: left out energy_per_token: if [telemetry](#telemetry) has no energy of a GPU
    "energy_per_token": Statistic(
        "J/token", "energy of all GPUs by their own counters / tokens of the judged steps",
        lambda m: ratio(_joules(m), m.tokens), better="lower",
    ),
    #: left out tokens_per_joule: as `energy_per_token`
    "tokens_per_joule": rate(
        "tokens/J", "tokens of the judged steps / energy of all GPUs by their own counters",
        lambda m: ratio(m.tokens, _joules(m)),
    ),
    #: left out clock_mean: if telemetry has a gap, or a sample lacks it
    "clock_mean": rate(
        "MHz", "SM clock, mean of the samples of the judged steps, mean of all GPUs",
        _over(stats.fmean, lambda gpu: gpu.sm_clock_mhz),
    ),
    #: left out clock_min: as `clock_mean`
    "clock_min": rate(
        "MHz", "SM clock, lowest sample of any GPU in the judged steps", _over(min, lambda gpu: gpu.sm_clock_min_mhz)
    ),
    #: left out throttled: as `clock_mean`
    "throttled": Statistic(
        "%", "samples of all GPUs that name a slowdown by hardware, heat or power brake / samples in the judged steps",
        _share_of_samples(lambda gpu: gpu.throttled), better="lower",
    ),
    #: left out power_capped: as `clock_mean`
    "power_capped": Statistic(
        "%", "samples of all GPUs at their power limit / samples in the judged steps",
        _share_of_samples(lambda gpu: gpu.power_capped),
    ),
    #: left out temperature_max: as `clock_mean`
    "temperature_max": Statistic(
        "degC", "highest sample of any GPU in the judged steps", _over(max, lambda gpu: gpu.temperature_max_degc),
        better="lower",
    ),
    #: left out memory_used_max: as `clock_mean`
    "memory_used_max": Statistic(
        "GiB", "all memory in use on a GPU, highest sample of any GPU in the judged steps",
        _over(lambda sizes: max(sizes) / 2**30, lambda gpu: gpu.memory_used_max_bytes), better="lower",
    ),
}  # fmt: skip

STATISTICS: Mapping[str, Statistic] = {
    "throughput": rate(
        "words/s", "tokens of all ranks / wall clock of the judged steps; a word is a token",
        lambda m: m.tokens_per_s, speed="tokens_per_s", steady="rate",
    ),
    "samples_per_s": rate(
        "samples/s", "sequences of all ranks / wall clock of the judged steps",
        lambda m: m.samples_per_s, speed="samples_per_s", steady="rate",
    ),
    #: left out tokens_per_s_per_gpu: without GPUs
    "tokens_per_s_per_gpu": rate(
        "tokens/s/gpu", "throughput / GPUs",
        lambda m: ratio(m.tokens_per_s, m.gpus), speed="tokens_per_s_per_gpu", steady="rate",
    ),
    "time_for_20m_tokens": time(
        "20,000,000 tokens / throughput",
        lambda m: ratio(TOKENS_OF_RECORD, m.tokens_per_s), speed="seconds_for_20m_tokens", steady="time",
    ),
    "step_time": time("median duration of the judged steps", _step_time, speed="seconds_per_step", steady="step"),
    #: left out warm_up_time: if no step is left out
    "warm_up_time": time(
        "wall clock of the steps before the judged ones, compilation included", _warm_up_time, of_speed=False
    ),
    #: left out tflops_per_gpu: without GPUs; if steps do not train a whole decoder (LoRA, rewards, generation)
    "tflops_per_gpu": rate(
        "TFLOP/s/gpu", "model FLOPs (PaLM appendix B) / wall clock of the judged steps / GPUs",
        lambda m: ratio(m.model_flops_per_s, 1e12 * m.gpus), speed="model_flops_per_s_per_gpu", steady="rate",
    ),
    #: left out mfu: if the system file names no peak for the precision; as `tflops_per_gpu`; on GPUs at scale `smoke`
    "mfu": rate(
        "%", "model FLOPs (PaLM appendix B) per second / published peak of the GPUs at this precision",
        lambda m: _share_of(m, m.peak_flops_per_s), speed="share_of_peak", steady="rate",
    ),
    #: left out matmul_fraction: if a rank measured none, as with a framework that is a command; as `tflops_per_gpu`; on
    #:  GPUs at scale `smoke`
    "matmul_fraction": rate(
        "%", "model FLOPs (PaLM appendix B) per second / highest matrix-product rate that the same ranks measured",
        lambda m: _share_of(m, m.matmul_flops_per_s), of_speed=True, of_ceiling=True, so_far=True,
    ),
    "loss_drop": rate(
        "nat", "loss of the first step - mean loss of the last quarter of the judged steps", _loss_drop, so_far=True
    ),
    #: left out peak_memory: if it is not measured
    "peak_memory": Statistic("GiB", "highest memory of any rank", _peak_memory, better="lower"),
    **OF_TELEMETRY,
}  # fmt: skip


def _accept(_: str, thing: object) -> Statistic:
    if not isinstance(thing, Statistic):
        raise ConfigError("it is not a Statistic")
    return thing


# Statistics for runs of every engine: those above, and those that plugins register.
SHARED: Extensions[Statistic] = Extensions("statistic", "statistics", _accept)


def measure(m: Measurement, statistics: Mapping[str, Statistic] = STATISTICS) -> dict[str, Metric]:
    """Compute every statistic that is meaningful for this run, which must have passed the sanity gate."""
    metrics = {}
    decided = m.early.statistics if m.early is not None and m.early.ended_early else None
    for name, statistic in statistics.items():
        # A number that goes on changing counts after an early end only if the look decided on it.
        left_out = decided is not None and statistic.steady is None and not (statistic.so_far and name in decided)
        value = None if left_out else statistic.compute(m)
        if value is not None and math.isfinite(value):
            known = interval_of(m, statistic, value)
            metrics[name] = Metric(value=value, unit=statistic.unit, rule=statistic.rule, **known)
    return metrics


def interval_of(m: Measurement, statistic: Statistic, value: float) -> dict[str, Any]:
    """Fields of a metric for its interval: `low`, `high`, `sense` and `amount`, as far as they are known."""
    if statistic.of_ceiling and m.matmul_doubt > 1.0:
        return {"low": value / m.matmul_doubt, "high": value}
    amount = statistic.amount(m, value)
    if amount is None:
        return {}
    sense = "rate" if statistic.is_rate else "time"
    low, high = (None, None) if m.steady is None else span(sense, amount, m.steady)
    return {"sense": sense, "amount": amount, "low": low, "high": high}
