"""Checks that a framework's log shows a training: plausible losses, and a rate that fits the recipe's work."""

import math
import statistics as stats
from collections.abc import Iterator

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.series import Step, StepSeries
from pytest_llmbench.judging.flops import causal_flops_per_token, flops_per_token

# Least number of lines, so that there is a last quarter.
_FEWEST = 4
# An untrained model's loss, as a share of ln(vocabulary): JSC's 13B begins at 1.23 of it, in the mean of ten steps that
# already learn.
_LEAST_AT_START, _MOST_AT_START = 0.4, 2.0
# Last step whose loss counts as that of an untrained model.
_START = 10
# Least share of the first loss that remains after the hundreds of steps of a benchmark.
_NOTHING_LEFT = 0.01
# Smaller TFLOP/s, printed with one decimal, are too coarse to compare.
_READABLE_TFLOPS = 5.0
# A log counts half of the attention at least, and a second forward pass of all layers at most; and it rounds.
_RECOMPUTED, _ROUNDED = 4 / 3, 0.05


def check_loss_drop(series: StepSeries) -> Iterator[str]:
    """Yield a loss that fell further than so few steps of training can bring it."""
    losses = [step.loss for step in series.steps if step.loss is not None]
    last = losses[-max(1, len(losses) // 4) :]
    if len(losses) >= _FEWEST and sum(last) < _NOTHING_LEFT * losses[0] * len(last):
        end = sum(last) / len(last)
        yield f"the loss fell from {losses[0]:.4g} to {end:.4g}: no training converges so fast"


def check_missing_losses(series: StepSeries) -> Iterator[str]:
    """Yield a line without a loss although it reports no skipped step, if other lines have losses."""
    made = [step for step in series.steps if step.reported.get("number_of_skipped_iterations") == 0.0]
    without = [step.step for step in made if step.loss is None]
    if without and len(without) < len(series.steps):
        yield f"the line of step {without[0]} has no loss, though none of its steps was skipped"


def check_first_loss(recipe: Recipe, series: StepSeries) -> Iterator[str]:
    """Yield a first loss outside of the range of an untrained model."""
    first = next((step for step in series.steps if step.loss is not None), None)
    if first is None or first.loss is None or first.step > _START:
        return
    due = math.log(recipe.model.vocab_size)
    if not _LEAST_AT_START * due <= first.loss <= _MOST_AT_START * due:
        yield (
            f"the loss is {first.loss:.4g} at step {first.step}, where a model that has learned nothing has about "
            f"{due:.4g} (ln of {recipe.model.vocab_size} tokens): this is not the beginning of a training of this model"
        )


def check_logged_rate(recipe: Recipe, topology: Topology, series: StepSeries) -> Iterator[str]:
    """Yield a logged rate and step time whose product differs from the work of the recipe's step."""
    flops = [work for step in series.steps if (work := _step_flops(step, topology)) is not None]
    if not flops:
        return
    mean, model = stats.median(flops) / recipe.tokens_per_step, recipe.model
    most = flops_per_token(model, recipe.sequence_length)
    least = causal_flops_per_token(model, recipe.sequence_length)
    if not (1 - _ROUNDED) * least <= mean <= (1 + _ROUNDED) * _RECOMPUTED * most:
        yield (
            f"its TFLOP/s per GPU and its time per step are those of {mean:.4g} FLOPs per token; of this model and "
            f"sequence they are {least:.4g} to {_RECOMPUTED * most:.4g}, by how attention and recomputation are counted"
        )


def _step_flops(step: Step, topology: Topology) -> float | None:
    names = ("tflops", "throughput_per_gpu", "model_tflops", "TFLOPS_per_GPU")
    rate = next((step.reported[name] for name in names if name in step.reported), None)
    if rate is None or rate < _READABLE_TFLOPS or step.seconds is None:
        return None
    return 1e12 * rate * step.seconds * topology.world_size
