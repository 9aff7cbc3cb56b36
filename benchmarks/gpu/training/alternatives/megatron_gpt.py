"""The model, the optimizer and the loop of the alternatives on Megatron-Core, 0.16 to 0.19."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn
from torch.nn import functional

from benchmarks.gpu.training.alternatives.shared import DTYPE, Batch, batches, learning_rate, start
from benchmarks.gpu.training.alternatives.weights import fill_vector, matrix
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.workloads.rank.steplog import StepLog

# Names of Megatron-Core's matrices, in those of `weights`.
_OUTSIDE = {
    "embedding.word_embeddings.weight": "tokens.weight",
    "embedding.position_embeddings.weight": "positions.weight",
}
_IN_LAYER = {
    "self_attention.linear_qkv": "qkv",
    "self_attention.linear_proj": "attention_out",
    "mlp.linear_fc1": "mlp_in",
    "mlp.linear_fc2": "mlp_out",
}
_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)\.weight")


def run(recipe: Recipe, device: torch.device, log: StepLog, *, sdpa: bool) -> None:
    """Train a recipe within the process group that is there."""
    parallel_state.initialize_model_parallel(recipe.parallelism.tensor, create_gloo_process_groups=False)
    torch.manual_seed(1)
    model_parallel_cuda_manual_seed(1)
    config = _config(recipe)
    model = _model(recipe, config, device, sdpa=sdpa)
    optimizer = _optimizer(recipe, config, model)
    copies, copy = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    data = batches(recipe, copy, copies, device)
    # One of the ranks that hold a copy of the model together counts its work.
    samples = 0 if parallel_state.get_tensor_model_parallel_rank() else recipe.samples_per_step // copies
    positions = torch.arange(recipe.sequence_length, device=device).expand(recipe.micro_batch_size, -1)

    def forward(micro_batches: Iterator[Batch], chunk: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
        inputs, targets = next(micro_batches)
        return chunk(inputs, positions, None, labels=targets), _mean

    clock = start(recipe, log, device, samples)
    for step, micro_batches in enumerate(data, start=1):
        log.phase(step, "forward")
        model.zero_grad_buffer()
        optimizer.zero_grad()
        losses = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=iter(micro_batches),
            model=[model],
            num_microbatches=len(micro_batches),
            seq_length=recipe.sequence_length,
            micro_batch_size=recipe.micro_batch_size,
            forward_only=False,
        )
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, step)
        _, norm, _ = optimizer.step()
        clock.step(torch.stack(losses).mean(), math.nan if norm is None else norm)
    clock.finish()


def _config(recipe: Recipe) -> TransformerConfig:
    shape = recipe.model
    return TransformerConfig(
        num_layers=shape.layers,
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.attention_heads,
        activation_func=functional.relu,
        hidden_dropout=shape.dropout,
        attention_dropout=shape.dropout,
        params_dtype=DTYPE[recipe.precision],
        pipeline_dtype=DTYPE[recipe.precision],
        bf16=recipe.precision == "bf16",
        tensor_model_parallel_size=recipe.parallelism.tensor,
        bias_dropout_fusion=recipe.compile,
    )


def _model(recipe: Recipe, config: TransformerConfig, device: torch.device, *, sdpa: bool) -> Any:
    spec = get_gpt_layer_local_spec()
    if sdpa:
        spec.submodules.self_attention.submodules.core_attention = _Attention
    model = GPTModel(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=recipe.model.vocab_size,
        max_sequence_length=recipe.sequence_length,
        share_embeddings_and_output_weights=True,
    ).to(device)
    _fill(model, recipe, device)
    wrapped = model if recipe.precision == "fp32" else Float16Module(config, model)
    sharded = recipe.parallelism.sharding == "optimizer"
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=sharded,
        overlap_grad_reduce=True,
        overlap_param_gather=sharded,
    )
    return DistributedDataParallel(config, settings, wrapped)


def _optimizer(recipe: Recipe, config: TransformerConfig, model: Any) -> Any:
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
            use_distributed_optimizer=sharded,
            overlap_param_gather=sharded,
        ),
        [model],
        use_gloo_process_groups=False,
    )
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    config.no_sync_func = model.no_sync
    return optimizer


@torch.no_grad()
def _fill(model: nn.Module, recipe: Recipe, device: torch.device) -> None:
    """Give this rank its part of the values that every variant starts from."""
    shape = recipe.model
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            fill_vector(name, parameter)
            continue
        ours, size = _OUTSIDE.get(name), list(parameter.shape)
        share = parallel_state.get_tensor_model_parallel_world_size()
        # What Megatron-Core marks on a matrix that its ranks share: the dimension along which it is cut.
        cut: int | None = getattr(parameter, "partition_dim", -1) if _is_shared(parameter) else None
        if cut is not None:
            size[cut] *= share
        match = _LAYER.fullmatch(name)
        if match is not None:
            ours = f"blocks.{match[1]}.{_IN_LAYER[match[2]]}.weight"
        whole = matrix(ours or name, torch.Size(size), shape.layers, device)
        if match is not None and _IN_LAYER[match[2]] == "qkv":
            # Query, key and value are together head by head here, and one after the other there.
            whole = whole.view(3, shape.attention_heads, -1, size[1]).transpose(0, 1).reshape(size)
        if cut is not None:
            whole = whole.chunk(share, dim=cut)[parallel_state.get_tensor_model_parallel_rank()]
        parameter.copy_(whole)


def _is_shared(parameter: nn.Parameter) -> bool:
    return bool(getattr(parameter, "tensor_model_parallel", False))


def _mean(losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss to go back from, which the schedule divides in place by the micro batches, and the same to keep."""
    loss = losses.float().mean()
    return loss, loss.detach().clone()


class _Attention(nn.Module):
    """Causal attention by PyTorch's fused kernels."""

    def __init__(self, config: TransformerConfig, **_: object) -> None:
        super().__init__()
        if config.attention_dropout:
            raise ValueError("this alternative is for models without dropout")

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object) -> Any:
        """Map three of [sequence, batch, heads, width] to [sequence, batch, heads × width]."""
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.permute(2, 0, 1, 3).flatten(2)
