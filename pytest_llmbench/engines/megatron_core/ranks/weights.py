"""Fills Megatron-Core's model with the initial values of engine torch, which depend on the seed alone.

Megatron-Core's own initialisation depends on the number of stages and, on GPUs, of tensor-parallel ranks.
"""

import re
from collections.abc import Sequence
from typing import Any

import torch
from megatron.core import parallel_state
from torch import nn
from torch.nn import functional

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.shape import ModelShape
from pytest_llmbench.engines.torch.ranks import decoder

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


@torch.no_grad()
def initialise(chunks: Sequence[nn.Module], recipe: Recipe, device: torch.device, seed: int) -> None:
    """Fill this rank's part of every matrix in place with the values that engine torch starts from.

    The chunks are bare `GPTModel`s of this rank. Matrices are drawn on the device, whole and one at a time.
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
