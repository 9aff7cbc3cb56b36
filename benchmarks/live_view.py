"""The CPU time of a live view: taking and writing a picture of a session, and drawing it, once a second each.

    .venv/bin/python -m benchmarks.live_view [--rounds 50] RUNS...

Of the runs, a tenth and at most 64 run and move on a step between two pictures; half of the others are judged, and half
wait. It prints the CPU time of one thread in ms a picture: at one picture a second, 1 ms is 0.1 % of a processor.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_llmbench.cluster.runs import Declared, Plan, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import load_system
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.records import RunRecord, RunTraces, Timings, Verdict
from pytest_llmbench.reporting.live.lines import StateLines
from pytest_llmbench.reporting.live.table import console_for, table_lines
from pytest_llmbench.session.ending.conclude import run_identity
from pytest_llmbench.session.following import RunView
from pytest_llmbench.session.live.writer import LiveWriter
from pytest_llmbench.session.record_store import RecordStore

_MOST_RUNNING = 64
_RECIPE: dict[str, Any] = {
    "name": "tiny", "engine": "torch", "nodes": 1, "gpus_per_node": 0,
    "model": {"layers": 1, "hidden_size": 32, "attention_heads": 2, "vocab_size": 128},
    "sequence_length": 32, "global_batch_size": 8, "micro_batch_size": 8, "precision": "fp32",
    "optimizer": {"learning_rate": 0.01}, "steps": 1_000_000, "time_limit": "00:05:00",
}  # fmt: skip


def session_of(runs: int, folder: Path) -> tuple[RecordStore, LiveWriter, tuple[RunView, ...]]:
    """A session in the middle of its runs, and how those under way stand."""
    recipe = Recipe.model_validate(_RECIPE)
    system = load_system("local", [Path("suites/systems")])
    settings = Settings(
        system=system, cluster="local", allocation="session", run_dir=folder, nodes=None, nodes_per_run=None,
        gpus_per_node=0, time_min=None, max_runs=None, first_run_alone=False, replay=None, scale="full",
    )  # fmt: skip
    session = Session(id="20261125-000000-000000", folder=folder)
    specs = tuple(RunSpec(key=f"run-{number:05d}-of-a-name-of-usual-length", recipe=recipe) for number in range(runs))
    tests = tuple(Declared(test=f"test_it.py::test_speed[{spec.key}]", run=spec.key) for spec in specs)
    store = RecordStore(system)
    running = min(_MOST_RUNNING, max(1, runs // 10))
    judged = (runs - running) // 2
    for spec, test in zip(specs[:judged], tests, strict=False):
        traces = RunTraces(timings=Timings(submitted=1.0, started=2.0, ended=9.0))
        record = RunRecord.of(run_identity(spec, settings, session), traces)
        store.runs.keep(record, None)  # without the writing of thousands of files
        store.verdicts[test.test] = Verdict.PASS
    moving = tuple(
        RunView(key=spec.key, state="running", steps=1_000_000, started=time.time())
        for spec in specs[judged : judged + running]
    )
    waiting = tuple(RunView(key=spec.key, state="waiting", detail="for nodes") for spec in specs[judged + running :])
    store.views = (*moving, *waiting)
    plan = Plan(runs=specs, tests=tests)
    return store, LiveWriter(store, settings, session, lambda: plan), moving


def ms(rounds: int, work: Callable[[], object]) -> tuple[float, float]:
    """The median and the largest CPU time of some work."""
    taken = []
    for _ in range(rounds):
        began = time.thread_time()
        work()
        taken.append(1e3 * (time.thread_time() - began))
    return statistics.median(taken), max(taken)


def row(runs: int, rounds: int, folder: Path) -> str:
    """Measure one number of runs."""
    store, writer, moving = session_of(runs, folder)
    step = 0
    writer.write()

    def write() -> None:
        nonlocal step
        step += 1
        moved = (replace(view, step=step, words_per_s=1e5, eta_s=1e3) for view in moving)
        store.views = (*moved, *store.views[len(moving) :])
        writer.write()

    written = ms(rounds, write)
    kb = (folder / "live.json").stat().st_size / 1e3
    picture = writer.latest
    if picture is None:
        raise SystemExit("; ".join(store.notes))
    console, lines = console_for(169, coloured=True), StateLines(first_s=0.0)
    drawn = ms(rounds, lambda: table_lines(picture, console, 46))
    told = ms(rounds, lambda: list(lines.of(picture)))
    first, second, third = (f"{median:.2f} ({most:.2f})" for median, most in (written, drawn, told))
    return f"| {runs:,} | {first} | {kb:.0f} | {second} | {third} |"


def main() -> None:
    """Print a row for each number of runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=int)
    parser.add_argument("--rounds", type=int, default=50)
    asked = parser.parse_args()
    print("| Runs | Picture and file, ms (max) | Size, kB | Table of 170 × 50, ms (max) | Plain lines, ms (max) |")
    print("|---|---|---|---|---|")
    for runs in asked.runs:
        with tempfile.TemporaryDirectory() as name:
            print(row(runs, asked.rounds, Path(name)))


if __name__ == "__main__":
    main()
