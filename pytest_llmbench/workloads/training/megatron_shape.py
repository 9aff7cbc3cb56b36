"""The shape of a recipe in the words of Megatron-Core, which engine megatron_core and NeMo share."""

from collections.abc import Mapping
from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from torch.nn import functional

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.shape import Activation, ModelShape


def squared_relu(hidden: torch.Tensor) -> torch.Tensor:
    """Square of the ReLU."""
    return functional.relu(hidden) ** 2


_ACTIVATIONS = {
    "relu": functional.relu, "gelu": functional.gelu, "squared_relu": squared_relu, "swiglu": functional.silu,
}  # fmt: skip


_RECOMPUTATION: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective"},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}


def layer_settings(recipe: Recipe, activation: Activation) -> dict[str, Any]:
    """Return fields of `TransformerConfig`; `activation` is the engine's own, for a recipe that names none."""
    model, layout = recipe.model, recipe.parallelism
    return {
        "num_layers": model.layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.attention_heads,
        "num_query_groups": model.key_value_heads,
        "kv_channels": model.head_width,
        "ffn_hidden_size": model.feed_forward_width,
        "activation_func": _ACTIVATIONS[model.activation or activation],
        "gated_linear_unit": model.gated,
        "normalization": "RMSNorm" if model.norm == "rms_norm" else "LayerNorm",
        "add_bias_linear": model.biases == "all",
        "add_qkv_bias": model.biases == "qkv",
        "qk_layernorm": model.query_key_norm,
        "hidden_dropout": model.dropout,
        "attention_dropout": model.dropout,
        "sequence_parallel": layout.sequence,
        **_RECOMPUTATION[layout.activation_checkpointing],
    }


def local_layer(model: ModelShape) -> Any:
    """Specify Megatron-Core's own layer, which needs neither Apex nor Transformer Engine."""
    rms = {"normalization": "RMSNorm"} if model.norm == "rms_norm" else {}  # older versions lack the parameter
    return get_gpt_layer_local_spec(qk_layernorm=model.query_key_norm, **rms)


def model_settings(model: ModelShape) -> dict[str, Any]:
    """Return arguments of Megatron-Core's `GPTModel` and of NeMo's `GPTConfig` alike."""
    return {
        "share_embeddings_and_output_weights": model.tied_embeddings,
        "position_embedding_type": "rope" if model.positions == "rope" else "learned_absolute",
        "rotary_base": int(model.rotary.base),
        "rotary_percent": model.rotary.fraction,
    }
