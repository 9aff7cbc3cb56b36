"""What a session costs besides the training itself, on this machine and, where one answers, on Slurm.

    .venv/bin/python benchmarks/overhead.py [rounds]

A tiny recipe is run as a test by pytest and, in turn, directly as `python -m pytest_llmbench.workloads.rank.main`
with one rank each; the difference of the two wall clocks is what allocating, watching and judging cost.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RECIPE: dict[str, Any] = {
    "engine": "torch",
    "nodes": 1,
    "gpus_per_node": 0,
    "model": {"layers": 1, "hidden_size": 32, "attention_heads": 2, "vocab_size": 128, "dropout": 0.0},
    "sequence_length": 32,
    "global_batch_size": 8,
    "micro_batch_size": 2,
    "precision": "fp32",
    "compile": False,
    "optimizer": {"learning_rate": 0.01, "warmup_steps": 2},
    "steps": 20,
    "warm_up": {"steps": 2},
    "time_limit": "00:05:00",
}
TEST = """
import pytest

@pytest.mark.recipe("tiny")
def test_tiny(run):
    assert run.throughput.value > 0
"""


def seconds(command: list[str], folder: Path) -> float:
    """Wall clock of one command."""
    started = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def bare(folder: Path) -> float:
    """The training alone, one rank, without pytest or an owner."""
    shutil.rmtree(folder / "bare", ignore_errors=True)
    (folder / "bare").mkdir()
    task = {
        "entry": "pytest_llmbench.engines.torch.ranks.run:train",
        "config": {**RECIPE, "name": "tiny"},
        "nodes": 1,
        "ranks_per_node": 1,
        "device": "cpu",
    }
    (folder / "bare" / "task.json").write_text(json.dumps(task))
    return seconds([sys.executable, "-m", "pytest_llmbench.workloads.rank.main", "bare"], folder)


def main() -> None:
    """Print the medians and what is left of them when the bare training is taken off."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    slurm = (
        shutil.which("scontrol") is not None
        and b" is UP" in subprocess.run(["scontrol", "ping"], capture_output=True, check=False).stdout
    )
    modes = {"local": ["--cluster", "local", "--system", "one.yaml"]}
    if slurm:
        modes["slurm, session allocation"] = ["--cluster", "slurm", "--nodes", "1"]
        modes["slurm, a job per run"] = ["--cluster", "slurm"]
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "recipes").mkdir()
        (folder / "recipes" / "tiny.yaml").write_text(json.dumps({"family": "tiny", "recipes": {"tiny": RECIPE}}))
        (folder / "one.yaml").write_text("{name: one, cluster: local, gpus_per_node: 0, cpu_ranks_per_node: 1}")
        (folder / "pytest.ini").write_text("[pytest]\nllmbench_recipes = recipes\nllmbench_require_verdict = no\n")
        (folder / "test_tiny.py").write_text(TEST)
        taken: dict[str, list[float]] = {"bare": [], **{mode: [] for mode in modes}}
        for _ in range(rounds):
            taken["bare"].append(bare(folder))
            for mode, options in modes.items():
                taken[mode].append(seconds([*pytest, *options], folder))
    base = statistics.median(taken["bare"])
    for mode, times in taken.items():
        middle = statistics.median(times)
        spread = f"min {min(times):.2f} max {max(times):.2f}"
        print(f"{mode:28} median {middle:.2f} s ({spread})  more than bare: {middle - base:+.2f} s")


if __name__ == "__main__":
    main()
