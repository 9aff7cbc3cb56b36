"""A stand-in for Megatron-LM: a program that prints again what a real run of it printed, and how a user runs it.

Its ranks are real processes, started by a real script, driver and launcher. What each prints, and when, is from a log
of our own (tests/data/logs), with its times shortened; a line `#exit 1` or the like there is done and not printed.
"""

import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import UserFolder

Edit = Callable[[list[str]], list[str]]
LOGS = Path(__file__).parents[1] / "data" / "logs"
# The recipe of the runs that wrote the logs; the README next to them has the commands.
RECIPE: dict[str, Any] = {
    "engine": "megatron_lm", "gpus_per_node": 0,
    "model": {"layers": 2, "hidden_size": 64, "attention_heads": 4, "vocab_size": 128}, "parallelism": {"tensor": 2},
    "sequence_length": 32, "global_batch_size": 8, "micro_batch_size": 2, "optimizer": {"learning_rate": 1.0e-3},
    "steps": 30, "warm_up": {"steps": 5},
}  # fmt: skip

_RANK = """
import os, re, signal, sys, time
from datetime import datetime, timedelta

# The first of them: srun cuts a line of 1 kB, and what another rank says next would stand behind it.
print("node:", os.environ.get("SLURMD_NODENAME"), "arguments:", *sys.argv[1:5], flush=True)
speed, began = float(os.environ["STANDIN_SPEED"]), None
with open(sys.argv[sys.argv.index("--recorded") + 1]) as log:
    lines = [line.rstrip("\\n").split(":", 1) for line in log]
for source, text in lines:
    stamp = re.search(r"\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d\\.\\d+", text)
    if stamp:
        at = datetime.fromisoformat(stamp[0])
        began = began or (at, time.monotonic(), datetime.now())
        since = (at - began[0]).total_seconds() / speed
        time.sleep(max(0.0, began[1] + since - time.monotonic()))
        # When the line was due, not when a busy machine came to print it: durations are of the same clock.
        text = text.replace(stamp[0], (began[2] + timedelta(seconds=since)).isoformat(" ", "microseconds"))
    if source != f"[default{os.environ['RANK']}]":
        continue
    if text.startswith("#exit "):
        sys.exit(int(text.split()[1]))
    elif text == "#hang":
        time.sleep(1000)
    elif text == "#deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        print(re.sub(r"(?<=\\(ms\\): )[\\d.]+", lambda ms: f"{float(ms[0]) / speed:.1f}", text), flush=True)
"""
# Stands in for torch.distributed.run, which takes seconds to start. Ranks have sessions of their own here, too.
_LAUNCHER = """
import os, signal, subprocess, sys, threading

given = dict(word.lstrip("-").split("=", 1) for word in sys.argv if word.startswith("--") and "=" in word)
script = next(index for index, word in enumerate(sys.argv) if word.endswith(".py") and index)
local, node = int(given["nproc_per_node"]), int(os.environ.get("SLURM_NODEID", 0))
size = local * int(given["nnodes"])

def copy(number, process):
    for line in process.stdout:
        sys.stdout.write(f"[default{number}]:{line}")
        sys.stdout.flush()

ranks = [
    subprocess.Popen(
        [sys.executable, *sys.argv[script:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "RANK": str(node * local + i), "WORLD_SIZE": str(size)}, start_new_session=True,
    )
    for i in range(local)
]
copies = [threading.Thread(target=copy, args=each) for each in enumerate(ranks)]
for each in copies:
    each.start()
for each in copies:
    each.join()
if any([rank.wait() for rank in ranks]):
    sys.exit("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ")
"""


@dataclass
class MegatronLM:
    """A user's folder with the stand-in as the environment of engine megatron_lm."""

    user: UserFolder

    def install(
        self, *, speed: float = 10.0, torchrun: bool = False, cluster: str = "local", **environment: Any
    ) -> None:
        """Write checkout and system file.

        Args:
            speed: how many times as fast as it was.
            torchrun: whether the ranks start under the real one.
            cluster: of the system.
            environment: further keys of its environment.
        """
        root = self.user.path / "megatron"
        (root / "torch" / "distributed").mkdir(parents=True, exist_ok=True)
        (root / "pretrain_gpt.py").write_text(_RANK)
        for name in ("", "distributed/"):
            (root / "torch" / name / "__init__.py").write_text("")
        (root / "torch" / "distributed" / "run.py").write_text(_LAUNCHER)
        env = {"STANDIN_SPEED": str(speed)}
        if not torchrun:
            env["PYTHONPATH"] = str(root)
        own = {"root": str(root), "python": sys.executable, **environment}
        own["env"] = {**env, **environment.get("env", {})}
        system = {
            "name": "here", "cluster": cluster, "gpus_per_node": 0, "cpu_ranks_per_node": 2,
            "environments": {"megatron_lm": own},
        }  # fmt: skip
        (self.user.path / "here.yaml").write_text(yaml.safe_dump(system))

    def recipe(
        self, name: str = "tiny", edit: Edit = lambda lines: lines, *, log: str = "megatron_lm_2_ranks.log",
        **changes: Any,
    ) -> None:  # fmt: skip
        """Write a recipe of its own file, that of the logs with changes, and the log that its runs print.

        Args:
            name: of the recipe.
            edit: changes the lines of the log.
            log: which of the logs.
            changes: of the recipe.
        """
        recorded = self.user.path / "megatron" / f"{name}.log"
        recorded.write_text("\n".join([*edit((LOGS / log).read_text().splitlines()), ""]))
        options = {"arguments": {"recorded": f"{{root}}/{name}.log"}}
        self.user.recipe(name, **{**RECIPE, "options": options, **changes})


def log_at_hand(user: UserFolder, name: str = "tiny", **changes: Any) -> Path:
    """Write a recipe, and the log of its run where `--llmbench-replay logs` finds it; returns that run's folder."""
    user.recipe(name, **{**RECIPE, **changes})
    folder = user.path / "logs" / name
    folder.mkdir(parents=True)
    shutil.copy(LOGS / "megatron_lm_2_ranks.log", folder / "run.log")
    (folder / "replay.yaml").write_text("ranks_per_node: 2\n")
    return folder


def iteration(lines: list[str], number: int) -> int:
    """The index of an iteration's line."""
    (index,) = [index for index, line in enumerate(lines) if re.search(rf"iteration +{number}/", line)]
    return index


def alive(folder: Path) -> list[str]:
    """The command lines of all processes that were started by a run in a folder, on this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"LLMBENCH_HOSTFILE={folder}" in (path / "environ").read_text(errors="replace"):
                found.append((path / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found
