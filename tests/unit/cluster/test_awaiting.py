"""Waiting for the end of processes of this machine without looking again and again, and the owner's sign of life."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from pytest_llmbench.cluster import jobs
from pytest_llmbench.cluster.heartbeat import Heartbeat, read_stop, write_stop
from pytest_llmbench.cluster.jobs import FinishedJob, Job, LocalJob, await_an_end
from pytest_llmbench.cluster.slurm.states import JobState, JobStatus

FOR_EVER = 600.0


class Program(Job):
    """A job that is a program."""

    process: subprocess.Popen[bytes]

    def __init__(self, program: str) -> None:
        self.process = subprocess.Popen(["bash", "-c", program])
        super().__init__(str(self.process.pid), (), program)

    def status(self) -> JobStatus:
        return JobStatus(state=JobState.RUNNING if self.process.poll() is None else JobState.COMPLETED)

    def cancel(self) -> None:
        self.process.kill()


@pytest.fixture
def waits() -> Iterator[Program]:
    with ExitStack() as ends:
        program = Program("sleep 600")
        ends.enter_context(program.process)
        ends.callback(program.cancel)
        yield program


def test_the_first_end_is_enough(waits: Program) -> None:
    ends = Program("sleep 0.1")
    assert await_an_end([waits, FinishedJob("here", "nothing", None), ends], FOR_EVER)
    assert ends.status().state is JobState.COMPLETED
    assert waits.status().state is JobState.RUNNING


def test_an_end_that_nobody_has_seen_is_one(waits: Program) -> None:
    ends = Program("true")
    os.waitid(os.P_PID, ends.process.pid, os.WEXITED | os.WNOWAIT)
    assert await_an_end([ends, waits], FOR_EVER)
    assert not await_an_end([ends], FOR_EVER)


def test_it_waits_no_longer_than_it_may(waits: Program) -> None:
    assert await_an_end([waits], 0.01)


def test_a_kernel_that_cannot_tell_is_no_reason_to_wait(waits: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", none)
    assert not await_an_end([waits], FOR_EVER)
    assert not await_an_end([], FOR_EVER)


def test_ranks_that_are_gone_are_counted_while_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_GONE_S", 0.2)
    with subprocess.Popen(["bash", "-c", "sleep 1 & sleep 2 & sleep 600 & wait -n; wait"]) as controller:
        job, seen, end = LocalJob(controller, "three sleeps", tmp_path), [0], time.monotonic() + 30
        while seen[-1] < 2 and time.monotonic() < end:
            if (gone := job.gone) != seen[-1]:
                seen.append(gone)
            time.sleep(0.05)
        (last,) = psutil.Process(controller.pid).children()
        last.kill()
    assert seen == [0, 1, 2]
    assert controller.returncode is not None
    assert job.gone == 0


def test_it_says_that_it_lives_and_that_it_is_done(tmp_path: Path) -> None:
    heartbeat = Heartbeat(tmp_path).start()
    assert heartbeat.path.read_text().strip().isdecimal()
    assert read_stop(tmp_path) is None
    heartbeat.stop()
    heartbeat.stop()
    assert read_stop(tmp_path) == "the session ended"


def test_a_session_that_is_taken_on_gives_other_signs(tmp_path: Path) -> None:
    first = Heartbeat(tmp_path).start()
    before = first.path.read_text()
    first.stop()
    second = Heartbeat(tmp_path).start()
    assert int(second.path.read_text()) > int(before) + 1000
    second.stop()


def test_a_stop_hides_no_other_error(tmp_path: Path) -> None:
    """Of a session that never started, or on a full disk, where a stop that cannot be written is noticed as silence."""
    Heartbeat(tmp_path / "session").stop()
    assert read_stop(tmp_path / "session") == "the session ended"
    (tmp_path / "file").touch()
    write_stop(tmp_path / "file", "over")
    assert read_stop(tmp_path / "file") is None
