"""Logs the end of each training step without making the device wait for its host."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable

from pytest_llmbench.workloads.node.machine import peak_memory_bytes
from pytest_llmbench.workloads.rank.fed import Fed
from pytest_llmbench.workloads.rank.steplog import StepLog


class _Mark:
    """A position in a device's queue of work. The work of a host is done when the mark is made."""

    def __init__(self, device: torch.device) -> None:
        self.at_s = time.perf_counter()
        self.event: Any = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        if self.event is not None:
            self.event.record()

    def wait(self) -> None:
        if self.event is not None:
            self.event.synchronize()

    def since(self, earlier: "_Mark") -> float:
        """Return the seconds between an earlier mark and this one; both must have been reached."""
        if self.event is None:
            return self.at_s - earlier.at_s
        return float(earlier.event.elapsed_time(self.event)) / 1e3


@dataclass(frozen=True, kw_only=True, slots=True)
class _QueuedStep:
    """A queued step of this rank, which a GPU may still be working on."""

    # Loss, norm and, in a run that may end early, whether it does, in the host's memory; valid after `end`.
    numbers: torch.Tensor
    end: _Mark  # after the work of the step
    samples: int
    tokens: int


class StepClock:
    """Logs the steps of a rank.

    A step lasts from the end of the one before to its own end, so that the seconds of all steps add up to the wall
    clock of the loop. The host waits for a GPU's step after it has queued the next one, as the GPU would otherwise idle
    at every end until its next work arrives. The ends are CUDA events: the host may look late, and by its own clock
    would count a part of the next step to this one.
    """

    def __init__(self, log: StepLog, device: torch.device, fed: Fed) -> None:
        self._log, self._device, self._fed = log, device, fed
        self._queued: _QueuedStep | None = None
        self._steps, self._enough = 0, False

    def start(self) -> None:
        """Begin step 1, when all ranks are there."""
        dist.barrier()
        self._ended = _Mark(self._device)
        self._ended.wait()
        self._ended_at = self._log.clock.now()

    def steps(self, planned: int) -> Iterator[int]:
        """Yield the number of each step, up to the last one or an early end, which is the same on all ranks.

        Rank 0 broadcasts the end within a step, in 4 bytes; the ranks read it when that step is logged.
        """
        for step in range(1, planned + 1):
            yield step
            if self._enough and step < planned:
                self._log.end_early()
                return

    def step(self, loss: torch.Tensor, grad_norm: torch.Tensor | float) -> None:
        """Record a step whose work has been queued. The loss is a scalar on the device."""
        if not isinstance(grad_norm, torch.Tensor):
            # A kernel, as a copy would block the host.
            grad_norm = torch.full_like(loss, grad_norm, dtype=torch.float32)
        numbers = [loss.float(), grad_norm.float()]
        if self._log.may_end_early:
            numbers.append(torch.full((), float(self._log.enough), device=loss.device))
            dist.broadcast(numbers[-1], 0)
        before, self._queued = self._queued, _queue_step(torch.stack(numbers), *self._fed.step_counts())
        self._steps += 1
        if self._device.type == "cuda":
            self._log.phase(self._steps, "device")
        self._write(before)
        if self._device.type == "cpu":
            self.finish()

    def finish(self) -> None:
        """Wait for the last step."""
        last, self._queued = self._queued, None
        self._write(last)

    def _write(self, step: _QueuedStep | None) -> None:
        if step is None:
            return
        step.end.wait()
        seconds = step.end.since(self._ended)
        self._ended, self._ended_at = step.end, self._ended_at + seconds
        loss, grad_norm, *enough = step.numbers.tolist()
        self._enough = any(enough)
        self._log.step(
            seconds=seconds, ended=self._ended_at, tokens=step.tokens, samples=step.samples, loss=loss,
            grad_norm=grad_norm, peak_memory_bytes=peak_memory_bytes(self._device),
        )  # fmt: skip


def _queue_step(numbers: torch.Tensor, samples: int, tokens: int) -> _QueuedStep:
    device = numbers.device
    if device.type == "cuda":
        host = torch.empty(len(numbers), pin_memory=True)
        numbers = host.copy_(numbers, non_blocking=True)
    return _QueuedStep(numbers=numbers, end=_Mark(device), samples=samples, tokens=tokens)


def on_arrival(loss: torch.Tensor, arrived: Callable[[], None]) -> None:
    """Call `arrived` when the backward pass from this loss is over, before it waits for other ranks.

    Data parallelism queues its wait during the backward pass; this is queued at the start of the pass, so it is called
    first. Nothing here waits for a device.
    """
    engine = Variable._execution_engine  # noqa: SLF001 - FSDP takes the same way
    loss.register_hook(lambda _: engine.queue_callback(arrived))  # type: ignore[no-untyped-call]
