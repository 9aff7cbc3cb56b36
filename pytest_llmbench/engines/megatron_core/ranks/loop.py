"""The training loop of engine megatron_core; its step is Megatron-Core's schedule."""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.utils import get_attr_wrapped_model, get_model_config

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.engines.megatron_core.options import MegatronCoreOptions
from pytest_llmbench.engines.megatron_core.ranks.model import DTYPE, transformer_impl
from pytest_llmbench.engines.megatron_core.ranks.training import MegatronTraining, prepare, trained
from pytest_llmbench.workloads.rank.step_clock import StepClock
from pytest_llmbench.workloads.rank.steplog import StepLog
from pytest_llmbench.workloads.training import attention, matmul
from pytest_llmbench.workloads.training.learning_rate import learning_rate
from pytest_llmbench.workloads.training.tokens import batch


def run(recipe: Recipe, options: MegatronCoreOptions, device: torch.device, log: StepLog) -> None:
    """Train a recipe within the process group that is there.

    Raises:
        ConfigError: the batch is indivisible by the ranks, or the data are invalid.
    """
    training = prepare(recipe, options, device)
    implementation = transformer_impl(options, device)
    print(f"transformer layers: {implementation}", flush=True)
    asked = None if implementation == "transformer_engine" or options.attention == "unfused" else options.attention
    with (
        matmul.ceiling(log, device, DTYPE[recipe.precision]),
        nullcontext() if asked is None else attention.kernel(recipe, asked, device),
    ):
        _loop(training, log)


def _loop(training: MegatronTraining, log: StepLog) -> None:
    clock = StepClock(log, training.device, training.fed)
    clock.start()
    for step in clock.steps(training.recipe.steps):
        loss = _forward_backward(training, log, step)
        log.phase(step, "optimizer")
        norm = _update(training, step)
        dist.all_reduce(loss)  # over all copies; ranks without a loss contribute 0
        clock.step(loss / training.copies, norm)
    clock.finish()
    log.training(trained(training))


def _forward_backward(training: MegatronTraining, log: StepLog, step: int) -> torch.Tensor:
    """Accumulate the gradient of one step; returns this copy's mean loss, or 0 on a rank without the loss."""
    recipe = training.recipe
    starts = range(0, training.copy_batch, recipe.micro_batch_size)
    first = (step - 1) * recipe.samples_per_step + training.copy * training.copy_batch
    for chunk in training.chunks:
        chunk.zero_grad_buffer()
    training.optimizer.zero_grad()
    enter = partial(log.phase, step)
    get_model_config(training.chunks[0]).finalize_model_grads_func = partial(_finish_gradients, enter)
    losses = get_forward_backward_func()(
        forward_step_func=partial(_forward, training, enter),
        data_iterator=[enumerate((first + start for start in starts), start=1) for _ in training.chunks],
        model=training.chunks,
        num_microbatches=len(starts),
        seq_length=recipe.sequence_length,
        micro_batch_size=recipe.micro_batch_size,
        forward_only=False,
    )
    if not training.speaks:
        return torch.zeros((), device=training.device)
    return torch.stack(losses).mean()


def _finish_gradients(enter: Callable[..., None], *chunks: Any, **how: Any) -> None:
    """Wait for the gradients of other ranks, when this rank's own are complete."""
    enter("sync")
    finalize_model_grads(*chunks, **how)


def _forward(
    training: MegatronTraining, enter: Callable[..., None], micro_batches: Iterator[tuple[int, int]], chunk: Any
) -> tuple[torch.Tensor, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]]:
    """Run one micro batch through one chunk; returns the output and the function that makes a loss of it."""
    micro_batch, first = next(micro_batches)
    inputs = targets = positions = None
    if any(get_attr_wrapped_model(chunk, name) for name in ("pre_process", "post_process")):
        enter("data", micro_batch)
        inputs, targets = batch(training.tokens, first, training.recipe.micro_batch_size, training.device)
        inputs, positions = training.fed.take(inputs), training.positions
    enter("forward", micro_batch)
    output = chunk(inputs, positions, None, labels=targets)
    output.register_hook(lambda _: enter("backward", micro_batch))
    return output, _mean_loss


def _mean_loss(losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss for the backward pass, and a copy to log."""
    loss = losses.float().mean()
    return loss, loss.detach().clone()


def _update(training: MegatronTraining, step: int) -> torch.Tensor | float:
    """Take the optimizer's step; returns the gradient's norm before clipping, maybe on the device."""
    settings = training.recipe.optimizer
    for group in training.optimizer.param_groups:
        group["lr"] = learning_rate(settings, step, training.recipe.steps)
        # Megatron-Core's own scheduler would apply `wd_mult`; this loop sets the rates itself.
        group["weight_decay"] = settings.weight_decay * group["wd_mult"]
    _, norm, _ = training.optimizer.step()
    # A step whose fp16 gradients overflow is left out, and the norm with it.
    return math.inf if norm is None else norm
