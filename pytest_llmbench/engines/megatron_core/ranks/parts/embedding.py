"""The word embedding of Megatron-Core's model, whose gradient is added to the fp32 sum of the micro batches at once.

Megatron-Core's makes a gradient as large as the embedding for each micro batch, most of it zeros, and adds that.
"""

from typing import Any

import torch
from megatron.core.tensor_parallel import (
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from torch import nn

from pytest_llmbench.engines.megatron_core.ranks.parts.pointwise import look_up
from pytest_llmbench.engines.megatron_core.ranks.sending import Split


class WordEmbedding:
    """Replacement of `forward` of Megatron-Core's `VocabParallelEmbedding`, of whose rows this rank has some.

    If it is `tied`, this rank's output layer has the same weight, and tells autograd that there is a gradient.
    """

    def __init__(self, table: Any, shares: Split, *, tied: bool) -> None:
        self._weight: nn.Parameter = table.weight
        self._scatters: bool = table.reduce_scatter_embeddings
        self._shares, self._tied = shares, tied

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map [b, s] to [b, s, h]; with rotary positions and sequence parallelism to [s / ranks, b, h]."""
        rows = len(self._weight)
        own = tokens - self._shares.rank * rows
        here = (own >= 0) & (own < rows)
        # Other ranks' tokens add zeros, each to another row: to the same one they would wait for one another.
        at = torch.where(here, own, tokens % rows)
        words: torch.Tensor = _LookUp.apply(at, here, self._weight, self._tied)  # type: ignore[no-untyped-call]
        if self._scatters:
            words = reduce_scatter_to_sequence_parallel_region(words.transpose(0, 1).contiguous())
        elif self._shares.ranks > 1:
            words = reduce_from_tensor_model_parallel_region(words)
        return words


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, at: torch.Tensor, here: torch.Tensor, weight: nn.Parameter, tied: bool) -> torch.Tensor:
        ctx.save_for_backward(at, here, weight)
        ctx.tied = tied
        return look_up(weight, at, here)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        at, here, weight = ctx.saved_tensors
        values = torch.where(here.unsqueeze(-1), grads[0], 0.0).flatten(0, 1).float()
        # Of all ways to add rows of which some are the same, the one that always adds them in the same order.
        weight.main_grad.index_put_((at.flatten(),), values, accumulate=True)
        weight.grad_added_to_main_grad = True
        return None, None, None if ctx.tied else torch.empty_like(weight), None
