"""The collectives of nccl-tests by torch.distributed: sizes, calls and expected values.

Every element is a small whole number that depends on its rank, position and round, so that a contribution that is
missing, doubled, misplaced or of an earlier round makes a wrong value. Every sum of them fits into the digits of the
type, in any order: a right result is right to the last bit.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from pytest_llmbench.core.record.curves import ALIGNMENT, IN_PARTS

# Pending operations.
Works = Sequence[dist.Work | None]
Call = Callable[[], Works]

_ROOT = 0
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")
# torch.distributed has only this form of these; a copy before each would spoil the measurement.
_ONLY_IN_PLACE = ("all_reduce", "broadcast", "reduce")
# In place these are undefined, in nccl-tests as well.
_ONLY_OUT_OF_PLACE = ("alltoall", "sendrecv")
# The largest number up to which a type represents every whole number.
_EXACT = {torch.float32: 2**24, torch.bfloat16: 2**8}
# Values repeat after a prime number of elements, of at least this size: blocks of a power of two then differ.
_LEAST_PERIOD = 251
# Distance between ranks, and between rounds; both are prime to the period.
_PER_RANK, _PER_ROUND = 7, 31
_BLOCK = 1 << 22
_NEVER = -1.0


class Values:
    """The values of one group of ranks, in tables of one period from some position on."""

    def __init__(self, ranks: int, dtype: torch.dtype) -> None:
        numbers = itertools.count(max(_LEAST_PERIOD, ranks))
        self.period = next(n for n in numbers if all(n % divisor for divisor in range(2, math.isqrt(n) + 1)))
        self._exact = _EXACT[dtype]
        # At any position all ranks differ in their step, so that a sum is at most 0 + 1 + ... + this.
        self._largest_part = (math.isqrt(8 * self._exact + 1) - 1) // 2
        self._total = torch.zeros(self.period, dtype=torch.int64)
        for rank in range(ranks):
            self._total += self.part(rank, 0)

    def of(self, rank: int, round_: int, start: int = 0) -> torch.Tensor:
        """The table of one rank from a position on, for an operation that moves data."""
        return self._small(rank, round_, start, self._exact)

    def part(self, rank: int, round_: int, start: int = 0) -> torch.Tensor:
        """The table of one rank from a position on, for an operation that adds."""
        return self._small(rank, round_, start, self._largest_part)

    def total(self, round_: int, start: int = 0) -> torch.Tensor:
        """The table of the sum over all ranks from a position on."""
        return self._total.roll(-(start + _PER_ROUND * round_))

    def _small(self, rank: int, round_: int, start: int, largest: int) -> torch.Tensor:
        first = start % self.period + _PER_RANK * rank + _PER_ROUND * round_
        steps = (torch.arange(self.period) + first) % self.period
        return torch.where(steps <= largest, steps, 0)


def fill(tensor: torch.Tensor, table: torch.Tensor) -> None:
    """Write a table into a flat tensor, repeated up to its end."""
    block = _block(tensor, table)
    for start in range(0, len(tensor), len(block)):
        chunk = tensor[start : start + len(block)]
        chunk.copy_(block[: len(chunk)])


def spoil(tensor: torch.Tensor) -> None:
    """Write a value that no operation produces, so that an unwritten element counts as wrong."""
    tensor.fill_(_NEVER)


def wrong(tensor: torch.Tensor, table: torch.Tensor) -> int:
    """Count the elements of a flat tensor that differ from a repeated table; NaN is always wrong."""
    block = _block(tensor, table)
    count = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, len(tensor), len(block)):
        chunk = tensor[start : start + len(block)]
        count += (chunk != block[: len(chunk)]).sum()
    return int(count)


def _block(tensor: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Some periods of a table at once: a large buffer is compared in pieces, without a second one of its size."""
    periods = math.ceil(min(len(tensor), _BLOCK) / len(table))
    return table.to(tensor.device, tensor.dtype).repeat(max(1, periods))


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One collective, as one rank takes part in it."""

    name: str  # one of `core.curves.COLLECTIVES`
    rank: int
    ranks: int  # their number

    @property
    def redop(self) -> str | None:
        """The reduction of elements; None for an operation that moves them."""
        return "sum" if self.name in _REDUCING else None

    @property
    def places(self) -> tuple[str, ...]:
        """`out_of_place`, `in_place` or both, as torch.distributed offers it."""
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
        """Elements of the message: of the larger of this rank's input and output."""
        return count * self.ranks if self.name in IN_PARTS else count

    def views(self, send: torch.Tensor, recv: torch.Tensor, count: int, place: str) -> tuple[torch.Tensor, ...]:
        """The tensors that this rank sends and receives: the beginnings of two flat buffers, or parts of the second."""
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
        """A function that runs the operation once; it may return early, with the pending operations."""
        group = dist.group.WORLD
        if self.name != "sendrecv":
            return partial(_CALLS[self.name], group, send, recv)
        following, before = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        return partial(_send_and_receive, group, send, following, recv, before)

    def write(self, send: torch.Tensor, recv: torch.Tensor, values: Values, round_: int) -> None:
        """Write this rank's values of a round into the input, and spoil the output."""
        spoil(recv)
        fill(send, (values.part if self.name in _REDUCING else values.of)(self.rank, round_))

    def wrong(self, recv: torch.Tensor, values: Values, round_: int) -> int:
        """Count the received elements that differ from those of the round."""
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


def finish(works: Works) -> None:
    """Wait for pending operations; on a GPU, this only orders them on the device."""
    for work in works:
        if work is not None:
            work.wait()


def why_unsupported(call: Call) -> str | None:
    """Try the operation once. Return the backend's reason for refusing it, None for success; raise other errors."""
    try:
        finish(call())
    except (RuntimeError, ValueError) as error:
        if "support" not in str(error) and "implement" not in str(error):
            raise
        return " ".join(str(error).split())[:300]
    return None


def _send_and_receive(group: Any, send: torch.Tensor, to: int, recv: torch.Tensor, source: int) -> Works:
    if not send.is_cuda:
        return group.send([send], to, 0), group.recv([recv], source, 0)
    # NCCL has to start both at once: each would wait for the other's partner.
    group._start_coalescing(send.device)  # noqa: SLF001 - as torch.distributed's own functions do
    group.send([send], to, 0)
    group.recv([recv], source, 0)
    return (group._end_coalescing(send.device),)  # noqa: SLF001


def _in_order(options: Any, **values: Any) -> Any:
    """Options of a collective that a GPU does in the order of the caller's own stream."""
    for name, value in {"asyncOp": False, **values}.items():
        setattr(options, name, value)
    return options


# The group's own methods and fixed options: torch.distributed's functions check their arguments for longer than a GPU
# takes for a few MiB.
_SUM = _in_order(dist.AllreduceOptions())
_GATHER = _in_order(AllgatherOptions())
_SCATTER = _in_order(dist.ReduceScatterOptions())
_BROADCAST = _in_order(dist.BroadcastOptions(), rootRank=_ROOT)
_REDUCE = _in_order(dist.ReduceOptions(), rootRank=_ROOT)
_EXCHANGE = _in_order(dist.AllToAllOptions())
_CALLS: Mapping[str, Callable[[Any, torch.Tensor, torch.Tensor], Works]] = {
    "all_reduce": lambda group, _, recv: (group.allreduce([recv], _SUM),),
    "all_gather": lambda group, send, recv: (group._allgather_base(recv, send, _GATHER),),  # noqa: SLF001
    "reduce_scatter": lambda group, send, recv: (group._reduce_scatter_base(recv, send, _SCATTER),),  # noqa: SLF001
    "broadcast": lambda group, _, recv: (group.broadcast([recv], _BROADCAST),),
    "reduce": lambda group, _, recv: (group.reduce([recv], _REDUCE),),
    "alltoall": lambda group, send, recv: (group.alltoall_base(recv, send, [], [], _EXCHANGE),),
}
