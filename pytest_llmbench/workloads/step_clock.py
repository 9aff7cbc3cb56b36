"""When each step of a training ends, written down without the device ever waiting for its host."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from pytest_llmbench.workloads.machine import peak_memory_bytes
from pytest_llmbench.workloads.steplog import StepLog


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """A step that the host has asked for, and that a GPU may still be at.

    Attributes:
        numbers: loss and norm, [2] in the host's memory, there when `event` has happened.
    """

    numbers: torch.Tensor
    event: torch.cuda.Event | None


class StepClock:
    """Logs the steps of a rank.

    A step lasts from the end of the one before to its own, so that the seconds of all steps add up to the wall clock of
    the loop; writing the log is part of the next step. A GPU's step is waited for when the next one has been asked for:
    would the host wait first, the GPU would idle at every end until its next work is there.

    Args:
        log: of this rank.
        device: where it trains.
        samples: sequences that this rank counts in a step.
        tokens: the same in tokens.
    """

    def __init__(self, log: StepLog, device: torch.device, *, samples: int, tokens: int) -> None:
        self._log, self._device = log, device
        self._samples, self._tokens = samples, tokens
        self._asked: _Asked | None = None
        self._ended = 0.0

    def start(self) -> None:
        """Begin step 1, when all ranks are there."""
        dist.barrier()
        self._ended = time.perf_counter()

    def step(self, loss: torch.Tensor, grad_norm: torch.Tensor | float) -> None:
        """Take note of a step, all of which has been asked for.

        Args:
            loss: a scalar on the device, as `StepLog.step` has it.
            grad_norm: the same.
        """
        before, self._asked = self._asked, _asked(loss, grad_norm)
        self._write(before)
        if self._asked.event is None:
            self.finish()

    def finish(self) -> None:
        """Wait for the last step."""
        last, self._asked = self._asked, None
        self._write(last)

    def _write(self, step: _Asked | None) -> None:
        if step is None:
            return
        if step.event is not None:
            step.event.synchronize()
        started, self._ended = self._ended, time.perf_counter()
        loss, grad_norm = step.numbers.tolist()
        self._log.step(
            seconds=self._ended - started,
            tokens=self._tokens,
            samples=self._samples,
            loss=loss,
            grad_norm=grad_norm,
            peak_memory_bytes=peak_memory_bytes(self._device),
        )


def _asked(loss: torch.Tensor, grad_norm: torch.Tensor | float) -> _Asked:
    numbers = torch.stack([loss.float(), torch.as_tensor(grad_norm, dtype=torch.float32, device=loss.device)])
    if loss.device.type == "cpu":
        return _Asked(numbers=numbers, event=None)
    host = torch.empty(2, pin_memory=True)
    host.copy_(numbers, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return _Asked(numbers=host, event=event)
