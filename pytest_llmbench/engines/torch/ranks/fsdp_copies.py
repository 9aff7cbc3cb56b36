"""FSDP's collectives between the GPUs of one host, by their copy engines: see `peer_memory`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.workloads.training.peer_memory import InTurns, Places, ShareMemory, Symmetric, peers, put


def use(modules: Iterable[FSDPModule], group: dist.ProcessGroup, share: ShareMemory = Symmetric) -> None:
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

    def __init__(self, group: dist.ProcessGroup, share: ShareMemory) -> None:
        self._group, self._share = group, share
        self._places: Places | None = None

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, **_: object) -> torch.Tensor:
        """The memory of the whole, to whose part of this rank FSDP writes; the same in each step."""
        if self._places is None:
            self._places = self._share(math.prod(map(int, size)), dtype, self._group)
        # A peer may still read this part only if no optimizer step has been since, and then the same values are
        # written: an optimizer step comes after gradients are reduced, for which the peer met this rank when it had
        # read.
        return self._places.whole()

    def __call__(self, output_tensor: torch.Tensor, **_: object) -> None:
        """Fill `output_tensor`, which is from `allocate`, and whose part of this rank is written."""
        places = self._places
        assert places is not None
        assert output_tensor.data_ptr() == places.whole().data_ptr()
        places.meet()
        for peer in peers(places):
            places.part(places.rank, peer).copy_(places.part(peer, peer))


class _ReduceScatter:
    """Each rank copies its summands to the ranks that add them up, all of one sum in the order of ranks."""

    def __init__(self, group: dist.ProcessGroup, share: ShareMemory) -> None:
        self._places = InTurns(group, share)

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory of this rank alone."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, op: Any, **_: object) -> None:
        """Write the mean over all ranks of this rank's part of their `input_tensor`."""
        assert op == dist.ReduceOp.AVG  # what FSDP asks for with fp32 and bf16
        places = self._places.next(input_tensor.numel(), input_tensor.dtype)
        parts = input_tensor.chunk(places.ranks)
        for peer in peers(places):
            places.part(peer, places.rank).copy_(parts[peer])
        put(parts[places.rank], places.part(places.rank, places.rank))
        places.meet()
        torch.mean(places.whole().view(places.ranks, -1), dim=0, out=output_tensor)
