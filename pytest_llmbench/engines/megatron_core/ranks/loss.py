"""Output embedding and cross entropy of Megatron-Core's model, over a vocabulary that is split and padded."""

from typing import Any

import torch
import torch.distributed as dist
from megatron.core.models.gpt import GPTModel
from torch import nn

from pytest_llmbench.engines.megatron_core.ranks.parts.embedding import WordEmbedding
from pytest_llmbench.engines.megatron_core.ranks.parts.linear import column_gradients
from pytest_llmbench.engines.megatron_core.ranks.parts.pointwise import logits_to_gradient, softmax_statistics
from pytest_llmbench.engines.megatron_core.ranks.sending import Split, gather

# Of logits at a time: 32 bits index so many of 51200 columns, and where nothing is compiled no more are copied to fp32.
_ROWS = 4096
# What Megatron-LM pads to, per tensor-parallel rank.


class Model(GPTModel):  # type: ignore[misc]
    """GPTModel with a vocabulary that may be padded, and with our cross entropy, where it is `fused`, or its own.

    The vocabulary has `counted` tokens without the padding; the ranks of `shares` have a part of it each.
    """

    def __init__(self, *, counted: int, fused: bool, shares: Split, **built: Any) -> None:
        super().__init__(**built)
        self._fused, self._shares = fused, shares
        self._first, self._valid = _own(counted, self.vocab_size, shares)
        if not fused:
            return
        if self.post_process:
            # It is still called, so that Megatron-Core waits for a weight that is still being gathered.
            self.output_layer.forward = _hand_on
        if self.pre_process and shares.accumulate:
            table = self.embedding.word_embeddings
            table.forward = WordEmbedding(table, shares, tied=self.post_process)
            # Both uses of the weight add to its sum by themselves: of what autograd has, Megatron-Core needs nothing.
            table.weight.zero_out_wgrad = False

    def compute_language_model_loss(self, labels: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Loss of [b, s] labels, in nat, in their shape; `logits` is still the last layer's output, if ours is used."""
        if not self._fused:
            if self._valid < logits.shape[-1]:
                logits[..., self._valid :] = -torch.inf
            loss: torch.Tensor = super().compute_language_model_loss(labels, logits)
            return loss
        weight = self.shared_embedding_or_output_weight()
        return linear_cross_entropy(logits, weight, labels.t() - self._first, self._valid, self._shares).t()


def _own(counted: int, padded: int, shares: Split) -> tuple[int, int]:
    """The first token of this rank, and how many of its rows are tokens."""
    rows = padded // shares.ranks
    first = shares.rank * rows
    return first, min(max(counted - first, 0), rows)


def _hand_on(hidden: torch.Tensor, **_: object) -> tuple[torch.Tensor, None]:
    return hidden, None


def linear_cross_entropy(
    hidden: torch.Tensor, weight: nn.Parameter, targets: torch.Tensor, valid: int, shares: Split
) -> torch.Tensor:
    """Cross entropy of the product with an embedding, which is kept in the precision of `hidden` alone.

    Args:
        hidden: [s, b, h], or this rank's part of the sequence.
        weight: this rank's rows of the embedding, [v, h].
        targets: [s, b], counted from this rank's first row; outside of its rows where they are another rank's.
        valid: how many of this rank's rows count; the others have probability 0.
        shares: group that shares the vocabulary.

    Returns:
        fp32 of [s, b], nat, over the whole sequence and the same on all ranks.
    """
    loss: torch.Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden, weight, targets.flatten(), valid, shares
    )
    return loss.view(targets.shape)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: nn.Parameter, targets: torch.Tensor, valid: int, shares: Split
    ) -> torch.Tensor:
        logits = gather(hidden, shares)().flatten(0, 1) @ weight.t()
        blocks = zip(_rows(logits), _rows(targets), strict=True)
        statistics = torch.cat([softmax_statistics(rows, wanted, valid) for rows, wanted in blocks], dim=1)
        largest, at_target = _over_all(statistics, shares)
        normalizer = statistics[1].log() + largest
        ctx.save_for_backward(hidden, weight, targets, normalizer)
        # Not saved as the others are, because the backward pass writes over it.
        ctx.logits, ctx.valid, ctx.shares = logits, valid, shares
        return normalizer - at_target

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, targets, normalizer = ctx.saved_tensors
        logits, ctx.logits = ctx.logits, None
        for rows, wanted, normal, grad in zip(*map(_rows, (logits, targets, normalizer, grads[0])), strict=True):
            logits_to_gradient(rows, wanted, ctx.valid, normal, grad)
        return *column_gradients(logits, hidden, weight, ctx.shares), None, None, None


def _rows(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    parts: tuple[torch.Tensor, ...] = tensor.split(_ROWS)  # type: ignore[no-untyped-call]
    return parts


def _over_all(statistics: torch.Tensor, shares: Split) -> tuple[torch.Tensor, torch.Tensor]:
    """Make `softmax_statistics` of this rank's columns those of all, in place; returns the first and the last."""
    largest, others = statistics[0], statistics[1:]
    if shares.ranks > 1:
        own = largest.clone()
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=shares.group)
        others[0] *= (own - largest).exp()
        dist.all_reduce(others, group=shares.group)
    return largest, others[1]
