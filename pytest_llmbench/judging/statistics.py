"""Statistics: named rules that turn a run's judged steps into one number with a unit.

Every statistic reads the same `Measurement`. One that has no meaning for a run (MFU without a known
peak, say) returns None and is left out of the record: it is never 0.
"""

from __future__ import annotations

import math
import statistics as stats
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pytest_llmbench.core.recipes import Recipe
from pytest_llmbench.core.records import Metric
from pytest_llmbench.core.series import Step
from pytest_llmbench.judging.flops import flops_per_token

TOKENS_OF_RECORD = 20_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """What the statistics are computed from.

    Attributes:
        recipe: what was run.
        steps: every step of the run, in order.
        judged: those left by the recipe's warm-up rule.
        gpus: GPUs in all; 0 on the CPU.
        matmul_flops_per_s: measured matrix-product rate of all ranks together, FLOP/s.
        peak_flops_per_s: published peak of all GPUs together at the recipe's precision, FLOP/s.
    """

    recipe: Recipe
    steps: Sequence[Step]
    judged: Sequence[Step]
    gpus: int
    matmul_flops_per_s: float | None
    peak_flops_per_s: float | None

    @property
    def seconds(self) -> float:
        """Wall clock of the judged steps."""
        return math.fsum(step.seconds for step in self.judged)

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the judged steps by their wall clock."""
        return sum(step.tokens for step in self.judged) / self.seconds

    @property
    def starves_gpu(self) -> bool:
        """Whether a GPU does little but wait for the next kernel, so that its share of a peak says nothing."""
        return self.gpus > 0 and self.recipe.scale == "smoke"

    @property
    def model_flops_per_s(self) -> float:
        """Model FLOPs of the judged steps by their wall clock."""
        return self.tokens_per_s * flops_per_token(self.recipe.model, self.recipe.sequence_length)


def judged_steps(recipe: Recipe, steps: Sequence[Step]) -> tuple[Step, ...]:
    """Apply the recipe's warm-up rule: `skip_first` leaves every step numbered above `warm_up.steps`."""
    return tuple(step for step in steps if step.step > recipe.warm_up.steps)


def window(recipe: Recipe) -> str:
    """Name the judged steps and the rule that chose them."""
    rule = recipe.warm_up
    return f"steps {rule.steps + 1} to {recipe.steps} (warm-up rule {rule.rule} {rule.steps})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistic:
    """A named rule.

    Attributes:
        unit: unit of its value.
        rule: what it is, in words, for reports.
        compute: the value, or None where it has no meaning.
    """

    unit: str
    rule: str
    compute: Callable[[Measurement], float | None]


def _per_gpu(m: Measurement) -> float | None:
    return m.model_flops_per_s / 1e12 / m.gpus if m.gpus else None


def _mfu(m: Measurement) -> float | None:
    if m.peak_flops_per_s is None or m.starves_gpu:
        return None
    return 100 * m.model_flops_per_s / m.peak_flops_per_s


def _matmul_fraction(m: Measurement) -> float | None:
    if m.matmul_flops_per_s is None or m.starves_gpu:
        return None
    return 100 * m.model_flops_per_s / m.matmul_flops_per_s


def _peak_memory(m: Measurement) -> float | None:
    measured = [step.peak_memory_bytes for step in m.steps if step.peak_memory_bytes is not None]
    return max(measured) / 2**30 if measured else None


def _loss_drop(m: Measurement) -> float:
    tail = max(1, len(m.judged) // 4)
    return m.steps[0].loss - stats.fmean(step.loss for step in m.judged[-tail:])


STATISTICS: Mapping[str, Statistic] = {
    "throughput": Statistic(
        unit="words/s",
        rule="tokens of all ranks / wall clock of the judged steps; a word is a token",
        compute=lambda m: m.tokens_per_s,
    ),
    "samples_per_s": Statistic(
        unit="samples/s",
        rule="sequences of all ranks / wall clock of the judged steps",
        compute=lambda m: sum(step.samples for step in m.judged) / m.seconds,
    ),
    "tokens_per_s_per_gpu": Statistic(
        unit="tokens/s/gpu",
        rule="throughput / GPUs",
        compute=lambda m: m.tokens_per_s / m.gpus if m.gpus else None,
    ),
    "time_for_20m_tokens": Statistic(
        unit="s",
        rule="20,000,000 tokens / throughput",
        compute=lambda m: TOKENS_OF_RECORD / m.tokens_per_s,
    ),
    "step_time": Statistic(
        unit="s",
        rule="median duration of the judged steps",
        compute=lambda m: stats.median(step.seconds for step in m.judged),
    ),
    "tflops_per_gpu": Statistic(
        unit="TFLOP/s/gpu",
        rule="model FLOPs (PaLM appendix B) / wall clock of the judged steps / GPUs",
        compute=_per_gpu,
    ),
    "mfu": Statistic(
        unit="%",
        rule="model FLOPs (PaLM appendix B) per second / published peak of the GPUs at this precision",
        compute=_mfu,
    ),
    "matmul_fraction": Statistic(
        unit="%",
        rule="model FLOPs (PaLM appendix B) per second / matrix-product rate the same ranks measured first",
        compute=_matmul_fraction,
    ),
    "loss_drop": Statistic(
        unit="nat",
        rule="loss of the first step - mean loss of the last quarter of the judged steps",
        compute=_loss_drop,
    ),
    "peak_memory": Statistic(
        unit="GiB",
        rule="highest memory of any rank",
        compute=_peak_memory,
    ),
}


def measure(m: Measurement) -> dict[str, Metric]:
    """Compute every statistic that has a meaning for this run. The run must have passed the sanity gate."""
    metrics = {}
    for name, statistic in STATISTICS.items():
        value = statistic.compute(m)
        if value is not None:
            metrics[name] = Metric(value=value, unit=statistic.unit, rule=statistic.rule)
    return metrics
