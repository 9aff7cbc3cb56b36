"""Causal attention by PyTorch's fused kernels, instead of Megatron-Core's `DotProductAttention`."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn
from torch.nn import functional


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float) -> torch.Tensor:
    """Map three of [sequence, batch, heads, width] to [sequence, batch, heads × width]."""
    query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
    mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
    return mixed.permute(2, 0, 1, 3).flatten(2)


class FusedAttention(nn.Module):
    """`attend` as a part of Megatron-Core's layer."""

    def __init__(self, config: TransformerConfig, **_: object) -> None:
        super().__init__()
        self._dropout = config.attention_dropout
        # With sequence parallelism the whole layer draws the numbers of its own tensor-parallel rank.
        self._own_numbers = not config.sequence_parallel

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object
    ) -> torch.Tensor:
        """See `attend`."""
        dropout = self._dropout if self.training else 0.0
        with get_cuda_rng_tracker().fork() if dropout and self._own_numbers else nullcontext():
            return attend(query, key, value, dropout)
