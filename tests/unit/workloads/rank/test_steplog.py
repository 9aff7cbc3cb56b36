"""What a rank writes, byte by byte where others read it so."""

import json
import math
import os
from pathlib import Path

import pytest

from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.record.series import Progress, RankInfo, Step
from pytest_llmbench.readers.steps.progress import RankPhase, last_step, phases
from pytest_llmbench.readers.steps.step_log import read_steps
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.steplog import StepLog
from tests.conftest import known


def write_step(log: StepLog, loss: float = 2.5, grad_norm: float = 1.5) -> None:
    log.step(seconds=0.5, tokens=64, samples=2, loss=loss, grad_norm=grad_norm, peak_memory_bytes=1024)


def test_the_reader_gets_what_was_written(context: RankContext) -> None:
    with StepLog(context) as log:
        log.start("cpu", {"python": "3.11.7"})
        log.matmul(1.25e11)
        write_step(log)
        write_step(log, loss=2.0)
        log.end()
    series = read_steps(context.folder)
    assert series.unreadable == ()
    host = os.uname().nodename
    (info,) = series.ranks
    (started, finished, steps) = (info.started, info.finished, info.steps)
    assert info == RankInfo(
        rank=0, host=host, pid=os.getpid(), local_rank=0, device="cpu", versions={"python": "3.11.7"},
        matmul_flops_per_s=1.25e11, matmul_rates=(1.25e11,), ended=True,
        pid_namespace=Path("/proc/self/ns/pid").stat().st_ino,
        world_size=1, started=started, finished=finished, end_steps=2, steps=steps,
        node=os.environ.get("SLURMD_NODENAME"),
    )  # fmt: skip
    assert 0 < known(finished) - known(started) < 60
    assert steps is not None
    assert (steps.count, steps.seconds, steps.quarters, steps.still, steps.flat) == (2, 1.0, (2.5, 2.0), 1, 0)
    first, second = series.steps
    assert first == Step(
        step=1, seconds=0.5, tokens=64, samples=2, loss=2.5, grad_norm=1.5, peak_memory_bytes=1024, ranks=1
    )
    assert (second.step, second.loss) == (2, 2.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_survive_strict_json(context: RankContext, value: float) -> None:
    """NaN and infinities are written as texts that any JSON parser takes, and read back as themselves."""
    with StepLog(context) as log:
        write_step(log, loss=value, grad_norm=value)
    line = (context.folder / "steps/rank-00000.jsonl").read_text()
    assert json.loads(line, parse_constant=pytest.fail)["loss"] == str(value)
    step = read_steps(context.folder).steps[0]
    assert (str(step.loss), str(step.grad_norm)) == (str(value), str(value))


def test_a_failure_is_one_line_with_its_time(context: RankContext) -> None:
    with StepLog(context) as log:
        log.start("cpu", {})
        log.failure("RuntimeError: first\n  second " + "x" * 10_000)
    info = read_steps(context.folder).ranks[0]
    assert info.failure is not None
    assert info.failure.startswith("RuntimeError: first second xxx")
    assert len(info.failure) == 2000
    assert info.failed_at is not None
    assert info.failed_at > 1.7e9
    assert not info.ended


def test_an_error_that_no_json_can_hold_is_told_in_escapes(context: RankContext) -> None:
    """A file name that is not UTF-8 does not keep a rank from saying what ended it."""
    name = os.fsdecode(b"caf\xe9")
    with StepLog(context) as log:
        log.start("cpu", {})
        log.failure(f"FileNotFoundError: {name}")
    series = read_steps(context.folder)
    assert series.unreadable == ()
    assert series.ranks[0].failure == r"FileNotFoundError: caf\udce9"


def test_who_watches_reads_what_the_rank_does(context: RankContext) -> None:
    """Phase and last step are found by the observer as the rank wrote them."""
    with StepLog(context) as log:
        log.phase(1, "backward", 3)
        assert phases(context.folder) == {0: RankPhase(step=1, phase="backward", micro_batch=3)}
        assert last_step(context.folder) is None
        write_step(log)
        assert last_step(context.folder) == Progress(step=1, seconds=0.5)


def test_the_phase_file_holds_the_latest_phase_in_64_bytes(context: RankContext) -> None:
    """A shorter phase leaves nothing of a longer one before it, and the file never grows."""
    phase = context.folder / "phase/rank-00000"
    with StepLog(context) as log:
        assert phase.read_bytes() == b"0 start 0".ljust(63) + b"\n"
        log.phase(100_000, "backward", 1000)
        log.phase(3, "data", 2)
        assert phase.read_bytes() == b"3 data 2".ljust(63) + b"\n"
        log.end()
    assert phase.read_text().split() == ["0", "done", "0"]


def test_a_folder_serves_one_run(context: RankContext) -> None:
    """A second start in the same folder, such as that of a requeued job, is refused."""
    with StepLog(context):
        pass
    with pytest.raises(RunError, match="needs its own folder") as error:
        StepLog(context)
    assert error.value.kind == "ran_before"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which only Linux has")
def test_a_full_disk_is_an_error(context: RankContext) -> None:
    with StepLog(context) as log:
        os.dup2(full := os.open("/dev/full", os.O_WRONLY), log._log)
        os.close(full)
        with pytest.raises(OSError, match="No space left"):
            write_step(log)


torch = pytest.importorskip("torch")

from pytest_llmbench.workloads.rank import fed  # noqa: E402 - it imports torch


@pytest.mark.parametrize("again", [0, 1])
def test_small_micro_batches_are_told_apart(monkeypatch: pytest.MonkeyPatch, again: int) -> None:
    """12,800 of two short sequences of a small vocabulary, as a recipe of `llmbench init` with more steps has them."""
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 1)
    watched = fed.Fed()
    watched.watch([torch.nn.Linear(2, 2)], torch.nn.Linear)
    batches = torch.randint(256, (12_800, 2, 64), generator=torch.Generator().manual_seed(1))
    for batch in (*batches, *batches[:again]):
        watched.take(batch)
    watched.step_counts()
    assert watched.trained(parameters=1, dtypes=(), copy=0).repeated == again
