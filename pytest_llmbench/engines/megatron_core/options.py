"""A recipe's `options` for engine megatron_core: the engine checks them, its ranks obey them."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat

from pytest_llmbench.core.recipe.kernels import Attention, Collectives
from pytest_llmbench.core.schema import Strict

_MULTIPLE = 128  # rows of an embedding, for aligned products


def padded_vocabulary(size: int, ranks: int) -> int:
    """Rows of an embedding of `size` tokens that splits evenly over `ranks`, aligned on each."""
    return -(-size // (_MULTIPLE * ranks)) * _MULTIPLE * ranks


class MegatronCoreOptions(Strict):
    """Options of engine megatron_core.

    None of them changes what is trained: losses agree to the rounding of the precision, whatever they say.

    Attributes:
        attention: as in engine torch's options; `unfused` is Megatron-Core's own, which keeps the scores unless
            checkpointing is `selective`.
        fusion: form of a layer. `none` is Megatron-Core's own; `pointwise` has what lies between its matrix
            products in few passes: bias, ReLU and the sum over micro batches by the product itself, dropout, residual
            and norm in one kernel; `layer` is one compiled function with matrix products inside, for `tensor` 1.
        cross_entropy: `unfused` is Megatron-Core's, over an fp32 copy of all logits. `fused` keeps them in the recipe's
            precision only, and turns them into their gradient where they are. (Megatron-Core's `native` fusion rounds
            gradients to bf16 whatever the precision.)
        pad_vocabulary: the embedding has rows up to a multiple of 128 × tensor, so that its products are aligned.
            Those beyond the vocabulary have probability 0 and stay 0. Tokens and FLOPs are counted without them.
        fused_optimizer: AdamW is one kernel that clips too, and the norm is not waited for.
        overlap: gradients are reduced while the backward pass goes on, and with sharding `optimizer` parameters
            are gathered while the next forward pass does, but with fusion `layer`.
        collectives: how to send parts of the sequence between tensor-parallel ranks: NCCL, or where these are the GPUs
            of one node their copy engines, behind the products, with `parallelism.sequence` and fusion `pointwise`. CPU
            ranks have gloo.
        loss_scale: with precision fp16, gradients are this many times too large on their way to the optimizer.
            It is fixed, so a step that overflows is an error of the recipe and no part of a search for the scale.
    """

    attention: Attention | Literal["unfused"] = "fastest"
    fusion: Literal["none", "pointwise", "layer"] = "pointwise"
    cross_entropy: Literal["unfused", "fused"] = "fused"
    pad_vocabulary: bool = True
    fused_optimizer: bool = True
    overlap: bool = True
    collectives: Collectives = "nccl"
    loss_scale: PositiveFloat = 1024.0
