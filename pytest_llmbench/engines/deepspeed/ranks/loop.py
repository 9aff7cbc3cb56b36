"""The loop that the three steps of engine deepspeed share."""

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.schema import validate
from pytest_llmbench.core.wire.step_events import Phase
from pytest_llmbench.engines.deepspeed.options import DeepSpeedOptions
from pytest_llmbench.engines.deepspeed.ranks.ppo import Ppo
from pytest_llmbench.engines.deepspeed.ranks.reward import Reward, Sft
from pytest_llmbench.engines.deepspeed.ranks.zero import DTYPE, Setup, ZeroModel
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.step_clock import StepClock
from pytest_llmbench.workloads.rank.steplog import StepLog
from pytest_llmbench.workloads.training import matmul
from pytest_llmbench.workloads.training.tokens import stable_seed

# As in `workloads.torch.run`: of initial values and dropout, and what must not be freed before the process ends.
_SEED = 1
_kept: list[object] = []


class DeepSpeedTraining(Protocol):
    """The training of one of the three steps."""

    @property
    def models(self) -> tuple[ZeroModel, ...]:
        """Every model that is trained."""

    def accumulate(self, first: int, enter: Callable[[Phase], None]) -> torch.Tensor:
        """Add the gradients of one micro batch, whose data is sequence `first` of the run and those after it.

        It enters each phase as it begins, and returns the mean loss of the micro batch, a scalar on the device: the
        loss to log, which must fall.
        """

    def remark(self) -> str:
        """Say what else there is to say of this rank's sequences since the last call, for people."""


_TRAININGS: dict[str, Callable[[Setup], DeepSpeedTraining]] = {"sft": Sft, "reward": Reward, "ppo": Ppo}


def run(recipe: Recipe, context: RankContext, device: torch.device, log: StepLog) -> None:
    """Train a recipe within a process group that DeepSpeed has joined.

    Raises:
        ConfigError: the recipe does not divide over the ranks, or its options or data cannot be used.
    """
    if recipe.samples_per_step % (context.world_size * recipe.micro_batch_size):
        raise ConfigError(
            f"a global batch of {recipe.samples_per_step} does not divide into micro batches of "
            f"{recipe.micro_batch_size} on {context.world_size} ranks"
        )
    setup = Setup(
        recipe=recipe,
        options=validate(DeepSpeedOptions, recipe.options, "options"),
        device=device,
        rank=context.rank,
        rank_batch=recipe.samples_per_step // context.world_size,
        seed=_SEED,
    )
    training = _TRAININGS[setup.options.step](setup)
    _kept.append(training)
    torch.manual_seed(stable_seed(_SEED, context.rank))  # dropout differs between ranks
    with matmul.ceiling(log, device, DTYPE[recipe.precision]):
        _loop(setup, training, log)


def _loop(setup: Setup, training: DeepSpeedTraining, log: StepLog) -> None:
    clock = StepClock(log, setup.device, fed=setup.fed)
    clock.start()
    for step in clock.steps(setup.recipe.steps):
        loss = _step(setup, training, log, step)
        norms = [model.grad_norm for model in training.models]
        clock.step(loss, norms[0] if len(norms) == 1 else math.hypot(*map(float, norms)))
        remark = training.remark()
        if remark and setup.rank == 0:
            print(f"step {step}: {remark}", flush=True)
    clock.finish()
    weights = [weight for model in training.models for weight in model.weights]
    event = setup.fed.trained(
        layers=training.models[0].layers,
        parameters=sum(getattr(weight, "ds_numel", weight.numel()) for weight in weights),
        dtypes={weight.dtype for weight in weights},
        copy=setup.rank,
    )
    log.training(event)


def _step(setup: Setup, training: DeepSpeedTraining, log: StepLog, step: int) -> torch.Tensor:
    """Take one optimizer step; returns this rank's mean loss."""
    starts = range(0, setup.rank_batch, setup.recipe.micro_batch_size)
    first = (step - 1) * setup.recipe.samples_per_step + setup.rank * setup.rank_batch
    total = torch.zeros((), device=setup.device)
    for micro_batch, start in enumerate(starts, start=1):
        total += training.accumulate(first + start, partial(log.phase, step, micro_batch=micro_batch)) / len(starts)
        if start == starts[-1]:
            log.phase(step, "optimizer")
        for model in training.models:
            model.step(step)
    return total
