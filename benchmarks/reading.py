"""How fast a long log is read that is mostly noise, by each dialect, and how much memory that takes.

    .venv/bin/python benchmarks/reading.py [MB] [dialect ...]

The log is made in a temporary folder: lines as NCCL prints them, and a step of the framework after each 1000 of them.
The speed is by the time of the processor, so that whatever else the machine does hits it little.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from pytest_llmbench.readers.items import Needles
from pytest_llmbench.readers.log import read_log

_NOISE = "h100-{0:03}:{1}:{2} [{3}] NCCL INFO Channel {4:02}/16 : {3}[{3}] -> {5}[{5}] via P2P/CUMEM/read\n"


def _megatron_lm(step: int) -> str:
    return (
        f" iteration {step:8}/ 1000000 | consumed samples: {8 * step:12} | elapsed time per iteration (ms): 100.0 | "
        "global batch size:     8 | lm loss: 5.000000E+00 | number of nan iterations:   0 |\n"
    )


def _metaseq(step: int) -> str:
    said = {"num_updates": str(step), "loss": "5", "wps": "1000", "ups": "1", "wpb": "1000", "bsz": "8"}
    return f"2026-11-21 02:58:47 | INFO | train_inner | {json.dumps(said)}\n"


def _nemo(step: int) -> str:
    return (
        f"Training epoch 0, iteration {step - 1}/999999 | global_batch_size: 8 | global_step: {step - 1} | "
        "reduced_train_loss: 5.0 | train_step_timing in s: 0.1\n"
    )


def _deepspeed_chat(step: int) -> str:
    return f"Epoch: 0, Step: {step - 1}, Rank: 0, loss = 5.0\n"


DIALECTS: dict[str, Callable[[int], str]] = {
    "megatron_lm": _megatron_lm,
    "metaseq": _metaseq,
    "nemo": _nemo,
    "deepspeed_chat": _deepspeed_chat,
}


def write(path: Path, megabytes: int, line: Callable[[int], str]) -> int:
    """Write a log; return how many steps it has."""
    noise = "".join(
        _NOISE.format(number % 128, 4000 + number % 8, 9000 + number, number % 8, number % 16, (number + 1) % 8)
        for number in range(1000)
    )
    steps = 0
    with path.open("w") as log:
        while log.tell() < megabytes * 1_000_000:
            steps += 1
            log.write(noise + line(steps))
    return steps


def steps_in(path: Path, name: str) -> int:
    """Read a log; return how many steps it has."""
    module: Any = import_module(f"pytest_llmbench.engines.{name}.log")
    parse = module.reader() if hasattr(module, "reader") else module.parse
    return len(read_log([path], parse, needles=Needles(module.NEEDLES)).steps)


def measure(path: Path, name: str, steps: int) -> tuple[float, float]:
    """Return MB per second of the processor's time, and the most memory in MB that Python had at once."""
    begun = time.process_time()
    read = steps_in(path, name)
    seconds = time.process_time() - begun
    if read != steps:
        raise SystemExit(f"{name}: read {read} of {steps} steps")
    tracemalloc.start()
    steps_in(path, name)
    memory = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return path.stat().st_size / 1e6 / seconds, memory / 1e6


def main() -> None:
    """Print a row for each dialect."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print(f"{'dialect':16} {'MB':>6} {'steps':>7} {'MB/s':>6} {'memory MB':>10}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.out"
        for name in sys.argv[2:] or DIALECTS:
            steps = write(path, megabytes, DIALECTS[name])
            speed, memory = measure(path, name, steps)
            print(f"{name:16} {path.stat().st_size / 1e6:6.0f} {steps:7} {speed:6.0f} {memory:10.1f}")


if __name__ == "__main__":
    main()
