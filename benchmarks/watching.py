"""The cost of the step log for a training, and of the session that watches it.

    .venv/bin/python benchmarks/watching.py [rounds]

One CPU rank trains with the step log that every rank writes, which leaves out every second step. The program prints the
medians of CPU time and wall clock of both kinds of steps: CPU time tells more on a machine that others use. It also
prints how long the log's own calls take in a step of eight micro batches, and how long one look of the session takes,
which looks twice a second.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.recipe.recipes import load_recipes
from pytest_llmbench.core.wire.step_events import Phase
from pytest_llmbench.session.watch import Watch
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.steplog import StepLog

STEPS, SKIP, MICRO_BATCHES, CALLS = 221, 20, 8, 3000
RECIPE: dict[str, Any] = {
    "name": "watched", "engine": "torch", "nodes": 1, "gpus_per_node": 0,
    "model": {"layers": 2, "hidden_size": 128, "attention_heads": 4, "vocab_size": 512, "dropout": 0.0},
    "sequence_length": 64, "global_batch_size": 8, "micro_batch_size": 1, "precision": "fp32", "compile": False,
    "optimizer": {"learning_rate": 0.001, "warmup_steps": 2}, "steps": STEPS, "warm_up": {"steps": SKIP},
    "time_limit": "00:05:00",
}  # fmt: skip


class EverySecond(StepLog):
    """Writes every second step and its phases, and notes when each step ended."""

    def __init__(self, context: RankContext) -> None:
        super().__init__(context)
        self.ends: list[tuple[float, float]] = []

    def step(self, **values: Any) -> None:
        """Write the step, or leave it out."""
        if len(self.ends) % 2:
            super().step(**values)
        self.ends.append((time.perf_counter(), time.process_time()))

    def phase(self, step: int, name: Phase, micro_batch: int = 0) -> None:
        """Write the phase, if its step is written."""
        if step % 2 == 0:
            super().phase(step // 2, name, micro_batch)  # the log counts the steps that are written


def context_of(folder: Path) -> RankContext:
    """The only rank of a run."""
    return RankContext(
        rank=0, world_size=1, local_rank=0, ranks_per_node=1, nodes=1, folder=folder, config=RECIPE,
        device="cpu",
    )  # fmt: skip


def train(folder: Path) -> None:
    """Train in this process; print wall clock and CPU time per step, of steps that are written and of the others."""
    from pytest_llmbench.engines.torch.ranks import run  # noqa: PLC0415 - PyTorch takes seconds

    # On one core, so with one thread: several wait for each other where the machine has other work.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with EverySecond(context_of(folder)) as log:
        log.start("cpu", {})
        run.train(context_of(folder), log)
    steps = [[b - a for a, b in zip(one, two, strict=True)] for one, two in pairwise(log.ends)][SKIP:]
    # The first of these is the one after the step with the number SKIP + 1.
    with_log, without = (list(zip(*steps[first::2], strict=True)) for first in (0, 1))
    print(json.dumps([[statistics.median(each) for each in kind] for kind in (with_log, without)]))


def calls(folder: Path, steps: int = CALLS) -> float:
    """CPU time of the log's calls in one step, seconds."""
    with StepLog(context_of(folder)) as log:
        began = time.process_time()
        for step in range(1, steps + 1):
            for micro_batch in range(1, MICRO_BATCHES + 1):
                for phase in ("data", "forward", "backward"):
                    log.phase(step, phase, micro_batch)
            log.phase(step, "sync", MICRO_BATCHES)
            log.phase(step, "optimizer")
            log.step(seconds=0.1, tokens=1024, samples=16, loss=3.2, grad_norm=1.0, peak_memory_bytes=2**30)
        return (time.process_time() - began) / steps


def look(folder: Path) -> float:
    """CPU time of one look of the session at a log of so many steps, seconds."""
    watch = Watch(load_recipes([shipped("recipes")])["opt125m"], folder, 60)
    taken = []
    for _ in range(5):
        time.sleep(0.51)  # it looks no more often
        began = time.process_time()
        watch.look()
        taken.append(time.process_time() - began)
    return statistics.median(taken)


def main() -> None:
    """Print the medians of both kinds of steps, their ratios, and what single calls take."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as name:
        told = []
        for number in range(rounds):
            (folder := Path(name) / str(number)).mkdir()
            child = [sys.executable, __file__, "train", str(folder)]
            done = subprocess.run(child, check=True, stdout=subprocess.PIPE, text=True)
            told.append(json.loads(done.stdout.splitlines()[-1]))
        (folder := Path(name) / "calls").mkdir()
        of_log, of_look = calls(folder), look(folder)
    for at, what in enumerate(("wall clock", "CPU time")):
        ratios = [with_log[at] / without[at] for with_log, without in told]
        both = [1e3 * statistics.median(run[kind][at] for run in told) for kind in (0, 1)]
        print(f"{what} per step: {both[0]:.3f} ms with the log, {both[1]:.3f} ms without")
        print(f"  ratio {statistics.median(ratios):.4f} ({min(ratios):.4f} to {max(ratios):.4f}, {rounds} runs)")
    print(f"the log's calls in a step of {MICRO_BATCHES} micro batches: {1e6 * of_log:.0f} µs of CPU time")
    print(f"one look of the session at a log of {CALLS} steps: {1e6 * of_look:.0f} µs of CPU time")


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(Path(sys.argv[2]))
    else:
        main()
