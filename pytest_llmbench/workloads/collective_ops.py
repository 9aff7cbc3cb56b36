"""The collectives of nccl-tests in terms of torch.distributed: who sends how much, and what has to arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from pytest_llmbench.core.curves import ALIGNMENT, IN_PARTS
from pytest_llmbench.workloads.collective_values import Values, fill, spoil, wrong

Call = Callable[[], Sequence[Any] | None]

_ROOT = 0
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")
# torch.distributed has no other form of these; a copy before each would be no measurement of the operation.
_ONLY_IN_PLACE = ("all_reduce", "broadcast", "reduce")
# In place these are undefined, in nccl-tests as well.
_ONLY_OUT_OF_PLACE = ("alltoall", "sendrecv")


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One collective, as one rank takes part in it.

    Attributes:
        name: one of `core.curves.COLLECTIVES`.
        rank, ranks: who this is, and of how many.
    """

    name: str
    rank: int
    ranks: int

    @property
    def redop(self) -> str | None:
        """How elements are reduced, if they are."""
        return "sum" if self.name in _REDUCING else None

    @property
    def places(self) -> tuple[str, ...]:
        """`out_of_place`, `in_place` or both: what torch.distributed offers."""
        if self.name in _ONLY_IN_PLACE:
            return ("in_place",)
        return ("out_of_place",) if self.name in _ONLY_OUT_OF_PLACE else ("out_of_place", "in_place")

    def count(self, size: int, dtype: torch.dtype) -> int:
        """Elements of a message of at most `size` bytes, or of a rank's part of it: as nccl-tests rounds them."""
        elements = size // dtype.itemsize
        if self.name not in IN_PARTS:
            return elements
        unit = ALIGNMENT // dtype.itemsize
        return elements // self.ranks // unit * unit

    def elements(self, count: int) -> int:
        """Elements of the larger of what this rank sends and what it gets: the size of the message."""
        return count * self.ranks if self.name in IN_PARTS else count

    def views(self, send: torch.Tensor, recv: torch.Tensor, count: int, place: str) -> tuple[torch.Tensor, ...]:
        """What this rank sends and where it receives: the beginnings of two flat buffers, or parts of the second."""
        whole = self.elements(count)
        mine = slice(self.rank * count, (self.rank + 1) * count)
        if place == "in_place":
            full = recv[:whole]
            if self.name == "all_gather":
                return full[mine], full
            return (full, full[mine]) if self.name == "reduce_scatter" else (full, full)
        return (
            send[: count if self.name == "all_gather" else whole],
            recv[: count if self.name == "reduce_scatter" else whole],
        )

    def prepare(self, send: torch.Tensor, recv: torch.Tensor) -> Call:
        """What does it once. It may return before it is done, and gives what else has to be waited for."""
        if self.name != "sendrecv":
            return partial(_CALLS[self.name], send, recv)
        ring = [
            dist.P2POp(dist.isend, send, (self.rank + 1) % self.ranks),
            dist.P2POp(dist.irecv, recv, (self.rank - 1) % self.ranks),
        ]
        return partial(dist.batch_isend_irecv, ring)

    def write(self, send: torch.Tensor, recv: torch.Tensor, values: Values, round_: int) -> None:
        """Put this rank's values of a round where it sends from, and none of any round where it only receives."""
        spoil(recv)
        fill(send, (values.part if self.name in _REDUCING else values.of)(self.rank, round_))

    def wrong(self, recv: torch.Tensor, values: Values, round_: int) -> int:
        """How many elements this rank received that are not those of the round."""
        return sum(wrong(part, table) for part, table in self._expected(recv, values, round_))

    def _expected(self, recv: torch.Tensor, values: Values, round_: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        match self.name:
            case "all_reduce":
                yield recv, values.total(round_)
            case "reduce" if self.rank == _ROOT:
                yield recv, values.total(round_)
            case "broadcast":
                yield recv, values.of(_ROOT, round_)
            case "sendrecv":
                yield recv, values.of((self.rank - 1) % self.ranks, round_)
            case "reduce_scatter":
                yield recv, values.total(round_, self.rank * len(recv))
            case "all_gather" | "alltoall":
                parts = recv.tensor_split(self.ranks)
                for sender, part in enumerate(parts):
                    start = self.rank * len(part) if self.name == "alltoall" else 0
                    yield part, values.of(sender, round_, start)


def finish(works: Sequence[Any] | None) -> None:
    """Wait for what a call gave; on a GPU, only the device's own order is waited for."""
    for work in works or ():
        work.wait()


def why_unsupported(call: Call) -> str | None:
    """Do it once. Return in the backend's own words why it cannot, and None where it can; other errors are raised."""
    try:
        finish(call())
    except (RuntimeError, ValueError) as error:
        if "support" not in str(error) and "implement" not in str(error):
            raise
        return " ".join(str(error).split())[:300]
    return None


# Named so from PyTorch 2.13 on; the old names warn there.
_ALL_GATHER: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_CALLS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "all_reduce": lambda _, recv: dist.all_reduce(recv),
    "all_gather": lambda send, recv: _ALL_GATHER(recv, send),
    "reduce_scatter": lambda send, recv: _REDUCE_SCATTER(recv, send),
    "broadcast": lambda _, recv: dist.broadcast(recv, _ROOT),
    "reduce": lambda _, recv: dist.reduce(recv, _ROOT),
    "alltoall": lambda send, recv: dist.all_to_all_single(recv, send),
}
