"""Measures collectives on a rank: rate by message size, and correctness of the results."""

import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Literal

import psutil
import torch
import torch.distributed as dist
from pydantic import NonNegativeInt, PositiveInt

from pytest_llmbench.checks.collectives.nodes.answer import MeasuredCollectives, RankCollectives
from pytest_llmbench.checks.collectives.nodes.ops import Call, Operation, Values, Works, finish, why_unsupported
from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.record.curves import ALIGNMENT, Curve, Point, size_name, timing
from pytest_llmbench.core.schema import Strict, validate
from pytest_llmbench.workloads.node.machine import device_name
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.nccl_lines import NcclRecord
from pytest_llmbench.workloads.rank.probe import ProbeLog
from pytest_llmbench.workloads.rank.rendezvous import process_group
from pytest_llmbench.workloads.training.matmul import synchronize


def free_bytes(context: RankContext, device: torch.device) -> int:
    """Memory that this rank may use: nine tenths of what its GPU has free, or its share of half of the node's."""
    if device.type == "cuda":
        return int(0.9 * torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available) // 2 // context.ranks_per_node


def choose_largest(sizes: Sequence[int], free: float) -> tuple[int, list[str]]:
    """The largest size of which two buffers fit, and a note if larger ones were asked for.

    Raises RunError `no_memory` if none fits.
    """
    fitting = [size for size in sizes if 2 * size <= free]
    if not fitting:  #: error no_memory: Check: the smallest message does not fit into memory
        raise RunError("no_memory", f"two buffers of {size_name(min(sizes))} do not fit into {free / 2**20:.0f} MiB")
    largest, wanted = max(fitting), max(sizes)
    if largest == wanted:
        return largest, []
    needed = f"two buffers of {size_name(wanted)} do not fit into the {free / 2**30:.1f} GiB that a rank has free"
    return largest, [f"sizes end at {size_name(largest)}: {needed}"]


# From this size on, one operation is warm-up enough.
_LARGE = 128 << 20
# On a GPU, this many times more operations of smaller sizes are timed together, so that the host's part is small.
_MANY = 5
# On a GPU, sizes below the second number take milliseconds and are measured as often as the first.
_TURNS, _SHORT = 5, 1 << 30
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class CollectivesPlan(Strict):
    """The sizes and counts of a measurement."""

    collectives: tuple[str, ...]  # in this order
    sizes: tuple[PositiveInt, ...]  # of the messages, bytes, ascending
    dtype: Literal["float32", "bfloat16"] = "float32"
    iterations: PositiveInt = 20  # operations that are timed together
    warm_up: NonNegativeInt = 5  # operations before them; 1 for large messages
    checked: PositiveInt = 4  # further operations whose results are checked, each with values of its own
    timeout_s: float = 600.0  # longest wait of a rank for the others
    nccl: bool = False  # whether NCCL prints its lines, which slows the measurement


def measure(context: RankContext, log: ProbeLog) -> RankCollectives:
    """Measure a `CollectivesPlan` in one process group."""
    plan = validate(CollectivesPlan, context.config, "collectives")
    record = NcclRecord(context) if plan.nccl else None
    log.phase("rendezvous")
    with process_group(context, plan.timeout_s) as device:
        answer = _Bench(context, plan, device).run(log)
        log.phase("leaving the group")
    return answer.model_copy(update={"nccl": record.read() if record else None})


class _Bench:
    """The buffers of one rank, and what it measures with them."""

    def __init__(self, context: RankContext, plan: CollectivesPlan, device: torch.device) -> None:
        self._context, self._plan, self._device = context, plan, device
        self._dtype = _DTYPES[plan.dtype]
        largest, self._notes = choose_largest(plan.sizes, self._reduce(free_bytes(context, device), dist.ReduceOp.MIN))
        self._sizes = [size for size in plan.sizes if size <= largest]
        elements = max(largest, ALIGNMENT * context.world_size) // self._dtype.itemsize
        self._send, self._recv = (torch.zeros(elements, dtype=self._dtype, device=device) for _ in range(2))
        self._values = Values(context.world_size, self._dtype)

    def run(self, log: ProbeLog) -> RankCollectives:
        curves: dict[str, Curve] = {}
        unsupported: dict[str, str] = {}
        wrong: dict[str, int] = {}
        for name in self._plan.collectives:
            operation = Operation(name=name, rank=self._context.rank, ranks=self._context.world_size)
            log.phase(f"{name}, first of all")
            reason = self._why_unsupported(operation)
            if reason is not None:
                unsupported[name] = reason
                continue
            wrong[name] = 0
            points, nodes = tuple(self._measure_points(operation, log, wrong)), self._context.nodes
            gpus = operation.ranks if self._device.type == "cuda" else 0
            curves[name] = Curve(
                collective=name, points=points, ranks=operation.ranks, nodes=nodes, gpus=gpus, complete=True
            )
        if self._context.rank != 0:
            return RankCollectives(wrong=wrong, measured=None)
        device, notes = device_name(self._context), tuple(self._notes)
        measured = MeasuredCollectives(curves=curves, unsupported=unsupported, notes=notes, device=device)
        return RankCollectives(wrong=wrong, measured=measured)

    def _why_unsupported(self, operation: Operation) -> str | None:
        """The backend's reason for refusing an operation; None if it can do it."""
        count = operation.count(ALIGNMENT * operation.ranks, self._dtype)
        views = operation.views(self._send, self._recv, count, operation.places[0])
        reason = why_unsupported(operation.prepare(*views))
        synchronize(self._device)
        return reason

    def _measure_points(self, operation: Operation, log: ProbeLog, wrong: dict[str, int]) -> Iterator[Point]:
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
                own_s = self._measure_seconds(operation, count, place)
                seconds = self._reduce(own_s, dist.ReduceOp.SUM) / operation.ranks
                own_wrong = self._count_wrong(operation, count, place)
                wrong[operation.name] += own_wrong
                all_wrong = int(self._reduce(own_wrong, dist.ReduceOp.SUM))
                sides[place] = timing(operation.name, size, operation.ranks, 1e6 * seconds, all_wrong)
            yield Point(size=size, count=count, dtype=self._plan.dtype, redop=operation.redop, **sides)

    def _measure_seconds(self, operation: Operation, count: int, place: str) -> float:
        """Duration of one operation on this rank: the mean of many, by the host's clock, up to the end of the last.

        They are queued together, and each works on the next part of the buffers, so that a small message is in no
        cache. On a GPU, where 20 small ones take a millisecond, the median of several measurements counts: other
        interruptions of the host take as long.
        """
        calls = self._prepare_calls(operation, count, place)
        size = operation.elements(count) * self._dtype.itemsize
        large = size >= _LARGE
        self._queue(calls, min(1, self._plan.warm_up) if large else self._plan.warm_up)
        durations = []
        gpu = self._device.type == "cuda"
        iterations = self._plan.iterations * (_MANY if gpu and not large else 1)
        for _ in range(_TURNS if gpu and size < _SHORT else 1):
            dist.barrier()
            synchronize(self._device)
            start = time.perf_counter()
            self._queue(calls, iterations)
            durations.append((time.perf_counter() - start) / iterations)
        return median(durations)

    def _prepare_calls(self, operation: Operation, count: int, place: str) -> list[Call]:
        """The operation on one part of the buffers after the other, as far as they reach and iterations need."""
        step = operation.elements(count)
        parts = min(len(self._send) // step, self._plan.iterations)
        buffers = ((self._send[part * step :], self._recv[part * step :]) for part in range(parts))
        return [operation.prepare(*operation.views(send, recv, count, place)) for send, recv in buffers]

    def _queue(self, calls: Sequence[Call], iterations: int) -> None:
        """Do operations one after the other, up to the end of the last."""
        pending: Works = ()
        for iteration in range(iterations):
            pending = calls[iteration % len(calls)]()
            if self._device.type == "cpu":  # a GPU does them in order; gloo would do all at once
                finish(pending)
                pending = ()
        finish(pending)
        synchronize(self._device)

    def _count_wrong(self, operation: Operation, count: int, place: str) -> int:
        """Wrong elements of this rank in further rounds, each with values of its own.

        Several rounds find a link that errs now and then.
        """
        send, recv = operation.views(self._send, self._recv, count, place)
        call, wrong = operation.prepare(send, recv), 0
        for round_ in range(self._plan.checked):
            operation.write(send, recv, self._values, round_)
            finish(call())
            synchronize(self._device)
            wrong += operation.wrong(recv, self._values, round_)
        return wrong

    def _reduce(self, value: float, how: dist.ReduceOp.RedOpType) -> float:
        tensor = torch.tensor(value, dtype=torch.float64, device=self._device)
        dist.all_reduce(tensor, how)
        return tensor.item()
