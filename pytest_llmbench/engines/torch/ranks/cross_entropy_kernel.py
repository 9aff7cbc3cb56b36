"""`linear_cross_entropy.losses_and_gradient` as one kernel, for a GPU: each row of logits is read from memory once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Logits that a row's threads hold at a time: of blocks from 2048 to 16384, with 4 to 32 warps, the fastest on an H200.
_BLOCK = 16384
_WARPS = 16
_LOG2_E = tl.constexpr(1.4426950408889634)


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
    _losses_and_gradient[(len(logits),)](
        logits, targets, share, losses, logits.shape[1], vocab_size, block=_BLOCK, num_warps=_WARPS
    )
    return losses, logits


@triton.jit
def _exp_of_difference(values, less):
    # One multiplication and addition, and the one exponential that a GPU has.
    return tl.exp2(values * _LOG2_E - less * _LOG2_E)


@triton.jit
def _losses_and_gradient(
    logits, targets, share, losses, columns: tl.constexpr, counted: tl.constexpr, block: tl.constexpr
):
    """One row: the softmax's normalizer as the row is read for the first time, the gradient the second time.

    Arithmetic bounds it more than memory does, so that exponentials are those of 2, only the last block has a mask, and
    the target, one column of thousands, is seen to by itself.
    """
    logits += tl.program_id(0).to(tl.int64) * columns
    target = tl.load(targets + tl.program_id(0))
    counts = target >= 0
    hit = tl.load(logits + target, mask=counts, other=0.0).to(tl.float32)
    lanes = tl.arange(0, block)
    whole: tl.constexpr = counted // block * block
    largest = float("-inf")
    total = 0.0
    for start in range(0, whole, block):
        values = tl.load(logits + start + lanes).to(tl.float32)
        larger = tl.maximum(largest, tl.max(values, 0))
        total = total * _exp_of_difference(largest, larger) + tl.sum(_exp_of_difference(values, larger), 0)
        largest = larger
    if whole < counted:
        at = whole + lanes
        values = tl.load(logits + at, mask=at < counted, other=float("-inf")).to(tl.float32)
        larger = tl.maximum(largest, tl.max(values, 0))
        total = total * _exp_of_difference(largest, larger) + tl.sum(_exp_of_difference(values, larger), 0)
        largest = larger
    normalizer = largest + tl.log(total)
    tl.store(losses + tl.program_id(0), tl.where(counts, normalizer - hit, 0.0))
    weight = tl.where(counts, tl.load(share), 0.0)
    for start in range(0, whole, block):
        values = tl.load(logits + start + lanes).to(tl.float32)
        gradient = _exp_of_difference(values, normalizer) * weight
        tl.store(logits + start + lanes, gradient.to(logits.dtype.element_ty))
    for start in range(whole, columns, block):
        at = start + lanes
        values = tl.load(logits + at, mask=at < counted, other=float("-inf")).to(tl.float32)
        gradient = _exp_of_difference(values, normalizer) * weight
        tl.store(logits + at, gradient.to(logits.dtype.element_ty), mask=at < columns)
    tl.debug_barrier()  # whichever thread wrote the target's column has done so
    at_target = (_exp_of_difference(hit, normalizer) - 1.0) * weight
    tl.store(logits + target, at_target.to(logits.dtype.element_ty), mask=counts)
