"""Heartbeat of a pytest process. Its jobs and ranks end themselves when the heartbeat stops."""

import contextlib
import threading
import time
from pathlib import Path
from typing import Self

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.wire import layout

PERIOD_S = 5.0
TTL_S = 60.0


def timeout_of(text: str) -> float:
    """Read the seconds after which a silent owner counts as dead, enough for several heartbeats.

    Raises ConfigError for fewer.
    """
    least = 3 * PERIOD_S
    if not text.strip().isdecimal() or int(text) < least:
        raise ConfigError(f"{text!r} must be a whole number of seconds >= {least:g}")
    return float(text)


def write_stop(folder: Path, reason: str) -> None:
    """Mark a session's folder with the reason why its owner is done, for the jobs and ranks that watch it."""
    with contextlib.suppress(OSError):  # a full disk: they will notice the silence instead
        write_text(folder / layout.STOP, f"{reason}\n")


def read_stop(folder: Path) -> str | None:
    """The reason why the owner of a session's folder is done; None while it goes on, or the file is unreadable."""
    try:
        return (folder / layout.STOP).read_text(encoding="utf-8").strip()
    except OSError:
        return None


class Heartbeat:
    """Writes a growing counter to `session/owner` until it is stopped.

    Watchers compare the counter instead of the file's time, because clocks of two hosts may differ. It begins with the
    time in nanoseconds, so that a process which resumes a session writes other numbers than the process before it.

    Attributes:
        path: the file.
        ttl_s: silence after which jobs and ranks end themselves, seconds.
    """

    def __init__(self, folder: Path, ttl_s: float = TTL_S) -> None:
        self.path = folder / layout.OWNER
        self.ttl_s = ttl_s
        self._count = time.time_ns()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="llmbench-heartbeat", daemon=True)

    def start(self) -> Self:
        """Write the first sign and go on in the background."""
        write_text(self.path, f"{self._count}\n")
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop the heartbeat and make watchers end at once. Safe to call twice, and before `start`."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        write_stop(self.path.parent, "the session ended")

    def _beat(self) -> None:
        while not self._stop.wait(PERIOD_S):
            self._count += 1
            # The thread outlives a full or briefly unreachable disk: the next beat may succeed.
            with contextlib.suppress(OSError):
                write_text(self.path, f"{self._count}\n")
