"""Messages between tensor-parallel ranks, and their times: by NCCL, or by `copies`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from pytest_llmbench.engines.megatron_core.ranks.copies import Copies, Product


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """How the ranks of a tensor-parallel group share a product.

    Attributes:
        group: of these ranks.
        ranks: how many there are.
        rank: its number among them.
        sequence: whether each has its part of the sequence where there is no product.
        accumulate: whether a weight's gradient is added to its `main_grad` instead of being returned.
        copies: sender of the parts of a sequence; None for NCCL.
    """

    group: dist.ProcessGroup
    ranks: int
    rank: int
    sequence: bool
    accumulate: bool
    copies: Copies | None = None


def split(*, sequence: bool, accumulate: bool, copies: bool) -> Split:
    """The tensor-parallel group of this rank."""
    group = parallel_state.get_tensor_model_parallel_group()
    return Split(
        group=group,
        ranks=parallel_state.get_tensor_model_parallel_world_size(),
        rank=parallel_state.get_tensor_model_parallel_rank(),
        sequence=sequence,
        accumulate=accumulate,
        copies=Copies(group) if copies else None,
    )


def gather(part: torch.Tensor, shares: Split, product: Product | None = None) -> Callable[[], torch.Tensor]:
    """Begin to put the parts of a sequence together, where it is split.

    Args:
        part: [s, b, h] of this rank.
        shares: group of the ranks that have the others.
        product: factor of the product, at once.

    Returns:
        What waits for it, and returns it: [the whole sequence, b, h].
    """
    if shares.sequence and shares.copies is not None:
        return shares.copies.gather(part, product)
    arriving = _gather(part, shares)
    if product is not None:
        product.multiply(arriving(), slice(None))
    return arriving


def scatter(summand: torch.Tensor, shares: Split, product: Product | None = None) -> Callable[[], torch.Tensor]:
    """Begin to sum over the ranks, of which each keeps its part of a split sequence.

    Args:
        summand: [s, b, h] of the whole sequence.
        shares: whose summands there are.
        product: a future of `summand`.

    Returns:
        What waits for the sum, and returns it: like `summand`, or this rank's part of it.
    """
    if shares.sequence and shares.copies is not None:
        return shares.copies.scatter(summand, product)
    if product is not None:
        product.multiply(summand, slice(None))
    if shares.ranks == 1:
        return lambda: summand
    if not shares.sequence:
        return _when_done(dist.all_reduce(summand, group=shares.group, async_op=True), summand)
    part = summand.new_empty(summand.shape[0] // shares.ranks, *summand.shape[1:])
    return _when_done(dist.reduce_scatter_tensor(part, summand, group=shares.group, async_op=True), part)


def _gather(part: torch.Tensor, shares: Split) -> Callable[[], torch.Tensor]:
    if not shares.sequence:
        return lambda: part
    whole = part.new_empty(part.shape[0] * shares.ranks, *part.shape[1:])
    work = dist.all_gather_into_tensor(whole, part.contiguous(), group=shares.group, async_op=True)
    return _when_done(work, whole)


def _when_done(work: Any, result: torch.Tensor) -> Callable[[], torch.Tensor]:
    def wait() -> torch.Tensor:
        work.wait()
        return result

    return wait
