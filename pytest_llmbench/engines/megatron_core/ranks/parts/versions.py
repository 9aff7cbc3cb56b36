"""Differences between versions 0.16 and 0.19 of Megatron-Core; all else of them that we call is the same in both.

Parts of a layer are built by `build_module` from a class or `ModuleSpec` in 0.16, mostly by a call in 0.19, with the
same arguments and a `name` more: a class serves both, a `ModuleSpec` does not.
"""

from typing import Any

import torch


def mlp_parts(layer: Any) -> Any:
    """Parts of the feed-forward network in a layer's specification: of a `ModuleSpec` in 0.16, a partial in 0.19."""
    mlp = layer.submodules.mlp
    return mlp.submodules if hasattr(mlp, "submodules") else mlp.keywords["submodules"]


def gradients_of_norm(optimizer: Any) -> list[torch.Tensor]:
    """Gradients of one optimizer that count in their norm: each once, on one of the ranks that share it."""
    name = (
        "get_grads_for_grad_norm" if hasattr(optimizer, "get_grads_for_grad_norm") else "get_main_grads_for_grad_norm"
    )
    found: list[torch.Tensor] = getattr(optimizer, name)()
    return found
