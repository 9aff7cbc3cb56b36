"""What the alternatives share: the recipe's data and learning rate, and a log that never makes the device wait."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from pytest_llmbench.core.recipes import Recipe
from pytest_llmbench.workloads import machine, matmul
from pytest_llmbench.workloads.context import RankContext
from pytest_llmbench.workloads.rendezvous import process_group, ranks_on_this_machine
from pytest_llmbench.workloads.steplog import StepLog
from pytest_llmbench.workloads.tokens import batch, open_tokens

DTYPE = {"fp32": torch.float32, "bf16": torch.bfloat16}
Batch = tuple[torch.Tensor, torch.Tensor]


@contextmanager
def group(context: RankContext, recipe: Recipe) -> Iterator[torch.device]:
    """Join the ranks, on their devices and with their share of the cores, as our engines do."""
    with process_group(context, recipe.deadlines.meeting_s) as device:
        neighbours = ranks_on_this_machine() if device.type == "cpu" else context.ranks_per_node
        torch.set_num_threads(machine.cpu_threads(neighbours))
        yield device


def batches(recipe: Recipe, copy: int, copies: int, device: torch.device) -> list[list[Batch]]:
    """The micro batches of every step of one copy of the model: the very sequences that our engines train it on.

    They are on the device before the first step, so that no alternative ever waits for its data.
    """
    data, size = open_tokens(recipe), recipe.micro_batch_size
    share = recipe.samples_per_step // copies
    firsts = [step * recipe.samples_per_step + copy * share for step in range(recipe.steps)]
    return [[batch(data, first + start, size, device) for start in range(0, share, size)] for first in firsts]


def learning_rate(recipe: Recipe, step: int) -> float:
    """Rate of a 1-based step: linear up to the peak at `warmup_steps`, linear down to a tenth at the end."""
    warm_up, peak = recipe.optimizer.warmup_steps, recipe.optimizer.learning_rate
    if step <= warm_up:
        return peak * step / warm_up
    return peak * (1 - 0.9 * (step - warm_up) / (recipe.steps - warm_up))


@dataclass(slots=True)
class _Pending:
    """A step that the device may still be at."""

    numbers: torch.Tensor
    event: torch.cuda.Event | None


class Steps:
    """Writes a step down while the device is busy with the next one: a step lasts from one end to the next.

    Args:
        log: this rank's.
        device: where it trains.
        samples: sequences that this rank counts in a step.
        tokens: the same in tokens.
    """

    def __init__(self, log: StepLog, device: torch.device, *, samples: int, tokens: int) -> None:
        self._log, self._device = log, device
        self._samples, self._tokens = samples, tokens
        self._pending: _Pending | None = None
        self._ended = 0.0
        self._asked = 0

    def start(self, recipe: Recipe) -> None:
        """Measure the matrix-product rate, as our engines do, and start the clock of step 1."""
        self._log.phase(0, "matmul")
        self._log.matmul(matmul.measure(self._device, DTYPE[recipe.precision]))
        dist.barrier()
        self._ended = time.perf_counter()
        self._log.phase(1, "forward")

    def done(self, losses: Sequence[torch.Tensor], norm: torch.Tensor | float) -> None:
        """Take note of a step that has been asked for: the losses of its micro batches, its gradient norm."""
        loss = torch.stack([each.detach().float() for each in losses]).mean()
        numbers = torch.stack([loss, torch.as_tensor(norm, dtype=torch.float32, device=loss.device)])
        event = None
        if self._device.type == "cuda":
            host = torch.empty(2, pin_memory=True)
            numbers = host.copy_(numbers, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        before, self._pending = self._pending, _Pending(numbers, event)
        self._asked += 1
        self._log.phase(self._asked + 1, "forward")
        self._write(before)

    def finish(self) -> None:
        """Write the last step."""
        self._write(self._pending)

    def _write(self, step: _Pending | None) -> None:
        if step is None:
            return
        if step.event is not None:
            step.event.synchronize()
        started, self._ended = self._ended, time.perf_counter()
        loss, norm = step.numbers.tolist()
        self._log.step(
            seconds=self._ended - started,
            tokens=self._tokens,
            samples=self._samples,
            loss=loss,
            grad_norm=norm,
            peak_memory_bytes=machine.peak_memory_bytes(self._device),
        )
