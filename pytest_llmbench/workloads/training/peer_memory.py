"""Memory of the GPUs of one host that all of them read and write, for collectives by their copy engines.

A matrix product has a block for each multiprocessor. Next to a kernel of NCCL, which holds some, it takes two rounds,
so that a transfer at the same time costs as much as without it. Copy engines take none: only what is received is then
added up by a kernel, at the speed of memory.

Ranks meet once in each collective, in their streams: what any did before in its stream is then seen by all.
"""

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Protocol

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.workloads.node.machine import beside_allocator


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


ShareMemory = Callable[[int, torch.dtype, dist.ProcessGroup], Places]


class Symmetric:
    """`Places` in the memory of GPUs that reach one another's; all ranks of the group make it together.

    Their number divides the size.

    Raises:
        ConfigError: they do not reach one another's.
    """

    def __init__(self, size: int, dtype: torch.dtype, group: dist.ProcessGroup) -> None:
        device = torch.device("cuda", torch.cuda.current_device())
        self._own = symmetric_memory.empty(size, dtype=dtype, device=device)
        try:
            self._all = symmetric_memory.rendezvous(self._own, group)
        except (torch.OutOfMemoryError, dist.DistError):
            raise
        except RuntimeError as error:
            raise ConfigError(
                "options.collectives: copies needs GPUs that reach one another's memory, by NVLink or PCIe (see "
                f"nvidia-smi topo -p2p rw); set collectives: nccl: {error}"
            ) from error
        beside_allocator.append(self._own.nbytes)
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


class InTurns:
    """Memory that `share` makes and no rank reads any more: of two of each size in turns, the one before the last.

    To have met in the last collective, a rank has done with what stood in the memory of the one before.
    """

    def __init__(self, group: dist.ProcessGroup, share: ShareMemory) -> None:
        self.group, self._share = group, share
        self._places: dict[tuple[int, torch.dtype], Iterator[Places]] = {}

    def next(self, size: int, dtype: torch.dtype) -> Places:
        """As many elements of a type on each rank; all ranks ask for the same, in the same order."""
        if (size, dtype) not in self._places:
            self._places[size, dtype] = cycle([self._share(size, dtype, self.group) for _ in range(2)])
        return next(self._places[size, dtype])


def put(values: torch.Tensor, place: torch.Tensor) -> None:
    """Copy within one GPU's memory by a kernel: a copy engine, with 110 GB/s there, takes many times as long."""
    torch.add(values, 0.0, out=place)


def peers(places: Places) -> list[int]:
    """All other ranks, of which each rank begins with another, so that not all begin with the same."""
    return [(places.rank + step) % places.ranks for step in range(1, places.ranks)]
