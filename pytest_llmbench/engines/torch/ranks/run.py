"""The training loop of the plain PyTorch engine, run by every rank."""

from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.schema import validate
from pytest_llmbench.engines.torch.footprint import footprint
from pytest_llmbench.engines.torch.options import TorchOptions
from pytest_llmbench.engines.torch.ranks import eight_bits
from pytest_llmbench.engines.torch.ranks.decoder import Block
from pytest_llmbench.engines.torch.ranks.parallel import (
    build_model,
    clip_gradients,
    count_parameters,
    gradient_sync,
)
from pytest_llmbench.judging.memory import fitted
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.fed import Fed
from pytest_llmbench.workloads.rank.rendezvous import limit_threads, process_group
from pytest_llmbench.workloads.rank.step_clock import StepClock, on_arrival
from pytest_llmbench.workloads.rank.steplog import StepLog
from pytest_llmbench.workloads.training import attention, matmul
from pytest_llmbench.workloads.training.learning_rate import learning_rate
from pytest_llmbench.workloads.training.tokens import Tokens, batch, open_tokens, stable_seed

# Seed of parameters and dropout, as in the OPT baselines; the data has its own.
_SEED = 1
# DDP frees its process group with the GIL held, and waits there for gloo's thread, which may be waiting for the GIL to
# free its last work: about one run in ten hung. A model that is kept to the end of the process avoids this, as that
# work is done by then.
_kept: list[object] = []
_DTYPE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}


def train(context: RankContext, log: StepLog) -> None:
    """Train the recipe that is `context.config` and log every step, as `StepClock` does.

    Raises ConfigError if the recipe or its data are invalid, and RunError if the ranks failed to find each other, or
    one lacks a GPU.
    """
    recipe = validate(Recipe, context.config, "recipe")
    options = validate(TorchOptions, recipe.options, f"recipe {recipe.name}: options")
    topology = Topology(nodes=context.nodes, gpus_per_node=context.ranks_per_node)
    # The longest wait for a slow but healthy rank is the one for its start.
    with process_group(context, recipe.deadlines.meeting_s) as device:
        limit_threads(device)
        recipe = fitted(recipe.on(topology), topology, footprint, _least_memory(device))
        training = _prepare(recipe, options, context, device)
        _kept.append(training)
        with (
            matmul.ceiling(log, device, _DTYPE[recipe.precision]),
            attention.kernel(recipe, options.attention, device),
        ):
            _loop(training, log)


def _least_memory(device: torch.device) -> float | None:
    """Memory of the smallest GPU of all ranks, bytes; None on CPUs."""
    if device.type == "cpu":
        return None
    least = torch.tensor(torch.cuda.get_device_properties(device).total_memory, device=device)
    dist.all_reduce(least, dist.ReduceOp.MIN)
    return float(least.item())


@dataclass(frozen=True, kw_only=True, slots=True)
class _Training:
    """Inputs of every step."""

    recipe: Recipe
    device: torch.device
    copy: int  # of the model; it is trained on sequences `copy * copy_batch` and following of every step
    copy_batch: int  # sequences per step of this copy
    tensor: tuple[int, int]  # place of this rank among those that share matrices, and their number
    tokens: Tokens
    model: nn.Module
    optimizer: torch.optim.Optimizer
    fed: Fed

    def firsts(self, step: int) -> range:
        """The first sequence of each micro batch of this copy in a 1-based step."""
        first = (step - 1) * self.recipe.samples_per_step + self.copy * self.copy_batch
        return range(first, first + self.copy_batch, self.recipe.micro_batch_size)


def _prepare(recipe: Recipe, options: TorchOptions, context: RankContext, device: torch.device) -> _Training:
    shared = recipe.parallelism.tensor
    copy_batch = recipe.samples_per_step * shared // context.world_size
    copy, place = divmod(context.rank, shared)
    tokens = open_tokens(recipe)  # first, as what is wrong with data shows at once
    model = build_model(recipe, options, device, context.world_size, _SEED)
    torch.manual_seed(stable_seed(_SEED, context.rank))  # dropout differs between ranks
    return _Training(
        recipe=recipe, device=device, copy=copy, copy_batch=copy_batch, tensor=(place, shared), tokens=tokens,
        model=model,
        optimizer=torch.optim.AdamW(
            model.parameters(), betas=recipe.optimizer.betas, eps=recipe.optimizer.eps,
            weight_decay=recipe.optimizer.weight_decay, fused=True,
        ),
        fed=Fed(reports=place == 0),
    )  # fmt: skip


def _loop(training: _Training, log: StepLog) -> None:
    clock = StepClock(log, training.device, training.fed)
    training.fed.watch([training.model], Block)
    clock.start()
    for step in clock.steps(training.recipe.steps):
        loss = _forward_backward(training, log, step)
        log.phase(step, "optimizer")
        clock.step(loss, _update(training, step))
    clock.finish()
    trained = list(training.optimizer.state)  # the parameters that had a gradient
    event = training.fed.trained(
        parameters=count_parameters(trained, training.tensor),
        dtypes={parameter.dtype for parameter in trained},
        tensor=training.tensor,
        copy=training.copy,
        products=eight_bits.count(training.model) if training.recipe.precision == "fp8" else None,
    )
    log.training(event)


def _forward_backward(training: _Training, log: StepLog, step: int) -> torch.Tensor:
    """Accumulate the gradient of one step; returns this rank's mean loss, a scalar on the device."""
    recipe, firsts = training.recipe, training.firsts(step)
    total, sharding = torch.zeros((), device=training.device), recipe.parallelism.sharding
    for micro_batch, first in enumerate(firsts, start=1):
        log.phase(step, "data", micro_batch)
        inputs, targets = batch(training.tokens, first, recipe.micro_batch_size, training.device)
        # Kept for a later micro batch, gradients would be whole on every rank: 700 GB of OPT-175B.
        now = first == firsts[-1] or sharding == "full"
        with gradient_sync(training.model, enabled=now, keep=sharding == "gradients"):
            log.phase(step, "forward", micro_batch)
            with torch.autocast(training.device.type, torch.bfloat16, enabled=recipe.precision != "fp32"):
                loss = training.model(training.fed.take(inputs), targets) / len(firsts)
            if first == firsts[-1]:
                on_arrival(loss, partial(log.phase, step, "sync", micro_batch))
            log.phase(step, "backward", micro_batch)
            loss.backward()
        total += loss.detach()
    return total


def _update(training: _Training, step: int) -> torch.Tensor:
    """Take the optimizer's step; returns the gradient's norm before clipping, a scalar on the device."""
    settings = training.recipe.optimizer
    norm = clip_gradients(training.model, settings.clip_grad_norm)
    for group in training.optimizer.param_groups:
        group["lr"] = learning_rate(settings, step, training.recipe.steps)
    training.optimizer.step()
    if training.recipe.precision == "fp8":
        eight_bits.rescale(training.model)
    training.optimizer.zero_grad()
    return norm
