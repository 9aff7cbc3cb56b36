"""Initial values by a matrix's name and the seed alone: those of `workloads.torch.decoder`, written down a second time.

The second writing is on purpose: when either changes, losses of the first step tell it.
"""

from __future__ import annotations

import math
import re

import torch
from torch import nn

from pytest_llmbench.workloads.training.tokens import stable_seed

_STD = 0.006
_SEED = 1
# A matrix's number is its place among all parameters of the model, of which a block has twelve.
_OUTSIDE = {"tokens.weight": 0, "positions.weight": 1}
_IN_BLOCK = {"qkv": 2, "attention_out": 4, "mlp_in": 8, "mlp_out": 10}
_ENDS_BRANCH = {"attention_out", "mlp_out"}
_BLOCK = re.compile(r"blocks\.(\d+)\.(\w+)\.weight")


def matrix(name: str, shape: torch.Size, layers: int, device: torch.device) -> torch.Tensor:
    """Draw one matrix whole, fp32: N(0, 0.006²), and narrower by √(2 L) where it ends a residual branch."""
    number, std = _OUTSIDE.get(name), _STD
    if number is None:
        match = _BLOCK.fullmatch(name)
        if match is None:
            raise KeyError(name)
        number = 2 + 12 * int(match[1]) + _IN_BLOCK[match[2]]
        std = _STD / math.sqrt(2 * layers) if match[2] in _ENDS_BRANCH else _STD
    generator = torch.Generator(device).manual_seed(stable_seed(_SEED, number))
    return torch.empty(shape, device=device).normal_(0.0, std, generator=generator)


@torch.no_grad()
def fill_vector(name: str, parameter: nn.Parameter) -> None:
    """Biases are 0, and norms 1."""
    parameter.fill_(0.0 if name.endswith("bias") else 1.0)
