"""The entry of a rank whose steps are profiled: it calls another entry with a step log that looks at the steps.

Only `profile_step.py` starts it. What it needs is in the environment: `LLMBENCH_PROFILE` is the entry and the folder
of the trace, `package.module:function=FOLDER`.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from pathlib import Path
from typing import Any

import torch

from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.steplog import StepLog
from pytest_llmbench.workloads.training import matmul

VARIABLE = "LLMBENCH_PROFILE"
FACTS = "facts.json"
# Compilation and the choice of kernels are over by then.
AFTER, STEPS = 8, 3
_COPY_BYTES = 1 << 29


def train(context: RankContext, log: StepLog) -> None:
    """Run the entry that the environment names; rank 0 profiles three steps when it has logged step 8."""
    entry, _, folder = os.environ[VARIABLE].partition("=")
    module, _, function = entry.partition(":")
    inner = getattr(importlib.import_module(module), function)
    if context.rank != 0:
        inner(context, log)
        return
    watched = _Watched(log, Path(folder), context.device)
    inner(context, watched)
    watched.finish()


class _Watched:
    """A step log that starts and stops the profiler between two steps."""

    def __init__(self, log: StepLog, folder: Path, device: str) -> None:
        self._log, self._folder, self._device = log, folder, torch.device(device)
        self._steps = 0
        self._profile: Any = None
        self._facts: dict[str, float] = {}
        self._started = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def matmul(self, flops_per_s: float) -> None:
        """Pass it on, and keep it."""
        self._facts["flops_per_s"] = flops_per_s
        self._log.matmul(flops_per_s)

    def step(self, **values: Any) -> None:
        """Pass it on, and look at the time."""
        self._log.step(**values)
        self._steps += 1
        if self._steps == AFTER:
            self._start()
        elif self._steps == AFTER + STEPS:
            self._stop()

    def finish(self) -> None:
        """Measure what the floors need, and write it beside the trace."""
        if self._device.type == "cuda":
            self._facts["bytes_per_s"] = _copy_rate(self._device)
        (self._folder / FACTS).write_text(json.dumps(self._facts), encoding="utf-8")

    def _start(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        matmul.synchronize(self._device)
        self._profile = torch.profiler.profile(activities=activities, record_shapes=True)
        self._profile.start()
        self._started = time.perf_counter()

    def _stop(self) -> None:
        matmul.synchronize(self._device)
        self._facts["seconds"] = time.perf_counter() - self._started
        self._profile.stop()
        self._profile.export_chrome_trace(str(self._folder / "trace.json.gz"))


def _copy_rate(device: torch.device) -> float:
    """Bytes a second that a copy on the GPU reads and writes, median of blocks."""
    torch.cuda.empty_cache()  # a training may have left no room
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    blocks = sorted(matmul.rates(lambda: target.copy_(source), device, seconds=0.5, start=lambda: None))
    return 2.0 * _COPY_BYTES * blocks[len(blocks) // 2]
