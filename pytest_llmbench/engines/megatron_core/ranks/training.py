"""Parts of the training loop of engine megatron_core: the model spread over the ranks, its optimizer, its data."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.wire.step_events import TrainingEvent
from pytest_llmbench.engines.megatron_core.options import MegatronCoreOptions
from pytest_llmbench.engines.megatron_core.ranks.model import DTYPE, build, transformer_config
from pytest_llmbench.workloads.rank.fed import Fed
from pytest_llmbench.workloads.training.tokens import Tokens, open_tokens, sequences_of_copy, stable_seed

# Seed of parameters and dropout, as in engine torch.
_SEED = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class MegatronTraining:
    """Inputs of every step."""

    recipe: Recipe
    options: MegatronCoreOptions
    device: torch.device
    tokens: Tokens
    positions: torch.Tensor  # [micro batch, sequence], the same in every micro batch
    chunks: list[Any]  # this rank's parts of the model, each in Megatron-Core's wrapper for data parallelism
    optimizer: Any
    copies: int  # of the model
    copy: int  # this rank's, which trains on sequences `copy * copy_batch` and following of every step
    copy_batch: int  # sequences per step of one copy
    speaks: bool  # whether this rank is the one of its copy that has the loss and counts the tokens
    fed: Fed


def prepare(recipe: Recipe, options: MegatronCoreOptions, device: torch.device) -> MegatronTraining:
    """Join the parallel groups of the recipe's layout and build this rank's part of the training.

    Raises:
        ConfigError: the batch is indivisible by the ranks, or the data are invalid.
    """
    layout = recipe.parallelism
    parallel_state.initialize_model_parallel(
        layout.tensor,
        layout.pipeline,
        layout.virtual_pipeline if layout.virtual_pipeline > 1 else None,
        distributed_timeout_minutes=math.ceil(recipe.deadlines.meeting_s / 60),
        create_gloo_process_groups=False,
    )
    copies, copy = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    copy_batch = sequences_of_copy(recipe, copies)
    # Dropout differs between copies and stages; between tensor-parallel ranks, Megatron-Core sees to that.
    seed = stable_seed(_SEED, copy, parallel_state.get_pipeline_model_parallel_rank())
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed)
    config = transformer_config(recipe, device)
    chunks = _spread(build(recipe, options, config, device, _SEED), recipe, options, config)
    last = parallel_state.is_pipeline_last_stage(ignore_virtual=True)
    speaks = last and parallel_state.get_tensor_model_parallel_rank() == 0
    return MegatronTraining(
        recipe=recipe,
        device=device,
        options=options,
        tokens=open_tokens(recipe),
        positions=torch.arange(recipe.sequence_length, device=device).expand(recipe.micro_batch_size, -1),
        chunks=chunks,
        optimizer=_optimizer(recipe, options, config, chunks),
        copies=copies,
        copy=copy,
        copy_batch=copy_batch,
        speaks=speaks,
        fed=Fed(speaks=speaks),
    )


def trained(training: MegatronTraining) -> TrainingEvent:
    """Describe this rank's part of the model, as it was trained."""
    tensor = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size()
    pipeline = (
        parallel_state.get_pipeline_model_parallel_rank(),
        parallel_state.get_pipeline_model_parallel_world_size(),
    )
    parameters = [
        parameter
        for chunk in training.chunks
        for name, parameter in chunk.named_parameters()
        # Tensor-parallel ranks have copies of unsplit parameters; the last of several stages has one of the embedding.
        if (tensor[0] == 0 or getattr(parameter, "tensor_model_parallel", False))
        and not (pipeline[1] > 1 and name.endswith("output_layer.weight"))
    ]
    return training.fed.trained(
        layers=sum(isinstance(module, TransformerLayer) for chunk in training.chunks for module in chunk.modules()),
        parameters=sum(parameter.numel() for parameter in parameters),
        dtypes={
            parameter.dtype for chunk in training.chunks for parameter in chunk.parameters() if parameter.dim() > 1
        },
        tensor=tensor,
        pipeline=pipeline,
        copy=training.copy,
    )


def _spread(chunks: list[Any], recipe: Recipe, options: MegatronCoreOptions, config: TransformerConfig) -> list[Any]:
    sharded = recipe.parallelism.sharding == "optimizer"
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=sharded,
        overlap_grad_reduce=options.overlap,
        overlap_param_gather=options.overlap and sharded,
    )
    return [DistributedDataParallel(config, settings, chunk) for chunk in chunks]


def _optimizer(recipe: Recipe, options: MegatronCoreOptions, config: TransformerConfig, chunks: list[Any]) -> Any:
    """Build the optimizer, and give the schedule its loss scale."""
    settings, sharded = recipe.optimizer, recipe.parallelism.sharding == "optimizer"
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            adam_beta1=settings.betas[0],
            adam_beta2=settings.betas[1],
            adam_eps=settings.eps,
            clip_grad=settings.clip_grad_norm,
            params_dtype=DTYPE[recipe.precision],
            bf16=recipe.precision == "bf16",
            fp16=recipe.precision == "fp16",
            loss_scale=options.loss_scale if recipe.precision == "fp16" else None,
            use_distributed_optimizer=sharded,
            overlap_param_gather=options.overlap and sharded,
        ),
        chunks,
        use_gloo_process_groups=False,
    )
    config.grad_scale_func = optimizer.scale_loss
    if options.overlap:
        config.no_sync_func = [chunk.no_sync for chunk in chunks] if len(chunks) > 1 else chunks[0].no_sync
    return optimizer
