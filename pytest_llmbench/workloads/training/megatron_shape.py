"""The shape of a recipe in the words of Megatron-Core, which engine megatron_core and NeMo share."""

from typing import Any

import torch
from torch.nn import functional

from pytest_llmbench.core.recipe.shape import Activation, ModelShape


def squared_relu(hidden: torch.Tensor) -> torch.Tensor:
    """Square of the ReLU."""
    return functional.relu(hidden) ** 2


_ACTIVATIONS = {
    "relu": functional.relu, "gelu": functional.gelu, "squared_relu": squared_relu, "swiglu": functional.silu,
}  # fmt: skip


def layer_settings(model: ModelShape, activation: Activation) -> dict[str, Any]:
    """Return fields of `TransformerConfig`; `activation` is the engine's own, for a recipe that names none."""
    settings: dict[str, Any] = {
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
    }
    if (experts := model.experts) is not None:
        settings |= {
            "num_moe_experts": experts.number,
            "moe_router_topk": experts.top_k,
            "moe_ffn_hidden_size": experts.feed_forward_size,
            "moe_shared_expert_intermediate_size": experts.shared_size or None,
            "moe_layer_freq": [0] * experts.dense_layers + [1] * model.expert_layers,
        }
    return settings


def model_settings(model: ModelShape) -> dict[str, Any]:
    """Return arguments of Megatron-Core's `GPTModel` and of NeMo's `GPTConfig` alike."""
    return {
        "share_embeddings_and_output_weights": model.tied_embeddings,
        "position_embedding_type": "rope" if model.positions == "rope" else "learned_absolute",
        "rotary_base": int(model.rotary.base),
        "rotary_percent": model.rotary.fraction,
    }
