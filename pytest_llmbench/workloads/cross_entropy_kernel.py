"""`linear_cross_entropy.losses_and_gradient` as one kernel, for a GPU: each row of logits is read from memory once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Logits that a row's threads hold at a time: with the next row's in flight, what a multiprocessor has registers for.
_BLOCK = 8192
_WARPS = 16


def losses_and_gradient(
    logits: torch.Tensor, targets: torch.Tensor, share: torch.Tensor, vocab_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `linear_cross_entropy.losses_and_gradient`; the gradient takes the place of the logits.

    Args:
        logits: [tokens, padded vocabulary], rows without gaps; gone afterwards.
        targets: int64 [tokens].
        share: of each token in the loss, a scalar on the GPU.
        vocab_size: columns from there on are padding.
    """
    losses = torch.empty(len(logits), device=logits.device)
    targets, share = targets.contiguous(), share.float()
    _kernel[(len(logits),)](logits, targets, share, losses, logits.shape[1], vocab_size, block=_BLOCK, num_warps=_WARPS)
    return losses, logits


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(logits, targets, share, losses, columns: tl.constexpr, counted: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """One row: the softmax's normalizer as the row is read for the first time, the gradient the second time."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * columns
    target = tl.load(targets + row)
    counts = target >= 0
    # Now, because it is written over below, by whichever thread comes there first.
    hit = tl.load(logits + target, mask=counts, other=0.0).to(tl.float32)
    lanes = tl.arange(0, block)
    largest = float("-inf")
    total = 0.0
    for start in range(0, counted, block):
        at = start + lanes
        values = tl.load(logits + at, mask=at < counted, other=float("-inf")).to(tl.float32)
        larger = tl.maximum(largest, tl.max(values, 0))
        total = total * tl.exp(largest - larger) + tl.sum(tl.exp(values - larger), 0)
        largest = larger
    normalizer = largest + tl.log(total)
    tl.store(losses + row, tl.where(counts, normalizer - hit, 0.0))
    weight = tl.where(counts, tl.load(share), 0.0)
    for start in range(0, columns, block):
        at = start + lanes
        values = tl.load(logits + at, mask=at < counted, other=float("-inf")).to(tl.float32)
        gradient = (tl.exp(values - normalizer) - tl.where(at == target, 1.0, 0.0)) * weight
        tl.store(logits + at, gradient.to(logits.dtype.element_ty), mask=at < columns)
