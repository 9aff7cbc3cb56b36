"""Real rank processes: how they start, fail and end."""

import time
from pathlib import Path
from subprocess import TimeoutExpired

import pytest

from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.wire.notes import second_start
from pytest_llmbench.readers.steps.step_log import read_steps
from pytest_llmbench.workloads.rank.main import OWNER_GONE, run_rank
from tests.unit.workloads.conftest import Launch

# Rank 1 fails while the others are connected to it and do not come back.
FAILING = """
import time
from pytest_llmbench.workloads.rank.rendezvous import process_group

def entry(context, log):
    with process_group(context, 30):
        if context.rank == 1:
            raise RuntimeError("no such luck\\nat all")
        time.sleep(600)
"""
# The owner is already silent; the thread that notices must not need this one.
WAITING = """
import time

def entry(context, log):
    log.phase(0, "forward")
    time.sleep(600)
"""


def test_a_failed_rank_ends_at_once_though_another_hangs(tmp_path: Path, launch: Launch) -> None:
    """The rank that raised ends with status 1 and leaves its error behind; it waits for nobody."""
    (tmp_path / "failing.py").write_text(FAILING)
    hanging, failing = launch(tmp_path, "failing:entry")
    assert failing.wait(300) == 1
    with pytest.raises(TimeoutExpired):
        hanging.wait(0.1)
    infos = {info.rank: info for info in read_steps(tmp_path).ranks}
    assert infos[1].failure == "RuntimeError: no such luck at all"
    assert not infos[1].ended
    assert infos[0].failure is None
    assert "no such luck" in (tmp_path / "output-1").read_text()


def test_a_rank_ends_with_its_owner(tmp_path: Path, launch: Launch) -> None:
    """When the counter stops changing, the rank ends with its own status and says why."""
    (tmp_path / "waiting.py").write_text(WAITING)
    owner = tmp_path / "owner"
    (process,) = launch(tmp_path, "waiting:entry", ranks=1, owner={"path": str(owner), "ttl_s": 1.0})
    phase = tmp_path / "phase/rank-00000"
    started = None
    # Some time beyond its start, and longer than the ttl in all.
    while started is None or time.monotonic() < started + 2:
        owner.write_text(str(time.monotonic()))
        assert process.poll() is None
        if started is None and phase.exists() and "forward" in phase.read_text():
            started = time.monotonic()
        time.sleep(0.05)
    assert process.wait(300) == OWNER_GONE
    failure = read_steps(tmp_path).ranks[0].failure
    assert failure == f"OwnerGone: its session has been silent for 1 s ({owner})"
    assert phase.read_text().split() == ["0", "forward", "0"]


def test_a_wrong_shape_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started by srun with another number of ranks, the process raises and leaves no log."""
    (tmp_path / "task.json").write_text(
        '{"entry": "m:f", "config": {}, "nodes": 2, "ranks_per_node": 8, "device": "cpu"}'
    )
    monkeypatch.delenv("SUBMITIT_EXECUTOR", raising=False)
    for name, value in {"PROCID": "0", "LOCALID": "0", "NTASKS": "8", "NNODES": "1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
        monkeypatch.delenv(f"SLURM_STEP_NUM_{name}", raising=False)
    with pytest.raises(RunError, match="asks for 2 nodes with 8 ranks each; the launcher started 8 ranks on 1"):
        run_rank(str(tmp_path))
    assert not (tmp_path / "steps").exists()


def test_a_second_start_is_refused_and_leaves_word_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that forgot the first start begins the job again: the log stays as it is."""
    (tmp_path / "task.json").write_text(
        '{"entry": "builtins:print", "config": {}, "nodes": 1, "ranks_per_node": 1, "device": "cpu"}'
    )
    for name in ("SUBMITIT_EXECUTOR", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    run_rank(str(tmp_path))
    log = tmp_path / "steps" / "rank-00000.jsonl"
    before = log.read_bytes()
    assert second_start(tmp_path) is None
    with pytest.raises(RunError, match="needs its own folder"):
        run_rank(str(tmp_path))
    assert log.read_bytes() == before != b""
    assert (second_start(tmp_path) or "").startswith("rank-00000 on ")
