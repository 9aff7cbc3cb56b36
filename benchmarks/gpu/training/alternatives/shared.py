"""What the alternatives share: the recipe's data and learning rate, and a log that never makes the device wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.rendezvous import limit_threads, process_group
from pytest_llmbench.workloads.rank.step_clock import StepClock
from pytest_llmbench.workloads.rank.steplog import StepLog
from pytest_llmbench.workloads.training import matmul
from pytest_llmbench.workloads.training.tokens import batch, open_tokens

DTYPE = {"fp32": torch.float32, "bf16": torch.bfloat16}
Batch = tuple[torch.Tensor, torch.Tensor]


@contextmanager
def group(context: RankContext, recipe: Recipe) -> Iterator[torch.device]:
    """Join the ranks, on their devices and with their share of the cores, as our engines do."""
    with process_group(context, recipe.deadlines.meeting_s) as device:
        limit_threads(device)
        yield device


def batches(recipe: Recipe, copy: int, copies: int, device: torch.device) -> list[list[Batch]]:
    """The micro batches of every step of one copy of the model: the very sequences that our engines train it on.

    They are on the device before the first step, so that no alternative ever waits for its data.
    """
    data, size = open_tokens(recipe), recipe.micro_batch_size
    share = recipe.samples_per_step // copies
    firsts = [step * recipe.samples_per_step + copy * share for step in range(recipe.steps)]
    return [[batch(data, first + start, size, device) for start in range(0, share, size)] for first in firsts]


def learning_rate(recipe: Recipe, step: int) -> float:
    """Rate of a 1-based step: linear up to the peak at `warmup_steps`, linear down to a tenth at the end."""
    warm_up, peak = recipe.optimizer.warmup_steps, recipe.optimizer.learning_rate
    if step <= warm_up:
        return peak * step / warm_up
    return peak * (1 - 0.9 * (step - warm_up) / (recipe.steps - warm_up))


def start(recipe: Recipe, log: StepLog, device: torch.device, samples: int) -> StepClock:
    """Measure the matrix-product rate, as our engines do, and start the clock of step 1.

    Args:
        recipe: what is trained.
        log: this rank's.
        device: where it trains.
        samples: sequences that this rank counts in a step.
    """
    log.phase(0, "matmul")
    log.matmul(matmul.measure(device, DTYPE[recipe.precision]))
    clock = StepClock(log, device, samples=samples, tokens=samples * recipe.sequence_length)
    clock.start()
    return clock
