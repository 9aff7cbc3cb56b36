"""Megatron-Core's GPTModel in the shape of a recipe: the chunks of layers that this rank holds.

What differs between versions 0.16 and 0.19 of Megatron-Core is here and nowhere else: both take a layer's
specification from the same function, and call what is put into it with the same arguments.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn
from torch.nn import functional

from pytest_llmbench.core.megatron_options import Options
from pytest_llmbench.core.recipes import Recipe
from pytest_llmbench.workloads.megatron_weights import initialise

DTYPE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_RECOMPUTE: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective"},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}


def transformer_config(recipe: Recipe, device: torch.device) -> TransformerConfig:
    """Say in Megatron-Core's words what the recipe asks for: the model, its layout and its precision."""
    model, layout = recipe.model, recipe.parallelism
    interleaved = layout.virtual_pipeline > 1
    return TransformerConfig(
        num_layers=model.layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.attention_heads,
        activation_func=functional.relu,
        hidden_dropout=model.dropout,
        attention_dropout=model.dropout,
        params_dtype=DTYPE[recipe.precision],
        pipeline_dtype=DTYPE[recipe.precision],
        bf16=recipe.precision == "bf16",
        fp16=recipe.precision == "fp16",
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=layout.virtual_pipeline if interleaved else None,
        sequence_parallel=layout.sequence,
        bias_dropout_fusion=recipe.compile,
        # Sent in one batch, tensors of interleaved stages are mixed up, and nothing tells but the gradients.
        overlap_p2p_comm=interleaved,
        batch_p2p_comm=not interleaved,
        # gloo may still be sending an output when this would free it; on a GPU the stream keeps them in order.
        deallocate_pipeline_outputs=device.type == "cuda",
        **_RECOMPUTE[layout.activation_checkpointing],
    )


def build(recipe: Recipe, options: Options, config: TransformerConfig, device: torch.device, seed: int) -> list[Any]:
    """Build this rank's chunks of the model, in order, with values that depend on the seed alone."""
    number = recipe.parallelism.virtual_pipeline
    chunks = [_chunk(recipe, options, config, None if number == 1 else stage).to(device) for stage in range(number)]
    initialise(chunks, recipe, device, seed)
    return [Float16Module(config, chunk) if recipe.precision != "fp32" else chunk for chunk in chunks]


def _chunk(recipe: Recipe, options: Options, config: TransformerConfig, stage: int | None) -> Any:
    layers = recipe.model.layers // (recipe.parallelism.pipeline * recipe.parallelism.virtual_pipeline)
    return GPTModel(
        config=config,
        transformer_layer_spec=TransformerBlockSubmodules(layer_specs=[_layer(options)] * layers, layer_norm=_Norm),
        vocab_size=recipe.model.vocab_size,
        max_sequence_length=recipe.sequence_length,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=stage is None, vp_stage=stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=stage is None, vp_stage=stage),
        share_embeddings_and_output_weights=True,
        position_embedding_type="rope" if recipe.model.positions == "rope" else "learned_absolute",
        vp_stage=stage,
    )


def _layer(options: Options) -> Any:
    spec = get_gpt_layer_local_spec()
    spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = _Norm
    if options.attention == "sdpa":
        spec.submodules.self_attention.submodules.core_attention = _FusedAttention
    return spec


class _Norm(nn.LayerNorm):
    """Layer norm that also serves sequence parallelism; Megatron-Core's needs Apex or Transformer Engine for that."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: object) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        for parameter in self.parameters():
            # Each rank sees its part of the sequence, so that Megatron-Core has to sum these gradients.
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


class _FusedAttention(nn.Module):
    """Causal attention by PyTorch's fused kernels, in the place of Megatron-Core's `DotProductAttention`."""

    def __init__(self, config: TransformerConfig, **_: object) -> None:
        super().__init__()
        self._dropout = config.attention_dropout
        # With sequence parallelism the whole layer draws the numbers of its own tensor-parallel rank.
        self._own_numbers = not config.sequence_parallel

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object
    ) -> torch.Tensor:
        """Map three of [sequence, batch, heads, width] to [sequence, batch, heads × width]."""
        dropout = self._dropout if self.training else 0.0
        query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        with get_cuda_rng_tracker().fork() if dropout and self._own_numbers else nullcontext():
            mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return mixed.permute(2, 0, 1, 3).flatten(2)
