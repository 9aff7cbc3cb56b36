"""Faults of the machine under a run: its wall clock is set, and the kernel's memory limit ends a rank."""

import os
import resource
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import UserFolder, Watch

LOCAL = ("--cluster", "local", "-k", "tiny")
ENDLESS: dict[str, Any] = {"steps": 100_000, "options": {"step_s": 0.05, "grows_mib": 4.0}, "time_limit": "00:10:00"}
HOUR = 3600.0
# Sets the clock of pytest, too, as soon as a rank's was: both are on one machine.
CONFTEST = """
import time
from pathlib import Path

real, clock_s, is_set = time.time, {clock_s}, False

def set_clock():
    global is_set
    is_set = is_set or any(Path("reports").glob("*/runs/tiny/clock-set"))
    return real() + clock_s * is_set

time.time = set_clock
"""


@pytest.mark.parametrize("clock_s", [HOUR, -HOUR], ids=["forward", "back"])
@pytest.mark.parametrize("everywhere", [True, False], ids=["everywhere", "on the node"])
def test_a_clock_that_is_set_changes_no_verdict(user: UserFolder, clock_s: float, everywhere: bool) -> None:
    """Durations and stamps come from clocks that cannot be set."""
    user.recipe(steps=40, options={"clock_s": clock_s})
    if everywhere:
        (user.path / "conftest.py").write_text(CONFTEST.format(clock_s=clock_s))
    result = user.run(*LOCAL)
    record = result.record()
    assert record["problem"] is None
    assert result.case.outcome == "passed", result.text
    assert list((user.path / "reports").glob("*/runs/tiny/clock-set"))
    assert record["findings"] == []
    timings = record["timings"]
    assert 0 < timings["ended"] - timings["started"] <= timings["ended"] - timings["submitted"] < HOUR / 2


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group in which the kernel lets processes have 8 MiB more than they have."""
    groups = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    first = "memory" in groups
    own = Path("/sys/fs/cgroup", "memory" if first else "", groups["memory" if first else ""].lstrip("/"))
    group = own / f"llmbench-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(8 * 2**20))
    except OSError as error:
        pytest.skip(f"no control group for memory can be made here: {error}")
    yield group
    group.rmdir()


def test_a_rank_killed_for_its_memory_is_named(user: UserFolder, watch: type[Watch], small_group: Path) -> None:
    """A rank over its control group's limit is killed without a word, and nothing is a number."""
    user.recipe(**ENDLESS)
    process = user.start(*LOCAL)
    session = user.wait_for(lambda session: watch.steps(session) > 3 and session)
    pids = [watch.pid(session, "tiny", rank) for rank in (0, 1)]
    (small_group / "cgroup.procs").write_text(str(pids[1]))
    result = user.finish(process)
    assert result.case.outcome == "error", result.text
    assert f"rank 1 on {os.uname().nodename} (pid {pids[1]}) died without a word" in str(result.case.message)
    assert "out of memory" in str(result.case.message)
    assert result.record()["metrics"] == {}
    user.wait_for(lambda _: not any(Path(f"/proc/{pid}").exists() for pid in pids), timeout_s=30)


def test_a_rank_that_gets_no_more_memory_says_so(user: UserFolder, watch: type[Watch]) -> None:
    user.recipe(**ENDLESS)
    process = user.start(*LOCAL)
    session = user.wait_for(lambda session: watch.steps(session) > 3 and session)
    pid = watch.pid(session, "tiny", 1)
    now = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (now + 16 * 2**20, now + 16 * 2**20))
    result = user.finish(process)
    assert result.case.outcome == "error", result.text
    assert f"(pid {pid}) failed: MemoryError" in str(result.case.message)
