"""What a rank's host does in a step: phases and the kernel's counters."""

import os
import time
from pathlib import Path

from pytest_llmbench.workloads.rank.spending import Spending
from tests.conftest import known

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
