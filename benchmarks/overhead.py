"""What sessions weigh besides their runs: wall clock, CPU time, and calls of Slurm's commands.

    .venv/bin/python -m benchmarks.overhead [--cases 100] [--rounds 5] [--only NAME ...] [--reframe PROGRAM]

Each case is a run on one node of an engine of its own (a framework whose program prints twenty lines), so that nearly
all of the time is ours. All ways take turns in each round, as whole processes, beside the least that Slurm takes:

- `floor`: `sbatch` once a case, and wait until the queue is empty
- `steps`: `srun` once a case into a held job, one after the other
- `jobs`: a session with a job a run
- `held`: a session in one held node
- `side`: as many runs in four held nodes, each recipe on each of them
- `one`: a session with a single case
- `reframe`: the same jobs by ReFrame, if its program is given, with its asynchronous policy
- `driver`: a session with a single case on this machine, without Slurm
- `rank`: the same of the tests' engine `unigram`, whose rank is a process of ours
- `collect`: `--collect-only` of a hundred times as many cases
- `plain`: a session with one plain test and nothing of ours, with and without the plugin

Without a Slurm that answers, only the last four are measured. Slurm's commands are counted by programs of the same
names in front of `PATH`; the CPU time is that of the process and of what it waited for, without Slurm's daemons and
jobs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECIPE: dict[str, Any] = {
    "engine": "twenty_lines",
    "nodes": 1,
    "gpus_per_node": 0,
    "model": {"layers": 1, "hidden_size": 32, "attention_heads": 2, "vocab_size": 128},
    "sequence_length": 32,
    "global_batch_size": 8,
    "micro_batch_size": 8,
    "optimizer": {"learning_rate": 0.01},
    "steps": 20,
    "time_limit": "00:05:00",
}
PROGRAM = "for step in {1..20}; do echo \"step $step 0.010 s loss $((400 / step))\"; done; echo 'all done'\n"
CONFTEST = """
import re

from pytest_llmbench.api import Command, Completed, External, LogReader, Script, StepLine

STEP = re.compile(r"step (\\d+) ([0-9.]+) s loss (\\d+)")


def parse(text):
    if match := STEP.fullmatch(text):
        yield StepLine(step=int(match[1]), seconds=float(match[2]), loss=float(match[3]), samples=8)
    elif text == "all done":
        yield Completed(text)


class TwentyLines(External):
    name = "twenty_lines"
    proof = "the line `all done`"
    reader = LogReader(name="twenty_lines", dialect=lambda: parse)

    def work(self, recipe, topology, place):
        return Script(commands=(Command(launcher="once", argv=("bash", f"{place.environment.root}/program.sh")),))


def pytest_llmbench_engines():
    return [TwentyLines()]
"""
TEST = """
import pytest

@pytest.mark.recipe(*(f"case{{number:05}}" for number in range({cases})))
def test_case(run):
    assert run.throughput.value > 0
"""
TEST_OF_A_RANK = """
import pytest

@pytest.mark.recipe("rank")
def test_rank(run):
    assert run.throughput.value > 0
"""
INSTALLED = Path(__file__).parents[1] / "tests" / "installed"
REFRAME_SITE = """
site_configuration = {
    "systems": [{
        "name": "two_cores", "hostnames": [".*"], "modules_system": "nomod",
        "partitions": [{
            "name": "all", "scheduler": "slurm", "launcher": "local", "environs": ["builtin"], "max_jobs": 1000,
        }],
    }],
    "environments": [{"name": "builtin"}],
}
"""
REFRAME_TESTS = """
import reframe as rfm
import reframe.utility.sanity as sn

@rfm.simple_test
class Case(rfm.RunOnlyRegressionTest):
    number = parameter(range({cases}))
    valid_systems, valid_prog_environs = ["*"], ["*"]
    executable, executable_opts, exclusive_access = "bash", ["{program}"], True

    @sanity_function
    def ends(self):
        return sn.assert_found("all done", self.stdout)
"""
# Without plugins of others that may be installed.
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:hypothesispytest", "-p", "no:anyio", "-p", "no:benchmark"]
COMMANDS = ("sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo", "srun")
# Calls from inside a job are the program's own. `sbatch --test-only` only asks.
SHIM = """#!/bin/bash
name={name}
case " $* " in *" --test-only "*) name+=' --test-only';; esac
[ "$SLURM_JOB_ID" ] || {{ flock 9; echo "$name" >&9; }} 9>> {calls}
exec {real} "$@"
"""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of one process."""

    wall_s: float
    cpu_s: float
    memory_mb: float
    calls: Counter[str]


class Bench:
    """A user's folder with cases, and counted commands of Slurm."""

    def __init__(self, folder: Path, cases: int) -> None:
        self.folder, self.cases = folder, cases
        self._calls = folder / "calls"
        (folder / "pytest.ini").write_text(
            "[pytest]\nllmbench_recipes = recipes\nllmbench_systems = systems\nllmbench_require_verdict = no\n"
        )
        (folder / "conftest.py").write_text(CONFTEST)
        (folder / "program.sh").write_text(PROGRAM)
        system = {"name": "two_cores", "cluster": "slurm", "gpus_per_node": 0}
        system |= {"environments": {"twenty_lines": {"root": str(folder), "python": sys.executable}}}
        self._write("systems/two_cores.yaml", system)
        self._write_recipes(cases)
        (folder / "bin").mkdir()
        for name in COMMANDS:
            if real := shutil.which(name):
                (folder / "bin" / name).write_text(SHIM.format(name=name, real=real, calls=self._calls))
                (folder / "bin" / name).chmod(0o755)

    def _write(self, name: str, data: object) -> None:
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_text(json.dumps(data))

    def _write_recipes(self, cases: int) -> None:
        names = [f"case{number:05}" for number in range(cases)]
        shutil.rmtree(self.folder / "recipes", ignore_errors=True)
        for family, some in itertools.groupby(names, key=lambda name: name[:-3]):  # the values of a file are limited
            self._write(f"recipes/{family}.yaml", {"family": family, "recipes": dict.fromkeys(some, RECIPE)})
        (self.folder / "test_cases.py").write_text(TEST.format(cases=cases))

    def cost(self, command: list[str], *, fine: tuple[int, ...] = (0,), env: Mapping[str, str] | None = None) -> Cost:
        """Run a command to its end.

        Raises:
            RuntimeError: it exits otherwise than it should.
        """
        self._calls.write_text("")
        whole = {**os.environ, **(env or {}), "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        with (self.folder / "output").open("w") as output:
            began = time.perf_counter()
            process = subprocess.Popen(command, cwd=self.folder, env=whole, stdout=output, stderr=subprocess.STDOUT)
            _, status, usage = os.wait4(process.pid, 0)
            wall_s = time.perf_counter() - began
        if (code := os.waitstatus_to_exitcode(status)) not in fine:
            raise RuntimeError(f"{command} exited with {code}:\n{(self.folder / 'output').read_text()[-3000:]}")
        calls = Counter(self._calls.read_text().splitlines())
        return Cost(wall_s=wall_s, cpu_s=usage.ru_utime + usage.ru_stime, memory_mb=usage.ru_maxrss / 1024, calls=calls)

    def pytest(self, *options: str, env: Mapping[str, str] | None = None) -> Cost:
        """Run a session; its folder is removed."""
        command = [*PYTEST, "-q", "-p", "no:cacheprovider", "--system", "two_cores", *options]
        try:
            return self.cost(command, env=env)
        finally:
            shutil.rmtree(self.folder / "reports", ignore_errors=True)

    def floor(self) -> Cost:
        """Submit jobs that do nothing, and wait for an empty queue."""
        submit = "sbatch --job-name=floor --nodes=1 --exclusive --output=/dev/null --wrap=true >/dev/null"
        wait = 'while [ -n "$(squeue --noheader --name=floor)" ]; do sleep 0.05; done'
        return self.cost(["bash", "-ec", f"for n in {{1..{self.cases}}}; do {submit}; done; {wait}"])

    def steps(self) -> Cost:
        """Steps that do nothing, in a job that holds a node."""
        job = subprocess.run(
            ["salloc", "--no-shell", "--nodes=1", "--exclusive"], capture_output=True, text=True, check=True
        ).stderr.split()[-1]
        try:
            step = f"srun --jobid={job} --overlap --mem=0 --nodes=1 --ntasks=1 true"
            return self.cost(["bash", "-ec", f"for n in {{1..{self.cases}}}; do {step}; done"])
        finally:
            subprocess.run(["scancel", job], check=True)

    def reframe(self, program: str) -> Cost:
        """The same jobs by ReFrame; its folders are removed."""
        site, tests, prefix = (self.folder / name for name in ("site.py", "tests_of_reframe.py", "reframe"))
        site.write_text(REFRAME_SITE)
        tests.write_text(REFRAME_TESTS.format(cases=self.cases, program=self.folder / "program.sh"))
        try:
            return self.cost([program, "-C", str(site), "-c", str(tests), "--prefix", str(prefix), "-r"])
        finally:
            shutil.rmtree(prefix, ignore_errors=True)

    def side_by_side(self) -> Cost:
        """A quarter of the cases, on each of four held nodes."""
        some = " or ".join(f"case{number:05}" for number in range(max(1, self.cases // 4)))
        return self.pytest("--nodes", "4", "--nodes-per-run", "1", "-k", some)

    def rank(self) -> Cost:
        """A run of one rank of ours on this machine."""
        recipe = {**RECIPE, "engine": "unigram", "precision": "fp32", "options": {"step_s": 0}}
        self._write("recipes/rank.yaml", {"family": "rank", "recipes": {"rank": recipe}})
        test = self.folder / "test_rank.py"
        test.write_text(TEST_OF_A_RANK)
        try:
            return self.pytest("--cluster", "local", test.name, env={"PYTHONPATH": str(INSTALLED)})
        finally:
            (self.folder / "recipes" / "rank.yaml").unlink()
            test.unlink()

    def collect(self) -> Cost:
        """Collect a hundred times as many cases."""
        self._write_recipes(100 * self.cases)
        try:
            return self.pytest("--collect-only", "-qq")
        finally:
            self._write_recipes(self.cases)


def slurm_answers() -> bool:
    """Whether a controller is there."""
    if shutil.which("scontrol") is None:
        return False
    return b" is UP" in subprocess.run(["scontrol", "ping"], capture_output=True, check=False).stdout


def ways(bench: Bench, reframe: str | None) -> dict[str, Callable[[], Cost]]:
    """The ways, in the order of their turns."""
    empty = bench.folder / "empty"
    empty.mkdir()
    (empty / "pytest.ini").write_text("[pytest]\n")
    (empty / "test_plain.py").write_text("def test_plain(): pass\n")
    plain = [*PYTEST, "-q", "-p", "no:cacheprovider", "--confcutdir", str(empty), str(empty)]
    anywhere = {
        "driver": lambda: bench.pytest("--cluster", "local", "-k", "case00000"),
        "rank": bench.rank,
        "collect": bench.collect,
        "plain, without": lambda: bench.cost([*plain, "-p", "no:llmbench"]),
        "plain, with": lambda: bench.cost(plain),
    }
    if not slurm_answers():
        return anywhere
    return {
        "floor": bench.floor,
        "steps": bench.steps,
        "jobs": bench.pytest,
        "held": lambda: bench.pytest("--nodes", "1"),
        "side": bench.side_by_side,
        "one": lambda: bench.pytest("-k", "case00000"),
        **({} if reframe is None else {"reframe": lambda: bench.reframe(reframe)}),
        **anywhere,
    }


def main() -> None:
    """Print the medians of each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[], help="ways, by the beginnings of their names")
    parser.add_argument("--reframe", metavar="PROGRAM", help="ReFrame, installed in an environment of its own")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="llmbench-overhead-") as name:
        chosen = {
            way: cost
            for way, cost in ways(Bench(Path(name), options.cases), options.reframe).items()
            if not options.only or way.startswith(tuple(options.only))
        }
        taken: dict[str, list[Cost]] = {way: [] for way in chosen}
        for _ in range(options.rounds):
            for way, cost in chosen.items():
                taken[way].append(cost())
    print(f"{'':16} wall s (min to max)        CPU s   MB  calls")
    for way, costs in taken.items():
        walls = sorted(cost.wall_s for cost in costs)
        cpu, memory = (statistics.median(getattr(cost, what) for cost in costs) for what in ("cpu_s", "memory_mb"))
        middle = sorted(costs, key=lambda cost: cost.calls.total())[len(costs) // 2].calls
        calls = ", ".join(f"{number} {call}" for call, number in middle.most_common())
        spread = f"{statistics.median(walls):7.2f} ({walls[0]:.2f} to {walls[-1]:.2f})"
        print(f"{way:16} {spread:26} {cpu:5.2f} {memory:4.0f}  {f'{middle.total()}: {calls}' if calls else ''}")


if __name__ == "__main__":
    main()
