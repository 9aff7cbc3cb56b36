"""How ranks spent their steps, and what their GPUs did, out of their logs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.record.series import RunTimes, Step
from pytest_llmbench.core.record.telemetry import GpuTelemetry
from pytest_llmbench.core.wire.step_events import StartEvent, StepEvent, TimeSpent
from pytest_llmbench.readers.steps.gpu_window import read_telemetry
from pytest_llmbench.readers.steps.progress import event_lines, last_step
from pytest_llmbench.readers.steps.step_log import read_steps
from pytest_llmbench.readers.steps.times import read_times
from tests.conftest import known
from tests.support import gpu_logs
from tests.support.gpu_logs import POWER_W, sample, samples, step, told, write_rank

STEPS = [Step(step=number, seconds=1.0) for number in range(3, 13)]
FORWARD, SYNC = 0.7, 0.3


def write(folder: Path, rank: int, spent: Sequence[TimeSpent | None], *, ahead_s: float = 0.0) -> None:
    """The log of a rank whose steps took a second each, by a clock that may be ahead of others."""
    start: dict[str, Any] = {
        "schema": 1, "rank": rank, "world_size": 2, "local_rank": rank, "host": f"n{rank}", "pid": 7,
        "device": "cpu", "versions": {}, "pid_namespace": 1, "time": gpu_logs.BEGIN,
    }  # fmt: skip
    steps = [gpu_logs.step(number) for number in range(1, len(spent) + 1)]
    told = [replace(step, spent=each, time=step.time + ahead_s) for step, each in zip(steps, spent, strict=True)]
    (folder / "steps").mkdir(exist_ok=True)
    lines = [StartEvent(**start), *told]
    (folder / f"steps/rank-{rank:05d}.jsonl").write_bytes(b"".join(event.line() for event in lines))


def spent(forward: float = FORWARD, sync: float = SYNC, **counters: float | None) -> TimeSpent:
    return TimeSpent(phases={"forward": forward, "sync": sync}, **counters)


def read(folder: Path) -> RunTimes:
    return known(read_times(folder, STEPS))


def test_means_of_the_steps_asked_for(tmp_path: Path) -> None:
    slow = [spent(0.95, 0.05, delayed_s=0.5)] * 2
    write(tmp_path, 0, [*slow, *[spent(delayed_s=0.1, cpu_s=0.6)] * 10])
    write(tmp_path, 1, [spent(0.9, 0.1)] * 12)
    first, second = read(tmp_path).ranks
    assert dict(first.phases) == pytest.approx({"forward": FORWARD, "sync": SYNC})
    assert [first.seconds, first.delayed_s, first.cpu_s] == pytest.approx([1.0, 0.1, 0.6])
    assert (first.last, second.last) == (0.0, 1.0)
    assert known(first.own_s) == pytest.approx(0.7)
    assert known(read(tmp_path).transfer_s) == pytest.approx(0.1)


def test_a_rank_that_is_late_in_turns(tmp_path: Path) -> None:
    write(tmp_path, 0, [spent()] * 12)
    write(tmp_path, 1, [spent(), spent(), *[spent(), spent(0.99, 0.01)] * 4, spent(0.9, 0.1), spent(0.9, 0.1)])
    first, second = read(tmp_path).ranks
    assert (first.late, first.late_s) == (0.0, 0.0)
    assert known(second.late) == pytest.approx(0.4)
    assert known(second.late_s) == pytest.approx(4 * 0.29 / 10)
    write(tmp_path, 1, [spent()] * 2 + [spent(0.99, 0.01)] * 5 + [spent()] * 5)  # a slow start is not in turns
    assert read(tmp_path).ranks[1].late == 0.0


def test_clocks_of_hosts_are_not_compared(tmp_path: Path) -> None:
    write(tmp_path, 0, [spent()] * 12)
    write(tmp_path, 1, [spent(0.9, 0.1)] * 12)
    before = read(tmp_path)
    write(tmp_path, 1, [spent(0.9, 0.1)] * 12, ahead_s=3600.0)
    assert read(tmp_path) == before


def test_phases_that_do_not_add_up_are_not_believed(tmp_path: Path) -> None:
    """The rank has its counters and the reason. No rank has a place in the order of arrival."""
    write(tmp_path, 0, [spent()] * 12)
    write(tmp_path, 1, [spent(0.2, 0.1, delayed_s=0.1)] * 12)
    found = read(tmp_path)
    assert found.ranks[1].gap == "its phases add up to 3 s, and its steps to 10 s"
    assert (dict(found.ranks[1].phases), found.ranks[1].own_s, found.ranks[0].last) == ({}, None, None)
    assert found.ranks[1].delayed_s == pytest.approx(0.1)
    assert found.transfer_s is None


@pytest.mark.parametrize("gap", [None, TimeSpent(cpu_s=0.1)])
def test_a_step_without_phases_is_a_gap(tmp_path: Path, gap: TimeSpent | None) -> None:
    write(tmp_path, 0, [*[spent()] * 11, gap])
    (found,) = read(tmp_path).ranks
    assert known(found.gap).startswith(("1 of its 10", "10 of its 10"))
    assert found.phases == {}


def test_an_unknown_counter_stays_unknown(tmp_path: Path) -> None:
    """A step in which it is not known makes the mean unknown; it counts for nothing, and never for 0."""
    write(tmp_path, 0, [*[spent(delayed_s=0.1)] * 11, spent(delayed_s=None)])
    (found,) = read(tmp_path).ranks
    assert (found.delayed_s, found.gap) == (None, None)


def test_a_rank_that_never_waits_has_no_own_time(tmp_path: Path) -> None:
    write(tmp_path, 0, [TimeSpent(phases={"forward": 1.0})] * 12)
    assert (read(tmp_path).ranks[0].own_s, read(tmp_path).transfer_s) == (None, None)
    write(tmp_path, 0, [TimeSpent(phases={"forward": 0.2, "sync": 0.0, "device": 0.8})] * 12)
    assert read(tmp_path).ranks[0].own_s is None


def test_a_log_without_times_gives_none(tmp_path: Path) -> None:
    """A rank that measured nothing of its steps leaves the record without times."""
    write(tmp_path, 0, [None] * 12)
    assert read_times(tmp_path, STEPS) is None
    assert read_times(tmp_path, []) is None
    assert isinstance(gpu_logs.step(1), StepEvent)


WATCHED_STEPS = 30


def judged(folder: Path, first: int = 6, last: int = WATCHED_STEPS) -> tuple[Step, ...]:
    return tuple(each for each in read_steps(folder).steps if first <= each.step <= last)


def test_the_window_is_that_of_the_judged_steps(tmp_path: Path) -> None:
    """Steps of a second each: from 5 to 30 s, where a slow sample before counts for nothing."""
    slow = {"sm_clock_mhz": 300, "clocks_event_reasons": 0x8}
    write_rank(tmp_path, 0, WATCHED_STEPS, [told(), *samples(WATCHED_STEPS + 1, {4.5: slow, 30.5: slow})])
    write_rank(tmp_path, 1, WATCHED_STEPS, [told(1), *samples(WATCHED_STEPS + 1, {30.0: slow})])
    first, second = read_telemetry(tmp_path, judged(tmp_path))
    assert (first.rank, first.gpu, first.seconds, first.samples) == (0, "GPU-0", 25.0, 51)
    assert (first.sm_clock_min_mhz, first.throttled, first.gaps) == (1455, 0, ())
    assert first.energy_j == pytest.approx(25 * POWER_W)
    assert (second.rank, second.gpu, second.sm_clock_min_mhz, second.throttled) == (1, "GPU-1", 300, 1)


def test_a_window_that_ends_before_the_run_does(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, WATCHED_STEPS, [told(), *samples(WATCHED_STEPS + 1, {22.0: {"sm_clock_mhz": 300}})])
    (found,) = read_telemetry(tmp_path, judged(tmp_path, last=20))
    assert (found.seconds, found.samples, found.sm_clock_min_mhz) == (15.0, 31, 1455)
    assert found.energy_j == pytest.approx(15 * POWER_W)


def test_logs_without_samples_are_left_at_their_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rank(tmp_path, 0, WATCHED_STEPS, [])
    read: list[int] = []
    steps = judged(tmp_path)

    def counted(path: Path) -> object:
        for line in event_lines(path):
            read.append(line[0])
            yield line

    monkeypatch.setattr("pytest_llmbench.readers.steps.gpu_window.event_lines", counted)
    assert read_telemetry(tmp_path, steps) == ()
    assert read == [1, 2, 3]  # start, matmul, the first step


def test_a_rank_that_watched_nothing_stands_beside_others(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, WATCHED_STEPS, [told(), *samples(WATCHED_STEPS + 1)])
    write_rank(tmp_path, 1, WATCHED_STEPS, [])
    first, second = read_telemetry(tmp_path, judged(tmp_path))
    assert first.gaps == ()
    assert second == GpuTelemetry(rank=1, gaps=("it did not watch its GPU",))


def test_what_a_rank_says_of_its_trouble_is_kept(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, WATCHED_STEPS, [told(trouble="nvidia-ml-py is not installed")])
    write_rank(tmp_path, 1, WATCHED_STEPS, [told(1), told(1, trouble="NVML: GPU is lost"), *samples(20.0)])
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
    write_rank(tmp_path, 0, WATCHED_STEPS, [told(), *samples(WATCHED_STEPS + 1)])
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
