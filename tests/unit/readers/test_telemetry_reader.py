"""What GPUs did, out of the ranks' step logs: which samples belong to the judged steps."""

from pathlib import Path

import pytest

from pytest_llmbench.core.record.series import Step
from pytest_llmbench.core.record.telemetry import GpuTelemetry
from pytest_llmbench.readers.steps.gpu_window import read_telemetry
from pytest_llmbench.readers.steps.progress import event_lines, last_step
from pytest_llmbench.readers.steps.step_log import read_steps
from tests.support.gpu_logs import POWER_W, sample, samples, step, told, write_rank

STEPS = 30


def judged(folder: Path, first: int = 6, last: int = STEPS) -> tuple[Step, ...]:
    return tuple(each for each in read_steps(folder).steps if first <= each.step <= last)


def test_the_window_is_that_of_the_judged_steps(tmp_path: Path) -> None:
    """Steps of a second each: from 5 to 30 s, where a slow sample before counts for nothing."""
    slow = {"sm_clock_mhz": 300, "clocks_event_reasons": 0x8}
    write_rank(tmp_path, 0, STEPS, [told(), *samples(STEPS + 1, {4.5: slow, 30.5: slow})])
    write_rank(tmp_path, 1, STEPS, [told(1), *samples(STEPS + 1, {30.0: slow})])
    first, second = read_telemetry(tmp_path, judged(tmp_path))
    assert (first.rank, first.gpu, first.seconds, first.samples) == (0, "GPU-0", 25.0, 51)
    assert (first.sm_clock_min_mhz, first.throttled, first.gaps) == (1455, 0, ())
    assert first.energy_j == pytest.approx(25 * POWER_W)
    assert (second.rank, second.gpu, second.sm_clock_min_mhz, second.throttled) == (1, "GPU-1", 300, 1)


def test_a_window_that_ends_before_the_run_does(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, STEPS, [told(), *samples(STEPS + 1, {22.0: {"sm_clock_mhz": 300}})])
    (found,) = read_telemetry(tmp_path, judged(tmp_path, last=20))
    assert (found.seconds, found.samples, found.sm_clock_min_mhz) == (15.0, 31, 1455)
    assert found.energy_j == pytest.approx(15 * POWER_W)


def test_logs_without_samples_are_left_at_their_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rank(tmp_path, 0, STEPS, [])
    read: list[int] = []
    steps = judged(tmp_path)

    def counted(path: Path) -> object:
        for line in event_lines(path):
            read.append(line.number)
            yield line

    monkeypatch.setattr("pytest_llmbench.readers.steps.gpu_window.event_lines", counted)
    assert read_telemetry(tmp_path, steps) == ()
    assert read == [1, 2, 3]  # start, matmul, the first step


def test_a_rank_that_watched_nothing_stands_beside_others(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, STEPS, [told(), *samples(STEPS + 1)])
    write_rank(tmp_path, 1, STEPS, [])
    first, second = read_telemetry(tmp_path, judged(tmp_path))
    assert first.gaps == ()
    assert second == GpuTelemetry(rank=1, gaps=("it did not watch its GPU",))


def test_what_a_rank_says_of_its_trouble_is_kept(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, STEPS, [told(trouble="nvidia-ml-py is not installed")])
    write_rank(tmp_path, 1, STEPS, [told(1), told(1, trouble="NVML: GPU is lost"), *samples(20.0)])
    first, second = read_telemetry(tmp_path, judged(tmp_path))
    assert first.gaps == ("no sample in the 25 s of the judged window (nvidia-ml-py is not installed)",)
    assert second.gaps[0] == "no sample for 10 s of the judged window (NVML: GPU is lost)"


def test_nothing_is_judged_of_no_steps(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, 2, [told(), *samples(3)])
    assert read_telemetry(tmp_path, ()) == ()
    later = tuple(each.model_copy(update={"step": 3}) for each in judged(tmp_path, first=2))
    assert read_telemetry(tmp_path, later) == (GpuTelemetry(rank=0, gpu="GPU-0", gaps=("no judged step",)),)
    assert read_telemetry(tmp_path / "gone", judged(tmp_path, first=1)) == ()


def test_unreadable_lines_are_passed_over(tmp_path: Path) -> None:
    """The first reading reports them; here each costs a sample, and more of them are a gap."""
    write_rank(tmp_path, 0, STEPS, [told(), *samples(STEPS + 1)])
    log = tmp_path / "steps/rank-00000.jsonl"
    steps = judged(tmp_path)
    lines = log.read_bytes().splitlines(keepends=True)
    lost = {sample(at_s).line() for at_s in (10.0, 15.0, 15.5, 16.0)}
    log.write_bytes(b"".join(b"garbage\n" if line in lost else line for line in lines))
    (found,) = read_telemetry(tmp_path, steps)
    assert (found.samples, found.gaps) == (47, ("no sample for 2 s of the judged window",))
    assert found.energy_j == pytest.approx(25 * POWER_W)


def test_progress_is_found_behind_the_samples_of_a_long_step(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, 1, [told(), *samples(240)])
    assert (found := last_step(tmp_path)) is not None
    assert found.step == step(1).step
