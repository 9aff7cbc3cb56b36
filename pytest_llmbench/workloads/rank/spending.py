"""Measures how a rank's host spends each step: phases, and waits for CPU and memory.

A reading costs some ten microseconds, as the counters are the kernel's and their files stay open.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from pytest_llmbench.core.wire.step_events import Phase, TimeSpent

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_MOST_BYTES = 4096


class Spending:
    """Measures how one rank spends its time; created by the thread that trains."""

    def __init__(self, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> None:
        self._at = time.perf_counter()
        self._step = 0
        self._phase: Phase | None = None
        self._phases: dict[int, dict[Phase, float]] = {}
        self._files: list[int] = []
        self._counters = dict(self._machine_counters(proc, cgroups))
        self._read = {name: _read_counter(counter) for name, counter in self._counters.items()}

    def enter(self, step: int, phase: Phase) -> None:
        """Begin a phase of a step; the time up to now counts for the phase before."""
        self._leave()
        self._step, self._phase = step, phase

    def step_times(self, step: int) -> TimeSpent:
        """Return what a finished step took; the host may already be in the next one."""
        if step == self._step:
            self._leave()
        before, self._read = (
            self._read,
            {name: _read_counter(counter) for name, counter in self._counters.items()},
        )
        spent = {name: _difference(before[name], after) for name, after in self._read.items()}
        phases = self._phases.pop(step, None)
        return TimeSpent(phases=phases and {name: round(seconds, 7) for name, seconds in phases.items()}, **spent)

    def close(self) -> None:
        """Close the counters' files."""
        for file in self._files:
            os.close(file)

    def _machine_counters(self, proc: Path, cgroups: Path) -> Iterator[tuple[str, Callable[[], float]]]:
        """Yield the counters of this machine; each is a number of seconds that only grows."""
        yield "cpu_s", time.process_time
        yield "ran_s", time.thread_time
        delays = self._open_counter(proc / "thread-self" / "schedstat")
        if delays is not None:
            yield "delayed_s", partial(_read_delay_s, delays)
        groups = list(_groups(proc, cgroups))
        quotas = [file for group in groups if (file := self._open_counter(group / "cpu.stat")) is not None]
        if quotas:
            yield "throttled_s", partial(_longest_throttled_s, quotas)
        pressures = [*(group / "memory.pressure" for group in groups), proc / "pressure" / "memory"]
        stalls = next((file for path in pressures if (file := self._open_counter(path)) is not None), None)
        if stalls is not None:
            yield "memory_stalled_s", partial(_read_stall_s, stalls)

    def _open_counter(self, path: Path) -> int | None:
        with suppress(OSError):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._files.append(file)
            if os.pread(file, 1, 0):  # some kernels have the file, and refuse to fill it
                return file
        return None

    def _leave(self) -> None:
        now = time.perf_counter()
        if self._phase is not None and self._step:
            of_step = self._phases.setdefault(self._step, {})
            of_step[self._phase] = of_step.get(self._phase, 0.0) + now - self._at
        self._at, self._phase = now, None


def _difference(before: float | None, after: float | None) -> float | None:
    """Return the growth of a counter; None if it is unknown or was reset."""
    return None if before is None or after is None or after < before else round(after - before, 7)


def _read_counter(counter: Callable[[], float]) -> float | None:
    with suppress(OSError, ValueError, IndexError):
        return counter()
    return None


def _groups(proc: Path, cgroups: Path) -> Iterator[Path]:
    """Yield the control groups of this process that may have a CPU quota, from its own up to the root.

    In a container, the paths may be those of the host while only a part of the tree is mounted; the root of this part
    is then the group.
    """
    with suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            for mount in (
                (cgroups / controllers, cgroups / "unified") if controllers else (cgroups, cgroups / "unified")
            ):
                group = mount / path.lstrip("/")
                while group != mount.parent:
                    yield group
                    group = group.parent


def _read_delay_s(file: int) -> float:
    return int(os.pread(file, _MOST_BYTES, 0).split()[1]) / 1e9


def _read_stall_s(file: int) -> float:
    return int(os.pread(file, _MOST_BYTES, 0).splitlines()[0].rpartition(b"total=")[2]) / 1e6


def _longest_throttled_s(files: list[int]) -> float:
    """Return the longest throttled time of these nested groups, seconds."""
    times = [seconds for file in files if (seconds := _read_throttled_s(file)) is not None]
    if not times:
        raise ValueError("no group has a count of it")
    return max(times)


def _read_throttled_s(file: int) -> float | None:
    counters = dict(line.split() for line in os.pread(file, _MOST_BYTES, 0).splitlines())
    if b"throttled_usec" in counters:
        return int(counters[b"throttled_usec"]) / 1e6
    return int(counters[b"throttled_time"]) / 1e9 if b"throttled_time" in counters else None
