"""How fast a long log is read that is mostly noise, by each engine, and how much memory that takes.

    .venv/bin/python benchmarks/reading.py [MB] [engine ...]

The log is made in a temporary folder: 1000 lines of noise and a step of the framework, again and again, and at its end
the proof that the run did all its work. The noise is what NCCL prints of its channels, which is most of a large run's
log, or a mixture of what several programs print. The same log without its proof is that of a run that failed.
The speed is by the time of the processor, so that whatever else the machine does hits it little.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

from pytest_llmbench.engines.base import get_engine
from pytest_llmbench.engines.external import External
from pytest_llmbench.readers.log import read_log

_NCCL = "h100-{0:03}:{1}:{2} [{3}] NCCL INFO Channel {4:02}/16 : {3}[{3}] -> {5}[{5}] via P2P/CUMEM/read\n"
NOISES: dict[str, tuple[str, ...]] = {
    "NCCL": (_NCCL,),
    "mixed": (
        _NCCL,
        "h100-{0:03}:{1}:{2} [{3}] NCCL INFO comm 0x55d1{1} rank {3} nranks 128 busId 5d000 - Init COMPLETE\n",
        "[rank{3}]:[W1121 02:46:19.{1} socket.cpp:{2}] [c10d] The client socket failed to connect to h100-{0:03}.\n",
        "/usr/lib/python3.11/site-packages/x/functional.py:{1}: UserWarning: please pass `use_reentrant` explicitly.\n",
        "Loading checkpoint shards: {3}{4}%|######    | {3}/{1} [00:{4:02}<00:31, 1.27it/s]\n",
        "[2026-11-21 02:46:{4:02},{1}] [INFO] [utils.py:{2}:usage] MA {3}.32 GB   Max_MA {3}.32 GB   CA {5}.5 GB\n",
        "wandb: WARNING Step must only increase in log calls. Step {1} < {2}; dropping 'x': {3}, \"y\": {5}.\n",
    ),
}


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


# How each writes a step, and what proves that it did all.
ENGINES: dict[str, tuple[Callable[[int], str], str]] = {
    "megatron_lm": (_megatron_lm, "[after training is done] datetime: 2026-11-21 02:46:19.747045 \n"),
    "metaseq": (_metaseq, "2026-11-21 02:58:48 | INFO | metaseq.cli.train | done training in 0.5 seconds\n"),
    "nemo_torchrun": (_nemo, "`Trainer.fit` stopped: `max_steps=4` reached.\n"),
    "deepspeed_chat": (_deepspeed_chat, "Throughput: 72.9201 samples/sec\n"),
}


def write(path: Path, megabytes: int, line: Callable[[int], str], noises: Sequence[str]) -> int:
    """Write a log without its proof; return how many steps it has."""
    noise = "".join(
        noises[number % len(noises)].format(
            number % 128, 4000 + number % 8, 9000 + number, number % 8, number % 16, (number + 1) % 8
        )
        for number in range(1000)
    )
    steps = 0
    with path.open("w") as log:
        while log.tell() < megabytes * 1_000_000:
            steps += 1
            log.write(noise + line(steps))
    return steps


def read(path: Path, name: str) -> tuple[int, bool]:
    """Read a log; return how many steps it has, and whether it proves that the run did all its work."""
    engine = get_engine(name)
    if not isinstance(engine, External):
        raise SystemExit(f"engine {name} reads no framework's log")
    reader = engine.log_reader()
    series = read_log([path], reader.dialect(), reader.claims, reader.needles)
    return len(series.steps), series.completed is not None


def measure(path: Path, name: str, due: tuple[int, bool]) -> tuple[float, float]:
    """Return MB per second of the processor's time, and the most memory in MB that Python had at once."""
    begun = time.process_time()
    found = read(path, name)
    seconds = time.process_time() - begun
    if found != due:
        raise SystemExit(f"{name}: read {found}, not {due}")
    tracemalloc.start()
    read(path, name)
    memory = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return path.stat().st_size / 1e6 / seconds, memory / 1e6


def main() -> None:
    """Print a row for each engine and each noise."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print(f"{'engine':16} {'noise':6} {'MB':>6} {'steps':>7} {'MB/s':>6} {'failed MB/s':>12} {'memory MB':>10}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.out"
        for name, (noise, lines) in product(sys.argv[2:] or ENGINES, NOISES.items()):
            line, proof = ENGINES[name]
            steps = write(path, megabytes, line, lines)
            failed, _ = measure(path, name, (steps, False))
            with path.open("a") as log:
                log.write(proof)
            speed, memory = measure(path, name, (steps, True))
            size = path.stat().st_size / 1e6
            print(f"{name:16} {noise:6} {size:6.0f} {steps:7} {speed:6.0f} {failed:12.0f} {memory:10.1f}")


if __name__ == "__main__":
    main()
