"""A recipe's `options` for engine torch."""

from typing import Literal

from pytest_llmbench.core.recipe.kernels import Attention
from pytest_llmbench.core.schema import Strict


class TorchOptions(Strict):
    """Options of engine torch."""

    attention: Attention = "fastest"
    """Attention kernel of PyTorch on a GPU; `fastest` is found by rank 0 before the first step. The output of each rank
    names it."""
    scaling: Literal["tensorwise", "rowwise"] = "tensorwise"
    """Part of a factor of an `fp8` product that shares a scale: the whole, or each row and column. With `tensorwise`,
    sharded parameters are gathered in 8 bits.
    """
