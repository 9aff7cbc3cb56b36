"""The training of engine megatron_core: the model spread over the ranks, its optimizer, and steps by its schedule."""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer
from megatron.core.utils import get_attr_wrapped_model, get_model_config

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.wire.step_events import TrainingEvent
from pytest_llmbench.engines.megatron_core.options import MegatronCoreOptions
from pytest_llmbench.engines.megatron_core.ranks.model import DTYPE, build, transformer_config, transformer_impl
from pytest_llmbench.workloads.rank.fed import Fed
from pytest_llmbench.workloads.rank.step_clock import StepClock
from pytest_llmbench.workloads.rank.steplog import StepLog
from pytest_llmbench.workloads.training import attention, matmul
from pytest_llmbench.workloads.training.learning_rate import learning_rate
from pytest_llmbench.workloads.training.tokens import Tokens, batch, open_tokens, stable_seed

# Seed of parameters and dropout, as in engine torch.
_SEED = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class MegatronTraining:
    """Inputs of every step."""

    recipe: Recipe
    device: torch.device
    tokens: Tokens
    positions: torch.Tensor  # [micro batch, sequence], the same in every micro batch
    chunks: list[Any]  # this rank's parts of the model, each in Megatron-Core's wrapper for data parallelism
    optimizer: Any
    copies: int  # of the model
    copy: int  # this rank's, which trains on sequences `copy * copy_batch` and following of every step
    copy_batch: int  # sequences per step of one copy
    reports: bool  # whether this rank is the one of its copy that has the loss and counts the tokens
    fed: Fed


def prepare(recipe: Recipe, options: MegatronCoreOptions, device: torch.device) -> MegatronTraining:
    """Join the parallel groups of the recipe's layout and build this rank's part of the training.

    Raises ConfigError if the data are invalid.
    """
    layout = recipe.parallelism
    parallel_state.initialize_model_parallel(
        layout.tensor, layout.pipeline, layout.virtual_pipeline if layout.virtual_pipeline > 1 else None,
        distributed_timeout_minutes=math.ceil(recipe.deadlines.meeting_s / 60), create_gloo_process_groups=False,
    )  # fmt: skip
    copies, copy = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    # Dropout differs between copies and stages; between tensor-parallel ranks, Megatron-Core sees to that.
    seed = stable_seed(_SEED, copy, parallel_state.get_pipeline_model_parallel_rank())
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed)
    config = transformer_config(recipe, device)
    chunks = _spread(build(recipe, options, config, device, _SEED), recipe, config)
    last = parallel_state.is_pipeline_last_stage(ignore_virtual=True)
    reports = last and parallel_state.get_tensor_model_parallel_rank() == 0
    return MegatronTraining(
        recipe=recipe, device=device, tokens=open_tokens(recipe),
        positions=torch.arange(recipe.sequence_length, device=device).expand(recipe.micro_batch_size, -1),
        chunks=chunks, optimizer=_optimizer(recipe, options, config, chunks), copies=copies, copy=copy,
        copy_batch=recipe.samples_per_step // copies, reports=reports, fed=Fed(reports=reports),
    )  # fmt: skip


def trained(training: MegatronTraining) -> TrainingEvent:
    """Describe this rank's part of the model, as it was trained."""
    if training.recipe.parallelism.sharding == "optimizer":
        for chunk in training.chunks:  # the next forward pass would gather what the last step changed
            chunk.start_param_sync(force_sync=True)
    tensor = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size()
    pipeline = (
        parallel_state.get_pipeline_model_parallel_rank(),
        parallel_state.get_pipeline_model_parallel_world_size(),
    )
    tied = training.recipe.model.tied_embeddings
    parameters = [
        parameter
        for chunk in training.chunks
        for name, parameter in chunk.named_parameters()
        # Tensor-parallel ranks have copies of unsplit parameters; the last of several stages has one of the embedding.
        if (tensor[0] == 0 or getattr(parameter, "tensor_model_parallel", False))
        and not (tied and pipeline[1] > 1 and name.endswith("output_layer.weight"))
    ]
    return training.fed.trained(
        parameters=sum(parameter.numel() for parameter in parameters),
        dtypes={
            parameter.dtype for chunk in training.chunks for parameter in chunk.parameters() if parameter.dim() > 1
        },
        tensor=tensor,
        pipeline=pipeline,
        copy=training.copy,
    )


def _spread(chunks: list[Any], recipe: Recipe, config: TransformerConfig) -> list[Any]:
    """Reduce gradients during the backward pass, and gather sharded parameters during the next forward pass."""
    sharded = recipe.parallelism.sharding == "optimizer"
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=sharded,
        overlap_grad_reduce=True,
        overlap_param_gather=sharded,
    )
    return [DistributedDataParallel(config, settings, chunk) for chunk in chunks]


def _optimizer(recipe: Recipe, options: MegatronCoreOptions, config: TransformerConfig, chunks: list[Any]) -> Any:
    """Build the optimizer, and give the schedule its loss scale."""
    settings, sharded = recipe.optimizer, recipe.parallelism.sharding == "optimizer"
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam", lr=settings.learning_rate, weight_decay=settings.weight_decay,
            adam_beta1=settings.betas[0], adam_beta2=settings.betas[1], adam_eps=settings.eps,
            clip_grad=settings.clip_grad_norm, params_dtype=DTYPE[recipe.precision], bf16=recipe.precision == "bf16",
            fp16=recipe.precision == "fp16", loss_scale=options.loss_scale if recipe.precision == "fp16" else None,
            use_distributed_optimizer=sharded, overlap_param_gather=sharded,
        ),
        chunks,
        use_gloo_process_groups=False,
    )  # fmt: skip
    config.grad_scale_func = optimizer.scale_loss
    config.no_sync_func = [chunk.no_sync for chunk in chunks] if len(chunks) > 1 else chunks[0].no_sync
    return optimizer


def run(recipe: Recipe, options: MegatronCoreOptions, device: torch.device, log: StepLog) -> None:
    """Train a recipe within the process group that is there.

    Raises ConfigError if the data are invalid.
    """
    training = prepare(recipe, options, device)
    implementation = transformer_impl(options, device)
    print(f"transformer layers: {implementation}", flush=True)
    kernel = None if implementation == "transformer_engine" or options.attention == "unfused" else options.attention
    with (
        matmul.ceiling(log, device, DTYPE[recipe.precision]),
        nullcontext() if kernel is None else attention.kernel(recipe, kernel, device),
    ):
        _loop(training, log)


def _loop(training: MegatronTraining, log: StepLog) -> None:
    clock = StepClock(log, training.device, training.fed)
    training.fed.watch(training.chunks, TransformerLayer)
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
    enter_phase = partial(log.phase, step)
    get_model_config(training.chunks[0]).finalize_model_grads_func = partial(_finish_gradients, enter_phase)
    losses = get_forward_backward_func()(
        forward_step_func=partial(_forward, training, enter_phase),
        data_iterator=[enumerate((first + start for start in starts), start=1) for _ in training.chunks],
        model=training.chunks, num_microbatches=len(starts), seq_length=recipe.sequence_length,
        micro_batch_size=recipe.micro_batch_size, forward_only=False,
    )  # fmt: skip
    if not training.reports:
        return torch.zeros((), device=training.device)
    return torch.stack(losses).mean()


def _finish_gradients(enter_phase: Callable[..., None], *chunks: Any, **how: Any) -> None:
    """Wait for the gradients of other ranks, when this rank's own are complete."""
    enter_phase("sync")
    finalize_model_grads(*chunks, **how)


def _forward(
    training: MegatronTraining, enter_phase: Callable[..., None], micro_batches: Iterator[tuple[int, int]], chunk: Any
) -> tuple[torch.Tensor, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]]:
    """Run one micro batch through one chunk; returns the output and the function that makes a loss of it."""
    micro_batch, first = next(micro_batches)
    inputs = targets = positions = None
    if any(get_attr_wrapped_model(chunk, name) for name in ("pre_process", "post_process")):
        enter_phase("data", micro_batch)
        inputs, targets = batch(training.tokens, first, training.recipe.micro_batch_size, training.device)
        inputs, positions = training.fed.take(inputs), training.positions
    enter_phase("forward", micro_batch)
    output = chunk(inputs, positions, None, labels=targets)
    output.register_hook(lambda _: enter_phase("backward", micro_batch))
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
