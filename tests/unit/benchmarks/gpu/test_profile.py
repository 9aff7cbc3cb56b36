"""The profiler looks at three steps of whatever entry, and its numbers are held against the floors."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from benchmarks.gpu.profiling import profiled
from benchmarks.gpu.profiling.kernels import breakdown, read_trace
from benchmarks.gpu.profiling.profile_step import report, vocabulary
from benchmarks.gpu.training.rows import Case, Choice
from pytest_llmbench.readers.steps.step_log import read_steps
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.steplog import StepLog

from .test_kernels import TRACE


def case(row: str = "opt125m", gpus: int = 1, variant: str = "torch") -> Case:
    """One cell on GPUs."""
    (found,) = Choice(
        rows=[row], variants=[variant], gpus=[gpus], steps=20, scale="full", device="cuda", options={}
    ).cases()
    return found


def multiply(_: RankContext, log: StepLog) -> None:
    """Thirteen steps of one product each."""
    log.matmul(1e12)
    for _step in range(13):
        torch.ones(8, 8) @ torch.ones(8, 8)
        log.step(seconds=1.0, tokens=1, samples=1, loss=1.0, grad_norm=1.0, peak_memory_bytes=None)


def test_three_steps_are_in_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps are logged, the products of steps 9 to 11 are in the trace, and a CPU has no kernels in it."""
    entries = ModuleType("entries_of_a_test")
    entries.multiply = multiply  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, entries.__name__, entries)
    monkeypatch.setenv(profiled.VARIABLE, f"{entries.__name__}:multiply={tmp_path}")
    context = RankContext(
        rank=0, world_size=1, local_rank=0, ranks_per_node=1, nodes=1, folder=tmp_path, config={}, device="cpu"
    )
    with StepLog(context) as log:
        profiled.train(context, log)
    assert len(read_steps(tmp_path).steps) == 13
    trace = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    products = [event for event in trace["traceEvents"] if event.get("name") == "aten::mm"]
    assert len(products) == profiled.STEPS
    assert read_trace(trace) == []
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["flops_per_s"] == 1e12
    assert facts["seconds"] > 0


def test_a_vocabulary_may_be_padded_or_shared() -> None:
    """Of 50272 ids, 50304 rows are a multiple of 64; of eight ranks each has 6284, or padded 6288."""
    assert {50272, 50304} <= vocabulary(case())
    assert {6284, 6288} <= vocabulary(case("slice175b", 8, "megatron_core"))


def test_the_report_has_every_part_and_its_floor() -> None:
    """Parts are milliseconds a step, beside what they could take, with the largest kernels below."""
    facts = {"flops_per_s": 1e15, "bytes_per_s": 4e12, "seconds": 0.3}
    parts = breakdown(read_trace(TRACE), {50304})
    text = "\n".join(report(case(), parts, {"matrix products": 0.001}, facts, 0.09))
    assert "a step of 90.0 ms without the profiler, 100.0 ms with it" in text
    assert "| matrix products | 0.01 | 20.0 % | 1.00 | 0.01 |" in text
    assert "| communication that nothing hides | 0.01 | 20.0 % |  |  |" in text
    assert "| `nvjet_tst_1` | head and cross entropy | 0.01 | 0 |" in text
