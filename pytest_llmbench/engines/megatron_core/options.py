"""A recipe's `options` for engine megatron_core: the engine checks them, its ranks obey them."""

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
    """

    attention: Attention | Literal["unfused"] = "fastest"
    """As with engine torch; `unfused` is Megatron-Core's own, which keeps scores unless checkpointing is `selective`,
    with fusion `none`.
    """
    fusion: Literal["none", "pointwise", "layer"] = "pointwise"
    """Megatron-Core's own layer; its parts with few passes between matrix products, where bias, ReLU and the sum over
    micro batches are the product's own and dropout, residual and norm one kernel; or a layer as one compiled function,
    for `tensor` 1 and learned positions. `compile: false` compiles none of them.
    """
    cross_entropy: Literal["unfused", "fused"] = "fused"
    """Megatron-Core's, over an fp32 copy of all logits; or with logits in the recipe's precision only, turned into
    their gradient in place.
    """
    pad_vocabulary: bool = True
    """The embedding gets rows of probability 0, up to a multiple of 128 × `tensor`, so that its products are aligned.

    Tokens, parameters and FLOPs are counted without them.
    """
    fused_optimizer: bool = True
    """PyTorch's fused AdamW, which clips too, and a norm that is not waited for; or Megatron-Core's step."""
    overlap: bool = True
    """Gradients are reduced while the backward pass goes on, and with sharding `optimizer` parameters gathered while
    the next forward pass does, but with fusion `layer`.
    """
    collectives: Collectives = "nccl"
    """How to send parts of the sequence between tensor-parallel ranks: NCCL, or, with `parallelism.sequence: true`,
    `fusion: pointwise` and all ranks of a tensor-parallel group on one node, their copy engines, behind the products.
    Ranks on CPUs have gloo.
    """
    loss_scale: PositiveFloat = 1024.0
    """With precision `fp16`; it is fixed, so a step that overflows is an error."""
