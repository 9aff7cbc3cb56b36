"""FSDP's collectives between the GPUs of one host, by their copy engines.

A matrix product has a block for each multiprocessor. Beside a kernel of NCCL, which holds some, it takes two rounds, so
that what is sent beside it costs as much as if nothing were. Copy engines take none: only what is received is then
added up by a kernel, at the speed of memory.

Ranks meet once in each collective, in their streams: what any did before in its stream is then seen by all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
from torch.distributed.fsdp import FSDPModule

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.workloads.machine import beside_allocator


class Places(Protocol):
    """Memory of one size that each rank has, and in which all ranks read and write."""

    rank: int
    ranks: int

    def part(self, rank: int, index: int) -> torch.Tensor:
        """One of as many equal parts of a rank's memory as there are ranks."""

    def whole(self) -> torch.Tensor:
        """This rank's own memory."""

    def meet(self) -> None:
        """Let what follows here begin when all ranks have done what they were asked for before."""


Share = Callable[[int, torch.dtype, dist.ProcessGroup], Places]


class Symmetric:
    """`Places` in the memory of GPUs that reach one another's.

    Args:
        size: elements, which divide by the ranks of the group.
        dtype: of the elements.
        group: who shares; all of its ranks call this together.
    """

    def __init__(self, size: int, dtype: torch.dtype, group: dist.ProcessGroup) -> None:
        device = torch.device("cuda", torch.cuda.current_device())
        self._own = symmetric_memory.empty(size, dtype=dtype, device=device)
        beside_allocator.append(self._own.nbytes)
        self._all = symmetric_memory.rendezvous(self._own, group)
        self.rank, self.ranks = self._all.rank, self._all.world_size

    def part(self, rank: int, index: int) -> torch.Tensor:
        """See `Places`."""
        size = len(self._own) // self.ranks
        return self._all.get_buffer(rank, [size], self._own.dtype, index * size)

    def whole(self) -> torch.Tensor:
        """See `Places`."""
        return self._own

    def meet(self) -> None:
        """See `Places`."""
        self._all.barrier()


def use(modules: Iterable[FSDPModule], group: dist.ProcessGroup, share: Share = Symmetric) -> None:
    """Let modules of `fully_shard` copy what they gather and reduce.

    Args:
        modules: those whose parameters are gathered once a step and stay whole until its gradients are reduced: with
            `reshard_after_forward=False`.
        group: the ranks that the parameters are split over.
        share: makes the memory through which they copy.

    Raises:
        ConfigError: FSDP of this PyTorch, older than 2.9, takes no collectives of others.
    """
    if not hasattr(FSDPModule, "set_custom_all_gather"):
        raise ConfigError(f"options.collectives: copies takes PyTorch 2.9 or newer, and this is {torch.__version__}")
    reduce_scatter = _ReduceScatter(group, share)
    for module in modules:
        # What is gathered stays where peers read it until the next step, so that each module has memory of its own.
        module.set_custom_all_gather(_AllGather(group, share))  # type: ignore[arg-type] # no base class before 2.9
        module.set_custom_reduce_scatter(reduce_scatter)  # type: ignore[arg-type]


class _AllGather:
    """Each rank copies the others' parts of a module's parameters."""

    def __init__(self, group: dist.ProcessGroup, share: Share) -> None:
        self._group, self._share = group, share
        self._places: Places | None = None

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, **_: object) -> torch.Tensor:
        """The memory of the whole, to whose part of this rank FSDP writes; the same in each step."""
        if self._places is None:
            self._places = self._share(math.prod(map(int, size)), dtype, self._group)
        # Written before this step's meeting, while a peer may still be reading for the step before? Then what is
        # written is the same as what stands there: an optimizer has changed it only after gradients of that step were
        # reduced, for which the peer has met this rank after it had read.
        return self._places.whole()

    def __call__(self, output_tensor: torch.Tensor, **_: object) -> None:
        """Fill `output_tensor`, which is from `allocate`, and whose part of this rank is written."""
        places = self._places
        assert places is not None
        assert output_tensor.data_ptr() == places.whole().data_ptr()
        places.meet()
        for peer in _peers(places):
            places.part(places.rank, peer).copy_(places.part(peer, peer))


class _ReduceScatter:
    """Each rank copies its summands to the ranks that add them up, all of one sum in the order of ranks."""

    def __init__(self, group: dist.ProcessGroup, share: Share) -> None:
        self._group, self._share = group, share
        self._places: dict[tuple[int, torch.dtype], Iterator[Places]] = {}

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory of this rank alone."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, op: Any, **_: object) -> None:
        """Write the mean over all ranks of this rank's part of their `input_tensor`."""
        assert op == dist.ReduceOp.AVG  # what FSDP asks for with fp32 and bf16
        places = self._free(input_tensor.numel(), input_tensor.dtype)
        parts = input_tensor.chunk(places.ranks)
        for peer in _peers(places):
            places.part(peer, places.rank).copy_(parts[peer])
        # A kernel's copy: within one GPU's memory a copy engine takes ten times as long.
        torch.add(parts[places.rank], 0.0, out=places.part(places.rank, places.rank))
        places.meet()
        torch.mean(places.whole().view(places.ranks, -1), dim=0, out=output_tensor)

    def _free(self, size: int, dtype: torch.dtype) -> Places:
        """Memory that no rank reads any more: of two in turns, the one before the last.

        To have met in the last collective, a rank has added up what stood in the memory of the one before.
        """
        if (size, dtype) not in self._places:
            self._places[size, dtype] = cycle([self._share(size, dtype, self._group) for _ in range(2)])
        return next(self._places[size, dtype])


def _peers(places: Places) -> list[int]:
    """All other ranks, of which each rank begins with another, so that no two write to one at a time."""
    return [(places.rank + step) % places.ranks for step in range(1, places.ranks)]
