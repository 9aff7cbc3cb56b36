"""The training loop of engine deepspeed: next-token training of OPT under ZeRO."""

from functools import partial

import torch
from torch.nn import functional
from transformers.models.opt.modeling_opt import OPTDecoderLayer

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.schema import validate
from pytest_llmbench.engines.deepspeed.options import DeepSpeedOptions
from pytest_llmbench.engines.deepspeed.ranks.zero import DTYPE, SEED, Setup, ZeroModel, build
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.step_clock import StepClock, on_arrival
from pytest_llmbench.workloads.rank.steplog import StepLog
from pytest_llmbench.workloads.training import matmul
from pytest_llmbench.workloads.training.tokens import Tokens, batch, open_tokens, stable_seed

# As in engine torch: freed before the process ends, a model may hang it.
_kept: list[object] = []


def run(recipe: Recipe, context: RankContext, device: torch.device, log: StepLog) -> None:
    """Train a recipe within a process group that DeepSpeed has joined.

    Raises ConfigError if options or data are invalid.
    """
    setup = Setup(
        recipe=recipe, options=validate(DeepSpeedOptions, recipe.options, "options"), device=device, rank=context.rank,
        rank_batch=recipe.samples_per_step // context.world_size,
    )  # fmt: skip
    tokens = open_tokens(recipe)  # first, so that an error in the data shows at once
    model = ZeroModel(setup, build(setup))
    _kept.append(model)
    torch.manual_seed(stable_seed(SEED, context.rank))  # dropout differs between ranks
    with matmul.ceiling(log, device, DTYPE[recipe.precision]):
        _loop(setup, model, tokens, log)


def _loop(setup: Setup, model: ZeroModel, tokens: Tokens, log: StepLog) -> None:
    clock = StepClock(log, setup.device, setup.fed)
    setup.fed.watch([model.engine.module], OPTDecoderLayer)
    clock.start()
    for step in clock.steps(setup.recipe.steps):
        loss = _step(setup, model, tokens, log, step)
        clock.step(loss, model.grad_norm)
    clock.finish()
    event = setup.fed.trained(
        parameters=sum(getattr(weight, "ds_numel", weight.numel()) for weight in model.weights),
        dtypes={weight.dtype for weight in model.weights},
        copy=setup.rank,
    )
    log.training(event)


def _step(setup: Setup, model: ZeroModel, tokens: Tokens, log: StepLog, step: int) -> torch.Tensor:
    """Take one optimizer step; returns this rank's mean loss, nat per token."""
    size = setup.recipe.micro_batch_size
    start = (step - 1) * setup.recipe.samples_per_step + setup.rank * setup.rank_batch
    firsts = range(start, start + setup.rank_batch, size)
    total = torch.zeros((), device=setup.device)
    for micro_batch, first in enumerate(firsts, start=1):
        log.phase(step, "data", micro_batch)
        inputs, targets = batch(tokens, first, size, setup.device)
        log.phase(step, "forward", micro_batch)
        logits = model.engine(setup.fed.take(inputs)).logits
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        on_arrival(loss, partial(log.phase, step, "sync", micro_batch))
        log.phase(step, "backward", micro_batch)
        model.engine.backward(loss)
        total += loss.detach() / len(firsts)
        if first == firsts[-1]:
            log.phase(step, "optimizer")
        model.step(step)
    return total
