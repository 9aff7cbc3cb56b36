"""The whole path on the GPUs of one machine: a real Slurm, the validation suite, a training, and what they leave.

    python benchmarks/gpu/whole_path/walk.py FOLDER [--slurm slurm.tar.xz] [--stages up,local] [--minutes 8.5]
    python benchmarks/gpu/whole_path/walk.py FOLDER --rehearse 4     4 GPUs that are none, and everything on the CPU

Each GPU is a node of Slurm (n1.., partition `split`), and all of them are one more (g1, `whole`). The stages:

    up          Slurm is brought up, by tools/slurm/up.sh
    local       suites/validation on this machine, without Slurm
    split       both suites on n1.., over TCP sockets
    one_host    the same, where NCCL is told that the nodes are one host: over NVLink
    whole       both suites on g1

A stage has a share of the minutes, and what those before it have left; one that fails or is late ends no other.
FOLDER gets an archive of each (what it printed, junit.xml, records, logs) and summary.txt. Exit status: 0 when every
stage ran to its end, whatever its verdicts; 1 when one did not; 2 when something that they need is missing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))  # run as a script, this file is in no package

from benchmarks.gpu.stages import Stage, environment, ran, shares
from benchmarks.gpu.whole_path.evidence import counted, keep_logs, pack, ways_of_nccl
from benchmarks.gpu.whole_path.host import (
    CHECKOUT,
    Machine,
    look,
    problems,
    unpacked,
    write_systems,
)

UP, DOWN = CHECKOUT / "tools/slurm/up.sh", CHECKOUT / "tools/slurm/down.sh"
SHARES = {"up": 0.04, "local": 0.28, "split": 0.28, "one_host": 0.18, "whole": 0.22}


def main() -> int:
    """Run the stages."""
    options = _options()
    machine = look(options.rehearse)
    lacking = problems(machine, options.slurm)
    if lacking:
        print("\n".join(["cannot start:", *(f"- {problem}" for problem in lacking)]), file=sys.stderr)
        return 2
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="whole-path-", ignore_cleanup_errors=True) as name:
        work = Path(name)
        slurm = {"LLMBENCH_SLURM": f"{work}/slurm"}
        if options.slurm:
            slurm["SLURM_PREFIX"] = str(unpacked(options.slurm, work))
        systems = write_systems(work / "systems", machine)
        # With one GPU there is nothing between nodes, and `split` is `one_host`.
        stages = [stage for stage in options.stages if stage != "one_host" or machine.gpus > 1]
        commands = {stage: _command(stage, machine, systems, work, options) for stage in stages}
        try:
            return run_all(commands, slurm, work, options)
        finally:
            subprocess.run([str(DOWN)], env={**os.environ, **slurm, "WIPE": "1"}, check=False, capture_output=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("folder", type=Path, help="where archives and summary go")
    parser.add_argument("--slurm", type=Path, help="folder or archive of tools/slurm/bundle.sh; else this machine's")
    parser.add_argument(
        "--stages", type=lambda text: text.split(","), default=list(SHARES), help="by default all; up is always one"
    )
    parser.add_argument("--minutes", type=float, default=8.5, help="for all stages together")
    parser.add_argument("--select", default="opt125m", help="which recipes, as -k has it")
    parser.add_argument("--gate", default="off", help="on: what a check finds keeps the training away")
    parser.add_argument("--rehearse", type=int, metavar="N", help="N GPUs that are none; scale smoke, on the CPU")
    options = parser.parse_args()
    if strangers := set(options.stages) - set(SHARES):
        parser.error(f"no stage {', '.join(sorted(strangers))}; there are {', '.join(SHARES)}")
    if {*options.stages} - {"local"}:
        options.stages = ["up", *(stage for stage in options.stages if stage != "up")]
    return options


def _command(
    stage: str, machine: Machine, systems: Mapping[str, Path], work: Path, options: argparse.Namespace
) -> list[str]:
    if stage == "up":
        return ["env", *(f"{name}={value}" for name, value in machine.nodes.items()), str(UP)]
    training = ["suites/training", "-k", options.select, f"--llmbench-gate={options.gate}"] if stage != "local" else []
    nodes = {"local": [], "whole": ["--nodes=1"]}.get(stage, [f"--nodes={machine.gpus}"])
    # In a shell that knows our Slurm, where there is one.
    return [
        "bash", "-c", '[ ! -e "$0" ] || . "$0"; exec "$@"', f"{work}/slurm/env.sh",
        sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "suites/validation", *training,
        f"--system={systems[stage]}", f"--cluster={'local' if stage == 'local' else 'slurm'}", *nodes,
        f"--scale={'smoke' if machine.rehearsed else 'full'}",
        f"--junitxml={work}/{stage}/junit.xml", f"--llmbench-run-dir={work}/{stage}/reports",
    ]  # fmt: skip


def run_all(
    commands: Mapping[str, Sequence[str]], slurm: Mapping[str, str], work: Path, options: argparse.Namespace
) -> int:
    """Run the stages one after the other, pack what each leaves, and say how it went; 1 where one broke."""
    seconds = shares(SHARES, commands, 60 * options.minutes)
    stages = [_stage(name, seconds[name], command) for name, command in commands.items()]
    summary = options.folder / "summary.txt"
    summary.write_text("", encoding="utf-8")
    broken = False
    for ended in ran(stages, work, environment(**slurm)):
        folder = work / ended.name
        broken |= not ended.good
        told = "\n    ".join([str(ended), *counted(folder / "junit.xml"), *ways_of_nccl(folder / "nccl")])
        print(told, flush=True)
        with summary.open("a", encoding="utf-8") as text:
            text.write(f"{told}\n")
        pack(folder, options.folder / f"{ended.name}.tar.gz")
    if "up" in commands:
        keep_logs(work / "slurm", work / "up")
        pack(work / "up", options.folder / "up.tar.gz")
    return int(broken)


def _stage(name: str, seconds: float, command: Sequence[str]) -> Stage:
    # pytest ends with 0 or 1 when all tests ran.
    return Stage(name=name, seconds=seconds, command=lambda _: command, good=(0,) if name == "up" else (0, 1))


if __name__ == "__main__":
    sys.exit(main())
