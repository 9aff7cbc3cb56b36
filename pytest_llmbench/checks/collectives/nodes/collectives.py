"""How fast the ranks' collectives are, by message size, and whether they give what they should."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Literal

import torch
import torch.distributed as dist
from pydantic import NonNegativeInt, PositiveInt

from pytest_llmbench.checks.collectives.nodes.answer import MeasuredCollectives, RankCollectives
from pytest_llmbench.checks.collectives.nodes.ops import Call, Operation, Works, finish, why_unsupported
from pytest_llmbench.checks.collectives.nodes.values import Values
from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.record.curves import ALIGNMENT, Curve, Point, size_name, timing
from pytest_llmbench.core.schema import Strict, validate
from pytest_llmbench.workloads.node.machine import device_name
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog
from pytest_llmbench.workloads.rank.rendezvous import process_group
from pytest_llmbench.workloads.training.matmul import synchronize


def free_bytes(context: RankContext, device: torch.device) -> int:
    """Memory that this rank may use: nine tenths of what its GPU has free, or its share of half of the node's."""
    if device.type == "cuda":
        return int(0.9 * torch.cuda.mem_get_info(device)[0])
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    kib = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return kib * 1024 // 2 // context.ranks_per_node


def fitting(sizes: Sequence[int], free: float) -> tuple[int, list[str]]:
    """The largest size of which two buffers fit, and a note if that is not the largest of all.

    Raises:
        RunError: `no_memory`, when none fits.
    """
    fitting = [size for size in sizes if 2 * size <= free]
    if not fitting:  #: error no_memory: Check: the smallest message does not fit into memory
        raise RunError("no_memory", f"two buffers of {size_name(min(sizes))} do not fit into {free / 2**20:.0f} MiB")
    largest, wanted = max(fitting), max(sizes)
    if largest == wanted:
        return largest, []
    needed = f"two buffers of {size_name(wanted)} do not fit into the {free / 2**30:.1f} GiB that a rank has free"
    return largest, [f"sizes end at {size_name(largest)}: {needed}"]


# From here on one iteration is long enough to warm anything up.
_LARGE = 128 << 20
# On a GPU, how many times more of the smaller ones are timed together, so that the host's part in it is small.
_MANY = 5
# And how often all are timed that are over in milliseconds.
_TURNS, _SHORT = 5, 1 << 30
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class CollectivesPlan(Strict):
    """The sizes and counts of a measurement."""

    collectives: tuple[str, ...]
    """The collectives to measure, in this order."""
    sizes: tuple[PositiveInt, ...]
    """Of the messages, bytes, ascending."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    iterations: PositiveInt = 20
    """Operations that are timed together."""
    warm_up: NonNegativeInt = 5
    """Operations before them; 1 for large messages."""
    checked: PositiveInt = 4
    """Further operations whose results are looked at, each with values of its own."""
    timeout_s: float = 600.0
    """How long a rank waits for the others."""


def measure(context: RankContext, log: ProbeLog) -> RankCollectives:
    """Measure a `CollectivesPlan` in one process group."""
    plan = validate(CollectivesPlan, context.config, "collectives")
    log.phase("rendezvous")
    with process_group(context, plan.timeout_s) as device:
        answer = _Bench(context, plan, device).run(log)
        log.phase("leaving the group")
    return answer


class _Bench:
    """The buffers of one rank, and what it measures with them."""

    def __init__(self, context: RankContext, plan: CollectivesPlan, device: torch.device) -> None:
        self._context, self._plan, self._device = context, plan, device
        self._dtype = _DTYPES[plan.dtype]
        largest, self._notes = fitting(plan.sizes, self._least(free_bytes(context, device)))
        self._sizes = [size for size in plan.sizes if size <= largest]
        elements = max(largest, ALIGNMENT * context.world_size) // self._dtype.itemsize
        self._send, self._recv = (torch.zeros(elements, dtype=self._dtype, device=device) for _ in range(2))
        self._values = Values(context.world_size, self._dtype)

    def run(self, log: ProbeLog) -> RankCollectives:
        """Measure all operations, one after the other, and make this rank's answer."""
        curves: dict[str, Curve] = {}
        unsupported: dict[str, str] = {}
        wrong: dict[str, int] = {}
        for name in self._plan.collectives:
            operation = Operation(name=name, rank=self._context.rank, ranks=self._context.world_size)
            log.phase(f"{name}, first of all")
            why = self._unsupported(operation)
            if why is not None:
                unsupported[name] = why
                continue
            wrong[name] = 0
            points = list(self._points(operation, log, wrong))
            curves[name] = self._curve(name, points)
        if self._context.rank != 0:
            return RankCollectives(wrong=wrong, measured=None)
        device, notes = device_name(self._context), tuple(self._notes)
        measured = MeasuredCollectives(curves=curves, unsupported=unsupported, notes=notes, device=device)
        return RankCollectives(wrong=wrong, measured=measured)

    def _curve(self, name: str, points: Sequence[Point]) -> Curve:
        ranks = self._context.world_size
        return Curve(
            collective=name,
            points=tuple(points),
            ranks=ranks,
            nodes=self._context.nodes,
            gpus=ranks if self._device.type == "cuda" else 0,
            complete=True,
        )

    def _unsupported(self, operation: Operation) -> str | None:
        """The backend's reason for not doing an operation at all; None if it can."""
        count = operation.count(ALIGNMENT * operation.ranks, self._dtype)
        views = operation.views(self._send, self._recv, count, operation.places[0])
        why = why_unsupported(operation.prepare(*views))
        synchronize(self._device)
        return why

    def _points(self, operation: Operation, log: ProbeLog, wrong: dict[str, int]) -> Iterator[Point]:
        done = 0
        for asked in self._sizes:
            count = operation.count(asked, self._dtype)
            size = operation.elements(count) * self._dtype.itemsize
            if size <= done:
                continue  # too small to give every rank a part
            done = size
            log.phase(f"{operation.name} of {size_name(size)}")
            sides = {}
            for place in operation.places:
                seconds = self._sum(self._seconds(operation, count, place)) / operation.ranks
                found = self._wrong(operation, count, place)
                wrong[operation.name] += found
                everyone = int(self._sum(found))
                sides[place] = timing(operation.name, size, operation.ranks, 1e6 * seconds, everyone)
            yield Point(size=size, count=count, dtype=self._plan.dtype, redop=operation.redop, **sides)

    def _seconds(self, operation: Operation, count: int, place: str) -> float:
        """How long one operation takes on this rank: the mean of many, on the host's clock and up to the last of them.

        They are queued without a look at any of them, and each works on the next part of the buffers, so that a small
        message is not found in a cache. On a GPU, where 20 small ones are over in a millisecond, that is done several
        times, and the median counts: other interruptions of the host take as long.
        """
        calls = self._calls(operation, count, place)
        size = operation.elements(count) * self._dtype.itemsize
        large = size >= _LARGE
        self._queue(calls, min(1, self._plan.warm_up) if large else self._plan.warm_up)
        taken = []
        gpu = self._device.type == "cuda"
        iterations = self._plan.iterations * (_MANY if gpu and not large else 1)
        for _ in range(_TURNS if gpu and size < _SHORT else 1):
            dist.barrier()
            synchronize(self._device)
            start = time.perf_counter()
            self._queue(calls, iterations)
            taken.append((time.perf_counter() - start) / iterations)
        return median(taken)

    def _calls(self, operation: Operation, count: int, place: str) -> list[Call]:
        """The operation on one part of the buffers after the other, as far as they reach and iterations need."""
        step = operation.elements(count)
        parts = min(len(self._send) // step, self._plan.iterations)
        starts = [part * step for part in range(parts)]
        return [
            operation.prepare(*operation.views(self._send[start:], self._recv[start:], count, place))
            for start in starts
        ]

    def _queue(self, calls: Sequence[Call], iterations: int) -> None:
        """Do operations one after the other, up to the end of the last."""
        pending: Works = ()
        for iteration in range(iterations):
            pending = calls[iteration % len(calls)]()
            if self._device.type == "cpu":  # a GPU does in order what it is told; gloo would do all at once
                finish(pending)
                pending = ()
        finish(pending)
        synchronize(self._device)

    def _wrong(self, operation: Operation, count: int, place: str) -> int:
        """Wrong elements of this rank in further rounds, each with values of its own.

        One look is not enough: a link that errs now and then is rarely caught by it.
        """
        send, recv = operation.views(self._send, self._recv, count, place)
        call, found = operation.prepare(send, recv), 0
        for round_ in range(self._plan.checked):
            operation.write(send, recv, self._values, round_)
            finish(call())
            synchronize(self._device)
            found += operation.wrong(recv, self._values, round_)
        return found

    def _sum(self, value: float) -> float:
        return self._over_all(value, dist.ReduceOp.SUM)

    def _least(self, value: float) -> float:
        return self._over_all(value, dist.ReduceOp.MIN)

    def _over_all(self, value: float, how: dist.ReduceOp.RedOpType) -> float:
        tensor = torch.tensor(value, dtype=torch.float64, device=self._device)
        dist.all_reduce(tensor, how)
        return tensor.item()
