"""A recipe's `options` for engine torch: the engine checks them, its ranks obey them."""

from typing import Literal

from pytest_llmbench.core.recipe.kernels import Attention, Collectives
from pytest_llmbench.core.schema import Strict


class TorchOptions(Strict):
    """Options of engine torch."""

    attention: Attention = "fastest"
    """Attention kernel of PyTorch on a GPU; `fastest` is the one that rank 0 finds fastest for this shape before the
    first step. The output of each rank names it.
    """
    residual: Literal["compute", "fp32"] = "compute"
    """Data type of the stream that blocks add to: that of the matrix products, or fp32 with `sharding: none`."""
    collectives: Collectives = "nccl"
    """Transport of parameters and gradients with `sharding: gradients`: NCCL, or the copy engines of the GPUs of one
    node from PyTorch 2.9 on, which leave the GPU free for matrix products. Ranks on CPUs use gloo.
    """
