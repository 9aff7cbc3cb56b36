"""Megatron-Core's GPTModel in the shape of a recipe: the chunks of layers that this rank holds, and their values."""

import re
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn
from torch.nn import functional

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.shape import ModelShape
from pytest_llmbench.engines.megatron_core.options import MegatronCoreOptions, TransformerImpl, padded_vocabulary
from pytest_llmbench.engines.torch.ranks import decoder
from pytest_llmbench.workloads.training.megatron_shape import layer_settings, local_layer, model_settings

# Our names of the matrices by Megatron-Core's; norms and biases have the same initial values in both.
_OUTSIDE = {
    "embedding.word_embeddings.weight": "tokens.weight",
    "embedding.position_embeddings.weight": "positions.weight",
    "output_layer.weight": "output.weight",
}
_IN_LAYER = {
    "self_attention.linear_qkv.weight": "qkv.weight",
    "self_attention.linear_proj.weight": "attention_out.weight",
    "mlp.linear_fc1.weight": "mlp_in.weight",
    "mlp.linear_fc2.weight": "mlp_out.weight",
}
_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")

DTYPE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class FusedAttention(nn.Module):
    """PyTorch's attention as the core attention of Megatron-Core's local layer."""

    def __init__(self, config: TransformerConfig, **_: object) -> None:
        super().__init__()
        self._dropout = config.attention_dropout
        # With sequence parallelism the whole layer draws the numbers of its own tensor-parallel rank.
        self._draws_own_numbers = not config.sequence_parallel

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object
    ) -> torch.Tensor:
        """Map three of [sequence, batch, heads, width] to [sequence, batch, heads × width]."""
        dropout = self._dropout if self.training else 0.0
        query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        with get_cuda_rng_tracker().fork() if dropout and self._draws_own_numbers else nullcontext():
            mixed = functional.scaled_dot_product_attention(
                query, key, value, dropout_p=dropout, is_causal=True, enable_gqa=query.shape[1] != key.shape[1]
            )
        return mixed.permute(2, 0, 1, 3).flatten(2)


class SequenceParallelNorm:
    """PyTorch's norm on a part of the sequence; Megatron-Core's needs Apex or Transformer Engine for that."""

    def __new__(cls, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: object) -> Any:
        kind = nn.RMSNorm if config.normalization == "RMSNorm" else nn.LayerNorm
        norm = kind(hidden_size, eps=eps, dtype=config.params_dtype)
        for parameter in norm.parameters():
            # Megatron-Core sums the gradients of these parameters over the tensor-parallel ranks.
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        return norm


class PaddedGPTModel(GPTModel):  # type: ignore[misc]
    """GPTModel whose vocabulary is padded: of its rows, only the first `tokens` have a probability."""

    def __init__(self, *, tokens: int, **built: Any) -> None:
        super().__init__(**built)
        rows = self.vocab_size // parallel_state.get_tensor_model_parallel_world_size()
        first = rows * parallel_state.get_tensor_model_parallel_rank()
        self._valid = min(max(tokens - first, 0), rows)

    def compute_language_model_loss(self, labels: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Loss of [b, s] labels, in nat, in their shape; `logits` are [s, b, rows of this rank]."""
        if self._valid < logits.shape[-1]:
            logits[..., self._valid :] = -torch.inf
        loss: torch.Tensor = super().compute_language_model_loss(labels, logits)
        return loss


def transformer_impl(options: MegatronCoreOptions, device: torch.device) -> TransformerImpl:
    """Choose the layers to train.

    Raises ConfigError if the option is `transformer_engine`, and this rank lacks it or a GPU.
    """
    usable = device.type == "cuda" and find_spec("transformer_engine") is not None
    if options.transformer_impl == "transformer_engine" and not usable:
        raise ConfigError(
            "options.transformer_impl: transformer_engine needs a GPU and Transformer Engine on every node: "
            "pip install 'transformer_engine[pytorch]', or set transformer_impl: local"
        )
    return options.transformer_impl or ("transformer_engine" if usable else "local")


def transformer_config(recipe: Recipe, device: torch.device) -> TransformerConfig:
    """Translate the recipe's model, layout and precision into Megatron-Core's configuration."""
    layout = recipe.parallelism
    interleaved = layout.virtual_pipeline > 1
    return TransformerConfig(
        **layer_settings(recipe, "relu"),
        params_dtype=DTYPE[recipe.precision],
        pipeline_dtype=DTYPE[recipe.precision],
        bf16=recipe.precision == "bf16",
        fp16=recipe.precision == "fp16",
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=layout.virtual_pipeline if interleaved else None,
        bias_dropout_fusion=recipe.compile,
        # Sent in one batch, tensors of interleaved stages are mixed up, and only the gradients show it.
        overlap_p2p_comm=interleaved,
        batch_p2p_comm=not interleaved,
        # gloo may still be sending an output when this would free it; on a GPU the stream keeps them in order.
        deallocate_pipeline_outputs=device.type == "cuda",
    )


def build(
    recipe: Recipe, options: MegatronCoreOptions, config: TransformerConfig, device: torch.device, seed: int
) -> list[Any]:
    """Build this rank's chunks of the model, in order, with values that depend on the seed alone."""
    number = recipe.parallelism.virtual_pipeline
    chunks = [_chunk(recipe, options, config, None if number == 1 else stage, device) for stage in range(number)]
    initialise(chunks, recipe, device, seed)
    return [Float16Module(config, chunk) if recipe.precision != "fp32" else chunk for chunk in chunks]


def _chunk(
    recipe: Recipe, options: MegatronCoreOptions, config: TransformerConfig, stage: int | None, device: torch.device
) -> Any:
    vocabulary, layout, scaling = recipe.model.vocab_size, recipe.parallelism, recipe.model.rotary.scaling
    scaled = {} if scaling is None else {"rope_scaling": True, "rope_scaling_factor": scaling.factor}
    model = PaddedGPTModel(
        tokens=vocabulary, config=config, transformer_layer_spec=_layers(recipe, options, device),
        vocab_size=padded_vocabulary(vocabulary, layout.tensor), max_sequence_length=recipe.sequence_length,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=stage is None, vp_stage=stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=stage is None, vp_stage=stage),
        vp_stage=stage, **model_settings(recipe.model), **scaled,
    )  # fmt: skip
    return model.to(device)


def _layers(recipe: Recipe, options: MegatronCoreOptions, device: torch.device) -> Any:
    """Specify the layers of a chunk, from the parts that Megatron-Core has for them."""
    layout, model = recipe.parallelism, recipe.model
    if transformer_impl(options, device) == "transformer_engine":
        return get_gpt_layer_with_transformer_engine_spec(qk_layernorm=model.query_key_norm)
    spec = local_layer(model)
    parts = spec.submodules
    attention = parts.self_attention.submodules
    if options.attention != "unfused":
        attention.core_attention = FusedAttention
    if layout.sequence and parts.input_layernorm is WrappedTorchNorm:
        parts.input_layernorm = parts.pre_mlp_layernorm = SequenceParallelNorm
        if model.query_key_norm:
            attention.q_layernorm = attention.k_layernorm = SequenceParallelNorm
    number = model.layers // (layout.pipeline * layout.virtual_pipeline)
    return TransformerBlockSubmodules(layer_specs=[spec] * number, layer_norm=parts.input_layernorm)


@torch.no_grad()
def initialise(chunks: Sequence[nn.Module], recipe: Recipe, device: torch.device, seed: int) -> None:
    """Fill this rank's part of every matrix in place with the values that engine torch starts from.

    Megatron-Core's own depend on the number of stages and, on GPUs, of tensor-parallel ranks. The chunks are bare
    `GPTModel`s of this rank. Matrices are drawn on the device, whole and one at a time.
    """
    parts: dict[str, list[nn.Parameter]] = {}
    for chunk in chunks:
        for name, parameter in chunk.named_parameters():
            if parameter.dim() > 1:
                ours = _our_name(chunk, name)
                tied = ours == "output.weight" and recipe.model.tied_embeddings  # the last stage's copy
                parts.setdefault("tokens.weight" if tied else ours, []).append(parameter)
    with torch.device("meta"):
        source = decoder.Decoder(recipe.model, recipe.sequence_length, activation_checkpointing=False)
    for name, draw in decoder.matrices(source, seed, device):
        if name in parts:
            whole = _order_rows(name, draw(), recipe.model)
            for parameter in parts[name]:
                parameter.copy_(_rank_part(whole, parameter))


def _order_rows(name: str, whole: torch.Tensor, model: ModelShape) -> torch.Tensor:
    """Order the rows of a matrix of engine torch as Megatron-Core has them."""
    if name.endswith("qkv.weight"):  # query heads, key and value of one group after the other
        heads, groups, width = model.attention_heads, model.key_value_heads, whole.shape[1]
        rows = torch.split(whole, [heads * model.head_width, *2 * [groups * model.head_width]])
        whole = torch.cat([part.reshape(groups, -1, width) for part in rows], dim=1).reshape(whole.shape)
    if name.endswith("mlp_in.weight") and model.gated:  # gate and input of one tensor-parallel rank after the other
        ranks = parallel_state.get_tensor_model_parallel_world_size()
        whole = whole.view(2, ranks, -1, whole.shape[1]).transpose(0, 1).reshape(whole.shape)
    return whole


def _our_name(chunk: nn.Module, name: str) -> str:
    match = _LAYER.fullmatch(name)
    if match is None:
        return _OUTSIDE[name]
    layer: Any = chunk.get_submodule(f"decoder.layers.{match[1]}")
    return f"blocks.{layer.layer_number - 1}.{_IN_LAYER[match[2]]}"


def _rank_part(whole: torch.Tensor, parameter: Any) -> torch.Tensor:
    """Return this tensor-parallel rank's part of a matrix, padded with zeros beyond its rows."""
    split = getattr(parameter, "tensor_model_parallel", False)
    ranks: int = parallel_state.get_tensor_model_parallel_world_size() if split else 1
    rank: int = parallel_state.get_tensor_model_parallel_rank() if split else 0
    along = parameter.partition_dim if split else 0
    if along == 0:
        whole = functional.pad(whole, (0, 0, 0, parameter.shape[0] * ranks - whole.shape[0]))
    return whole.chunk(ranks, dim=along)[rank]
