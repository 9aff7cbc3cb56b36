"""The owner watch: what counts as life, and what ends a wait."""

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_llmbench.workloads.rank import deadman
from pytest_llmbench.workloads.rank.deadman import hold, watch


@dataclass
class Clock:
    """The time of `hold`, which passes while it sleeps."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(deadman, "time", clock)
    return clock


def test_a_silent_owner_ends_the_wait(tmp_path: Path, clock: Clock) -> None:
    """A counter that never changes ends the wait after ttl seconds, and the reason names the file."""
    file = tmp_path / "owner"
    file.write_text("1")
    assert hold(str(file), ttl_s=10.0) == f"its session has been silent for 10 s ({file})"
    assert clock.now == 10.0


def test_a_file_system_that_stands_still_is_not_silence(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """The owner could not write either: it has the whole time once more before it counts as dead."""
    seen = list[bytes]()

    def read(_: Path) -> bytes:
        clock.sleep(100.0 if len(seen) == 1 else 0.0)
        seen.append(b"1" if len(seen) < 3 else b"2")
        return seen[-1]

    monkeypatch.setattr(deadman, "_read", read)
    assert "silent for 10 s" in hold("/nowhere/owner", ttl_s=10.0)
    assert b"2" in seen
    assert clock.now == pytest.approx(113.0, abs=1.5)


def test_a_stop_file_or_a_missing_owner_ends_the_wait(tmp_path: Path) -> None:
    assert "silent" in hold(str(tmp_path / "gone" / "owner"), ttl_s=0.05, poll_s=0.01)
    (tmp_path / "stop").touch()
    assert hold(str(tmp_path / "owner"), ttl_s=60) == f"its session ended this run ({tmp_path / 'stop'})"


def test_touching_the_file_is_no_sign_of_life(tmp_path: Path) -> None:
    """Clocks of two machines differ, so only new content prolongs the wait."""
    file = tmp_path / "owner"
    file.write_text("1")
    done = threading.Event()

    def touch() -> None:
        while not done.wait(0.01):
            os.utime(file)

    thread = threading.Thread(target=touch)
    thread.start()
    assert "silent" in hold(str(file), ttl_s=0.3, poll_s=0.01)
    done.set()
    thread.join()


def test_a_new_counter_prolongs_the_wait(tmp_path: Path) -> None:
    file = tmp_path / "owner"
    silent = threading.Event()
    watch(file, 1.0, lambda _: silent.set())
    for count in range(20):
        file.write_text(str(count))
        assert not silent.wait(0.1)
    assert silent.wait(5)


def test_who_was_stopped_sees_it_afterwards(tmp_path: Path) -> None:
    """A process that is stopped for a while, all its threads with it, knows how long; one that only waits saw none."""
    file, seen = tmp_path / "owner", tmp_path / "seen"
    pid = os.fork()
    if pid == 0:

        def on_pause(seconds: float) -> None:
            seen.write_text(str(seconds))

        watch(file, 60.0, lambda _: os._exit(1), on_pause)
        time.sleep(60)
        os._exit(0)
    try:
        time.sleep(3)  # of a poll of 5 s, whose rest is slept before or after
        assert not seen.exists()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(8)
        os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + 20
        while not (seen.exists() and seen.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert 4 < float(seen.read_text()) < 8
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
