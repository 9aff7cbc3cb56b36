"""A recipe's `options` for engine megatron_core."""

from typing import Literal

from pydantic import PositiveFloat

from pytest_llmbench.core.recipe.kernels import Attention
from pytest_llmbench.core.schema import Strict

TransformerImpl = Literal["transformer_engine", "local"]

_MULTIPLE = 128  # rows of an embedding, for aligned products: as Megatron-LM's make-vocab-size-divisible-by


def padded_vocabulary(size: int, ranks: int) -> int:
    """Rows of an embedding of `size` tokens that splits evenly over `ranks`, aligned on each.

    The further rows have probability 0; tokens, parameters of the model and FLOPs are counted without them.
    """
    return -(-size // (_MULTIPLE * ranks)) * _MULTIPLE * ranks


class MegatronCoreOptions(Strict):
    """Options of engine megatron_core.

    The losses of a recipe agree to the rounding of its precision, whatever the options.
    """

    transformer_impl: TransformerImpl | None = None
    """Layers of Megatron-Core that are trained: `transformer_engine`, or `local`. By default `transformer_engine` on
    GPUs where it is installed, else `local`. The output of every rank names the layers in use.
    """
    attention: Attention | Literal["unfused"] = "fastest"
    """Attention kernel as with engine torch; `unfused` is Megatron-Core's own, which keeps scores in memory."""
    loss_scale: PositiveFloat = 1024.0
    """Fixed loss scale with precision `fp16`; a step that overflows is an error."""
