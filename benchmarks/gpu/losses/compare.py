"""The losses of the engines on GPUs against a plain fp32 decoder on the CPU, from the same weights and tokens.

    python benchmarks/gpu/losses/compare.py --gpus 2 --record losses.json

Every layout of `tests/support/training/same_loss.py` that has the GPUs it needs is trained for 20 steps, in fp32 (no
TF32) and bf16, the engines beside one another; an engine that is not installed is left out, and named. The table has
the largest relative difference of loss and gradient norm over the first 5 steps, because roundings grow from step to
step; the record has that of all too. Status 1: one is beyond its bound, or a training failed. `--smoke` rehearses on
CPUs with the tiny shape of the tests.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(CHECKOUT))  # a file that is started has only its own folder on the path

from pytest_llmbench.core.schema import merge  # noqa: E402 - see above
from pytest_llmbench.readers.steps.step_log import read_steps  # noqa: E402
from tests.support.training.plain_decoder import Point  # noqa: E402
from tests.support.training.same_loss import (  # noqa: E402
    ENGINES,
    LAYOUTS,
    ON_GPUS,
    SMALL,
    Difference,
    Layout,
    difference,
    logged,
    reference,
    task,
)

SHAPE = merge(
    SMALL,
    {
        "model": {"layers": 4, "hidden_size": 256, "attention_heads": 4, "vocab_size": 2050},
        "sequence_length": 256,
        "global_batch_size": 8,
        "micro_batch_size": 2,
        "optimizer": {"learning_rate": 2e-3, "clip_grad_norm": 2.0},
        "steps": 20,
        "deadlines": {"startup_s": 300},
    },
)
JUDGED = 5
# Set after the measurement; each of the mistakes of `test_same_loss` is beyond that of fp32 (docs/measurements).
BOUNDS = {"fp32": Difference(loss=5e-5, norm=5e-4), "bf16": Difference(loss=1e-3, norm=5e-3)}
NEEDS = {"torch": "torch", "megatron_core": "megatron", "deepspeed": "deepspeed"}
# No library multiplies in TF32, whatever a framework lets it do.
ENVIRONMENT = {"NVIDIA_TF32_OVERRIDE": "0", "OMP_NUM_THREADS": "1"}


def start(folder: Path, chosen: Sequence[Layout], options: argparse.Namespace) -> list[subprocess.Popen[bytes]]:
    """Start the ranks of one engine."""
    folder.mkdir()
    told = task(folder, options.shape, chosen, options.device)
    (folder / "task.json").write_text(json.dumps(told))
    return [_rank(folder, rank, told["ranks_per_node"]) for rank in range(told["ranks_per_node"])]


def _rank(folder: Path, rank: int, ranks: int) -> subprocess.Popen[bytes]:
    place = {
        "SUBMITIT_EXECUTOR": "local",
        "SUBMITIT_LOCAL_GLOBALID": str(rank),
        "SUBMITIT_LOCAL_LOCALID": str(rank),
        "SUBMITIT_LOCAL_NTASKS": str(ranks),
        "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
        "PYTHONPATH": os.pathsep.join([str(folder), str(CHECKOUT), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-m", "pytest_llmbench.workloads.rank.main", str(folder)]
    with (folder / f"output-{rank}").open("wb") as output:
        return subprocess.Popen(
            command, env={**os.environ, **ENVIRONMENT, **place}, stdout=output, stderr=subprocess.STDOUT
        )


def wait(ranks: Sequence[subprocess.Popen[bytes]], deadline: float) -> bool:
    """Wait for ranks; when one fails, or it is late by the monotonic clock, end the others, which would wait for it.

    Returns:
        Whether they ended in time.
    """
    in_time = True
    while any(process.poll() is None for process in ranks):
        in_time = time.monotonic() <= deadline
        if not in_time or any(process.poll() for process in ranks):
            for process in ranks:
                process.kill()
        time.sleep(0.1)
    return in_time


def rows(
    folder: Path, chosen: Sequence[Layout], options: argparse.Namespace, *, in_time: bool
) -> Iterator[dict[str, Any]]:
    """Compare every layout of one engine, whose ranks have ended, or were ended when the time was up."""
    expected: list[Point] = []
    for layout in chosen:
        recipe = layout.recipe(options.shape)
        row = {"engine": layout.engine, "layout": layout.name, "ranks": layout.ranks, "precision": layout.precision}
        try:
            points = logged(folder, layout)
            expected = expected or reference(folder, recipe)
            found, of_all = difference(points[:JUDGED], expected[:JUDGED]), difference(points, expected)
            bound = BOUNDS[layout.precision]
        except (OSError, ValueError) as error:
            why = "" if in_time else f"ended after --timeout {options.timeout:g} s: "
            yield {**row, "failed": f"{why}{error}: {_last_words(folder)}"}
            continue
        yield {
            **row, "within": found.within(bound), "difference": found._asdict(), "bound": bound._asdict(),
            "difference_of_all_steps": of_all._asdict(),
            "measured": points, "expected": expected, "recipe": recipe.model_dump(mode="json"),
            "ranks_told": [info.model_dump(mode="json") for info in read_steps(folder / layout.key).ranks],
        }  # fmt: skip


def _last_words(folder: Path) -> str:
    texts = (path.read_text(errors="replace").strip().splitlines() for path in sorted(folder.glob("output-*")))
    return " | ".join(lines[-1] for lines in texts if lines)


def left_out(options: argparse.Namespace) -> list[str]:
    """What cannot be trained here, and why."""
    engines = [f"{engine}: not installed" for engine in ENGINES if find_spec(NEEDS[engine]) is None]
    return engines + [
        f"{layout.key}: needs {layout.ranks} GPUs" for layout in _every(options) if layout.ranks > options.gpus
    ]


def _every(options: argparse.Namespace) -> list[Layout]:
    return [*LAYOUTS, *(() if options.smoke else ON_GPUS)]


def compare(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Train all that can be trained here; yields a row for each layout, those of an engine when it has ended."""
    chosen = {
        engine: found
        for engine in ENGINES
        if find_spec(NEEDS[engine]) is not None
        and (
            found := [layout for layout in _every(options) if layout.engine == engine and layout.ranks <= options.gpus]
        )
    }
    with tempfile.TemporaryDirectory() as name, ExitStack() as started:
        folders = {engine: Path(name) / engine for engine in chosen}
        processes = {engine: start(folders[engine], chosen[engine], options) for engine in chosen}
        for process in (process for each in processes.values() for process in each):
            started.enter_context(process)
            started.callback(process.kill)
        deadline = time.monotonic() + options.timeout
        for engine, each in processes.items():
            in_time = wait(each, deadline)
            yield from rows(folders[engine], chosen[engine], options, in_time=in_time)


def told(row: Mapping[str, Any]) -> str:
    """A row for people."""
    name = f"{row['engine']:15}{row['layout']:24}{row['ranks']:>2}  {row['precision']:6}"
    if "failed" in row:
        return f"{name}FAILED: {row['failed']}"
    numbers = "".join(f"{row['difference'][key]:10.1e} <= {row['bound'][key]:.0e}" for key in ("loss", "norm"))
    return f"{name}{numbers}  {'agrees' if row['within'] else 'DIFFERS'}"


def main() -> None:
    """Compare, print the table, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument(
        "--timeout", type=float, default=300.0, help="for all engines, which train side by side, seconds"
    )
    parser.add_argument("--record", type=Path, default=Path("losses.json"))
    options = parser.parse_args()
    options.device, options.shape = ("cpu", SMALL) if options.smoke else ("cuda", SHAPE)
    started, found = time.monotonic(), list[dict[str, Any]]()
    record = {
        "what": "losses of engines against a plain fp32 decoder", "device": options.device, "gpus": options.gpus,
        "environment": ENVIRONMENT, "left_out": left_out(options), "rows": found,
    }  # fmt: skip
    for line in left_out(options):
        print("left out:", line)
    for row in compare(options):
        found.append(row)
        print(told(row), flush=True)
        seconds = {"seconds": time.monotonic() - started}
        options.record.write_text(json.dumps(record | seconds, indent=1), encoding="utf-8")
    wrong = sum(not row.get("within", False) for row in found)
    print(f"{len(found) - wrong} of {len(found)} agree with the reference, after {time.monotonic() - started:.0f} s")
    sys.exit(1 if wrong or not found else 0)


if __name__ == "__main__":
    main()
