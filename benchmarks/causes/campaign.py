"""Starts the ranks of a case, does to them what a case does from outside, and judges the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from threading import Event, Thread
from typing import Any

from benchmarks.causes.cases import Injected
from benchmarks.causes.ranks import CASE
from pytest_llmbench.core.errors import InconclusiveError
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.schema import validate
from pytest_llmbench.engines.base import get_engine, statistics_of
from pytest_llmbench.judging.statistics import Measurement, judged_steps, measure
from pytest_llmbench.plugin.verdict.run import Run

ROOT = Path(__file__).parents[2]
_CPU = Path("/sys/fs/cgroup/cpu")
_PERIOD_US = 20_000
_STOP_S = 0.03
_HOG = "while True: pass"
# Other work on this machine is not the cause that is injected: ranks go before it.
_SHARES = 65536
_CHANGES: dict[bool, dict[str, Any]] = {
    False: {"engine": "unigram", "options": {"step_s": 0.0}, "micro_batch_size": 2, "global_batch_size": 2},
    True: {"engine": "torch", "micro_batch_size": 2, "global_batch_size": 2},
}


def recipe_of(case: Injected) -> Recipe:
    """The training of a case, as small as it can be and still learn; each rank has one micro batch."""
    change = dict(_CHANGES[case.torch])
    change["global_batch_size"] = change["micro_batch_size"] * case.ranks
    width = 64 if case.torch else 32
    told = {
        "name": "case",
        "nodes": 1,
        "gpus_per_node": 0,
        "model": {"layers": 1, "hidden_size": width, "attention_heads": 2, "vocab_size": 128, "dropout": 0.0},
        "sequence_length": 32,
        "precision": "fp32",
        "compile": False,
        "optimizer": {"learning_rate": 1.0e-2, "warmup_steps": 2},
        "steps": case.steps,
        "warm_up": {"rule": "skip_first", "steps": 3},
        "time_limit": "00:05:00",
        **change,
    }
    return validate(Recipe, told, "recipe")


def run(case: Injected) -> tuple[str, str | None, int | None]:
    """Run a case: the verdict, the cause in words, and the rank that it names."""
    recipe = recipe_of(case)
    with tempfile.TemporaryDirectory(prefix="causes-") as name:
        folder = Path(name)
        task = {
            "entry": "benchmarks.causes.ranks:train", "config": recipe.model_dump(mode="json"), "nodes": 1,
            "ranks_per_node": case.ranks, "device": "cpu",
        }  # fmt: skip
        (folder / "task.json").write_text(json.dumps(task))
        with ExitStack() as around:
            _train(case, folder, around)
        series = get_engine(recipe.engine).read(folder, recipe)
    assert not series.unreadable
    assert all(info.ended for info in series.ranks)
    judged = judged_steps(recipe, series.steps)
    measurement = Measurement(
        recipe=recipe, steps=series.steps, judged=judged, gpus=0, matmul_flops_per_s=None, peak_flops_per_s=None
    )
    record = RunRecord(
        session="", token="", system="", cluster="local", folder="", key="case", recipe=recipe, allocation="run",
        nodes=1, ranks=case.ranks, gpus=0, rank_info=series.ranks, steps=series.steps, times=series.times,
        metrics=measure(measurement, statistics_of(get_engine(recipe.engine))), steady=measurement.steady,
    )  # fmt: skip
    return _judge(case, Run(record))


def _judge(case: Injected, made: Run) -> tuple[str, str | None, int | None]:
    measured = made.step_time
    try:
        verdict = "PASS" if measured.meets("<=", Quantity(case.needed * case.work_s, "s")) else "FAIL"
    except InconclusiveError:
        verdict = "INCONCLUSIVE"
    judged = made.comparisons.last
    cause = None if judged is None else judged.cause
    return verdict, None if cause is None else str(cause), None if cause is None else cause.rank


def _train(case: Injected, folder: Path, around: ExitStack) -> None:
    place = around.enter_context(_link(case.rate_mbit)) if case.rate_mbit else []
    ranks, group = [], around.enter_context(_group())
    for rank in range(case.ranks):
        env = {
            **os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/installed'}", "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(rank), "SLURM_STEP_NUM_TASKS": str(case.ranks), "SLURM_STEP_NUM_NODES": "1",
            CASE: json.dumps({**asdict(case), "truth": None}),
        }  # fmt: skip
        command = [*place, sys.executable, "-m", "pytest_llmbench.workloads.rank.main", str(folder)]
        held_back = case.quota is not None and case.culprit in {None, rank}
        own = around.enter_context(_group(case.quota)) if held_back else group
        ranks.append(subprocess.Popen(_within(own, command), env=env, stdout=subprocess.DEVNULL, cwd=ROOT))
    for process in ranks:
        around.callback(process.wait)
    if case.crowd:
        cpu = min(os.sched_getaffinity(0))
        hogs = [subprocess.Popen(_within(group, [sys.executable, "-c", _HOG])) for _ in range(case.crowd)]
        for process in (*ranks, *hogs):
            os.sched_setaffinity(process.pid, {cpu})
        for hog in hogs:
            around.callback(hog.wait)
            around.callback(hog.kill)
    if case.stops and case.culprit is not None:
        around.enter_context(_stopping(ranks[case.culprit]))
    for process in ranks:
        if process.wait(timeout=180):
            raise RuntimeError(f"a rank ended with {process.returncode}")


def _within(group: Path, command: list[str]) -> list[str]:
    return ["sh", "-c", f'echo $$ > {group}/tasks && exec "$@"', "sh", *command]


@contextmanager
def _group(share: float | None = None) -> Iterator[Path]:
    """A control group that goes before other work, maybe with a quota of CPU time."""
    group = Path(tempfile.mkdtemp(prefix="causes-", dir=_CPU))
    (group / "cpu.shares").write_text(str(_SHARES))
    if share is not None:
        (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(int(share * _PERIOD_US)))
    try:
        yield group
    finally:
        for _ in range(50):  # a process that has ended is in it for a moment
            with suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


@contextmanager
def _link(rate_mbit: float) -> Iterator[list[str]]:
    """A network of its own, whose loopback has a rate: what starts a process there."""
    holder = subprocess.Popen(["unshare", "--net", "sleep", "600"])
    inside = ["nsenter", "--net", "--target", str(holder.pid)]
    rate = ["tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", f"{rate_mbit}mbit", "burst", "70kb"]
    try:
        time.sleep(0.3)
        for command in (["ip", "link", "set", "lo", "up"], [*rate, "latency", "2s"]):
            subprocess.run([*inside, *command], check=True)
        yield inside
    finally:
        holder.kill()
        holder.wait()


@contextmanager
def _stopping(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Stop a process for half of the time, until it has ended."""
    over = Event()

    def duty() -> None:
        while not over.wait(_STOP_S) and process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            over.wait(_STOP_S)
            process.send_signal(signal.SIGCONT)

    thread = Thread(target=duty)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
