"""A recipe's `options` for engine megatron_core: the engine checks them, its ranks obey them."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat

from pytest_llmbench.core.schema import Strict


class Options(Strict):
    """What only engine megatron_core knows of a recipe.

    Attributes:
        attention: `sdpa` is PyTorch's fused attention, which keeps no scores; `unfused` is Megatron-Core's own,
            which keeps them all unless checkpointing is `selective`.
        overlap: gradients are reduced while the backward pass goes on, and with sharding `optimizer` parameters
            are gathered while the next forward pass does.
        loss_scale: with precision fp16, gradients are this many times too large on their way to the optimizer.
            It is fixed, so a step that overflows is an error of the recipe and no part of a search for the scale.
    """

    attention: Literal["sdpa", "unfused"] = "sdpa"
    overlap: bool = True
    loss_scale: PositiveFloat = 1024.0
