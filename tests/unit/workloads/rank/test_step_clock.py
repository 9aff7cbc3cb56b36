"""When steps end, of a device that works behind its host's back, and what the host does in a step."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_llmbench.readers.steps.step_log import read_steps
from pytest_llmbench.workloads.rank import step_clock
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.spending import Spending
from pytest_llmbench.workloads.rank.step_clock import StepClock
from pytest_llmbench.workloads.rank.steplog import StepLog
from tests.conftest import known

COUNTED: Any = SimpleNamespace(step_counts=lambda: (1, 2))  # sequences and tokens of a step


class Mark:
    """A mark of a device that passes marks at given times, however late the host looks."""

    times: Iterator[float]

    def __init__(self, _: torch.device) -> None:
        self.at = next(self.times)

    def wait(self) -> None: ...

    def since(self, earlier: Mark) -> float:
        return self.at - earlier.at


def test_a_late_host_moves_no_time_between_steps(context: RankContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step has its own time, the last as well, for which the host waits alone."""
    Mark.times = iter([0.0, 3.0, 3.5, 4.0, 4.5])
    monkeypatch.setattr(step_clock, "_Mark", Mark)
    monkeypatch.setattr(step_clock, "peak_memory_bytes", lambda _: None)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: None)
    with StepLog(context) as log:
        clock = StepClock(log, torch.device("cuda"), COUNTED)
        clock.start()
        for step in range(1, 5):
            clock.step(torch.tensor(float(step)), 1.0)
            assert len(read_steps(context.folder).steps) == step - 1  # written when the next one has been asked for
        clock.finish()
    steps = read_steps(context.folder).steps
    assert [step.seconds for step in steps] == pytest.approx([3.0, 0.5, 0.5, 0.5])
    assert [step.loss for step in steps] == [1.0, 2.0, 3.0, 4.0]


def test_a_host_alone_logs_at_once(context: RankContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "barrier", lambda: None)
    with StepLog(context) as log:
        clock = StepClock(log, torch.device("cpu"), COUNTED)
        clock.start()
        clock.step(torch.tensor(1.0), torch.tensor(2.0))
        (step,) = read_steps(context.folder).steps
    assert step.seconds is not None
    assert step.seconds > 0


def test_ranks_of_a_device_end_one_step_after_the_word(context: RankContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 tells it in step 3; every rank reads that when step 4 has been asked for, and makes no other."""
    Mark.times = iter([0.0, 1.0, 2.0, 3.0, 4.0])
    monkeypatch.setattr(step_clock, "_Mark", Mark)
    monkeypatch.setattr(step_clock, "peak_memory_bytes", lambda _: None)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: None)
    told = iter([0.0, 0.0, 1.0, 1.0])
    monkeypatch.setattr(torch.distributed, "broadcast", lambda tensor, _: tensor.fill_(next(told)))
    with StepLog(replace(context, may_end_early=True)) as log:
        clock = StepClock(log, torch.device("cuda"), COUNTED)
        clock.start()
        for step in clock.steps(9):
            clock.step(torch.tensor(float(step)), 1.0)
        clock.finish()
        log.end()
    series = read_steps(context.folder)
    assert [step.loss for step in series.steps] == [1.0, 2.0, 3.0, 4.0]
    (end,) = (
        line for line in (context.folder / "steps" / "rank-00000.jsonl").read_text().splitlines() if "end" in line
    )
    assert '"asked":true' in end


GROUP = "0::/slurm/job/step\n"


def machine(
    folder: Path, *, delay_ns: int = 0, throttled_us: int = 0, stalled_us: int = 0, groups: str = GROUP
) -> tuple[Path, Path]:
    """A `/proc` and a `/sys/fs/cgroup` with these counters; one group above the process's own has the quota."""
    proc, cgroups = folder / "proc", folder / "cgroup"
    for path, text in (
        (proc / "thread-self" / "schedstat", f"77 {delay_ns} 3\n"),
        (proc / "self" / "cgroup", groups),
        (cgroups / "slurm/job/step" / "cpu.stat", "usage_usec 7\n"),
        (cgroups / "slurm/job" / "cpu.stat", f"usage_usec 7\nnr_throttled 1\nthrottled_usec {throttled_us}\n"),
        (proc / "pressure" / "memory", f"some avg10=0.00 avg60=0.00 avg300=0.00 total={stalled_us}\nfull total=1\n"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return proc, cgroups


def test_time_goes_to_the_phase_that_it_passes_in() -> None:
    """Each phase has its time, and together they have that of the step; what comes between steps is in none."""
    spending = Spending()
    spending.enter(1, "data")
    began = time.perf_counter()
    time.sleep(0.02)
    spending.enter(1, "forward")
    phases = known(spending.step_times(1).phases)
    assert set(phases) == {"data", "forward"}
    assert 0.02 <= phases["data"] <= sum(phases.values()) + 1e-6 <= time.perf_counter() - began + 1e-5
    time.sleep(0.02)
    spending.enter(2, "data")
    assert known(spending.step_times(2).phases)["data"] < 0.02


def test_a_host_that_is_ahead_of_its_gpu_keeps_its_steps_apart() -> None:
    """A step is written when its host is in the next one, and has its own time alone."""
    spending = Spending()
    spending.enter(1, "forward")
    time.sleep(0.02)
    spending.enter(2, "data")
    assert set(known(spending.step_times(1).phases)) == {"forward"}
    assert set(known(spending.step_times(2).phases)) == {"data"}


def test_counters_are_the_growth_since_the_step_before(tmp_path: Path) -> None:
    """Delay, quota and memory are those of the step, the quota that of any group above the process."""
    spending = Spending(*machine(tmp_path, delay_ns=10**9, throttled_us=10**6, stalled_us=10**6))
    machine(tmp_path, delay_ns=10**9 + 5 * 10**6, throttled_us=10**6 + 4000, stalled_us=10**6 + 3000)
    spent = spending.step_times(1)
    assert (spent.delayed_s, spent.throttled_s, spent.memory_stalled_s) == (0.005, 0.004, 0.003)
    assert spending.step_times(2).delayed_s == 0.0
    spending.close()


def test_an_unknown_counter_is_not_0(tmp_path: Path) -> None:
    """A kernel that does not tell, one that tells nonsense, and a counter that was set back give None."""
    (tmp_path / "nothing").mkdir()
    spent = Spending(tmp_path / "nothing", tmp_path / "nothing").step_times(1)
    assert (spent.phases, spent.delayed_s, spent.throttled_s, spent.memory_stalled_s) == (None, None, None, None)
    proc, cgroups = machine(tmp_path, delay_ns=10**9, throttled_us=500)
    spending = Spending(proc, cgroups)
    machine(tmp_path, delay_ns=10, throttled_us=100)
    (proc / "pressure" / "memory").write_text("nonsense\n")
    spent = spending.step_times(1)
    assert (spent.delayed_s, spent.throttled_s, spent.memory_stalled_s) == (None, None, None)


def test_the_groups_of_the_older_kernels_are_read(tmp_path: Path) -> None:
    """Version 1 of control groups has a folder for each controller, and nanoseconds."""
    proc, cgroups = machine(tmp_path, groups="4:memory:/a\n2:cpu,cpuacct:/slurm/job\n")
    stat = cgroups / "cpu,cpuacct/slurm/job/cpu.stat"
    stat.parent.mkdir(parents=True)
    stat.write_text("nr_periods 9\nthrottled_time 1000000\n")
    spending = Spending(proc, cgroups)
    stat.write_text("nr_periods 9\nthrottled_time 3000000\n")
    assert spending.step_times(1).throttled_s == 0.002


def test_files_are_closed() -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are all that counts
    for _ in range(3):
        Spending().close()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
