"""A recipe's `options` for engine torch."""

from typing import Literal

from pytest_llmbench.core.recipe.kernels import Attention
from pytest_llmbench.core.schema import Strict


class TorchOptions(Strict):
    """Options of engine torch."""

    attention: Attention = "fastest"
    """Attention kernel of PyTorch on a GPU; `fastest` is the one that rank 0 finds fastest for this shape before the
    first step. The output of each rank names it.
    """
    scaling: Literal["tensorwise", "rowwise"] = "tensorwise"
    """With precision `fp8`, what shares a scale: a whole factor of a product, or each of its rows and columns. Sharded
    parameters are gathered in 8 bits with `tensorwise`.
    """
    residual: Literal["compute", "fp32"] = "compute"
    """Data type of the stream that blocks add to: that of the matrix products, or fp32 with `sharding: none`."""
