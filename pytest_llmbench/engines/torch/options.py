"""A recipe's `options` for engine torch: the engine checks them, its ranks obey them."""

from __future__ import annotations

from typing import Literal

from pytest_llmbench.core.recipe.kernels import Attention, Collectives
from pytest_llmbench.core.schema import Strict


class TorchOptions(Strict):
    """Options of engine torch.

    Attributes:
        attention: PyTorch's attention kernel on a GPU; `fastest` is the one that rank 0 finds fastest for this shape
            before the first step. The rank's own output says which that was.
        residual: the type of the stream that blocks add to: `compute` is that of the matrix products, as in
            Megatron-Core and metaseq, and halves what is moved between them.
        collectives: how to sum and gather with `sharding: gradients`: NCCL, or between the GPUs of one node their copy
            engines, which leave the GPU free for the matrix products. CPU ranks have gloo.
    """

    attention: Attention = "fastest"
    residual: Literal["compute", "fp32"] = "compute"
    collectives: Collectives = "nccl"
