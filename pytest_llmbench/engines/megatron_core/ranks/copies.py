"""Parts of a sequence, sent between tensor-parallel ranks of one host by their GPUs' copy engines: see `peer_memory`.

A product with a sequence begins with the local part, and continues with the others as they come. A sum over ranks is
sent part by part as the product delivers them. So what is sent hides behind products, of which it takes nothing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from pytest_llmbench.workloads.training.peer_memory import InTurns, Places, ShareMemory, Symmetric, peers, put

# Rows and columns of a product that one multiprocessor makes at a time, in the kernels that cuBLAS takes for bf16.
_TILE = 128, 256
# A product in parts may take longer than the whole by this much: what is sent beside it would take longer.
_WORTH = 1.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """A matrix product of which any rows can be made alone.

    Attributes:
        columns: of the product.
        multiply: makes a part of it. With `gather` from a part of the sequence, which is its first argument; with
            `scatter` it writes to the first argument. The second is which positions of the sequence these are.
    """

    columns: int
    multiply: Callable[[torch.Tensor, slice], None]


class Copies:
    """Messages between a rank and the other ranks of its tensor-parallel group, through the memory that `share` makes.

    Transfers that one method began are waited for before the next meets the other ranks. All ranks call the same, in
    one order.
    """

    def __init__(self, group: dist.ProcessGroup, share: ShareMemory = Symmetric) -> None:
        self._gathered, self._summands = InTurns(group, share), InTurns(group, share)
        self._stream: Any = None

    def gather(self, part: torch.Tensor, product: Product | None = None) -> Callable[[], torch.Tensor]:
        """See `sending.gather`; the result is good until the next but one is asked for."""
        main, aside = self._streams(part.device)
        ranks = dist.get_world_size(self._gathered.group)
        places = self._gathered.next(part.numel() * ranks, part.dtype)
        put(part.flatten(), places.part(places.rank, places.rank))
        # When ranks have met, they write again where this one read the last time.
        main.wait_stream(aside)
        places.meet()
        aside.wait_stream(main)
        come: list[tuple[int, Any]] = [(places.rank, None)]
        with _on(aside, part.device):
            for peer in peers(places):
                places.part(places.rank, peer).copy_(places.part(peer, peer))
                come.append((peer, aside.record_event()))
        whole = places.whole().view(part.shape[0] * places.ranks, *part.shape[1:])
        if product is not None and _in_parts(whole, product, places):
            for peer, copied in come:
                if copied is not None:
                    main.wait_event(copied)
                rows = _rows(whole, places, peer)
                product.multiply(whole[rows], rows)
        elif product is not None:
            main.wait_stream(aside)
            product.multiply(whole, slice(None))

        def wait() -> torch.Tensor:
            main.wait_stream(aside)
            return whole

        return wait

    def scatter(self, summand: torch.Tensor, product: Product | None = None) -> Callable[[], torch.Tensor]:
        """See `sending.scatter`."""
        main, aside = self._streams(summand.device)
        places = self._summands.next(summand.numel(), summand.dtype)
        in_parts = product is not None and _in_parts(summand, product, places)
        if product is not None and not in_parts:
            product.multiply(summand, slice(None))
        for peer in (*peers(places), places.rank):
            rows = _rows(summand, places, peer)
            if product is not None and in_parts:
                product.multiply(summand[rows], rows)
            if peer == places.rank:
                put(summand[rows].flatten(), places.part(peer, peer))
                continue
            aside.wait_stream(main)
            with _on(aside, summand.device):
                places.part(peer, places.rank).copy_(summand[rows].flatten())

        def wait() -> torch.Tensor:
            main.wait_stream(aside)
            places.meet()
            own = summand[_rows(summand, places, places.rank)]
            return places.whole().view(places.ranks, *own.shape).sum(0)

        return wait

    def _streams(self, device: torch.device) -> tuple[Any, Any]:
        """That of the products, and that of the copies."""
        module = torch.get_device_module(device)
        if self._stream is None:
            self._stream = module.Stream()
        return module.current_stream(), self._stream


def _on(stream: Any, device: torch.device) -> Any:
    return torch.get_device_module(device).stream(stream)


def _rows(whole: torch.Tensor, places: Places, rank: int) -> slice:
    number = whole.shape[0] // places.ranks
    return slice(rank * number, (rank + 1) * number)


def _in_parts(whole: torch.Tensor, product: Product, places: Places) -> bool:
    """Whether the parts of a product fill the multiprocessors about as well as the whole."""
    rows = math.prod(whole.shape[:-1])
    parts = places.ranks * _rounds(rows // places.ranks, product.columns, whole.device)
    return parts <= _WORTH * _rounds(rows, product.columns, whole.device)


def _rounds(rows: int, columns: int, device: torch.device) -> int:
    """How many tiles of a product a multiprocessor makes."""
    tiles = -(-rows // _TILE[0]) * -(-columns // _TILE[1])
    number = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    return -(-tiles // number)
