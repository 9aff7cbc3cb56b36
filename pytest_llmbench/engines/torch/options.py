"""A recipe's `options` for engine torch: the engine checks them, its ranks obey them."""

from typing import Literal

from pytest_llmbench.core.recipe.kernels import Attention, Collectives
from pytest_llmbench.core.schema import Strict


class TorchOptions(Strict):
    """Options of engine torch."""

    attention: Attention = "fastest"
    """On a GPU, PyTorch's attention kernel; `fastest` is what rank 0 finds fastest for this shape before the first
    step. The output of every rank says which.
    """
    residual: Literal["compute", "fp32"] = "compute"
    """Type of the stream that blocks add to: that of the matrix products, or fp32, with `sharding: none`."""
    collectives: Collectives = "nccl"
    """How to gather parameters and sum gradients with `sharding: gradients`: NCCL, or, between the GPUs of one node and
    from PyTorch 2.9 on, their copy engines, which leave the GPU free for the matrix products. Ranks on CPUs have gloo.
    """
