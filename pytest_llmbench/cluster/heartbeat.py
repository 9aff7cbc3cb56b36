"""The owner's sign of life. Heartbeat of a pytest process: its jobs and ranks end themselves when it stops."""

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
    """Read the seconds after which a silent owner counts as dead: several signs of life must fit into them.

    Raises:
        ConfigError: they are too few.
    """
    least = 3 * PERIOD_S
    if not text.strip().isdecimal() or int(text) < least:
        raise ConfigError(f"{text!r} must be a whole number of seconds >= {least:g}")
    return float(text)


def write_stop(folder: Path, reason: str) -> None:
    """Tell whatever watches a session's folder that its owner is done, with the reason."""
    with contextlib.suppress(OSError):  # a full disk: they will notice the silence instead
        write_text(folder / layout.STOP, f"{reason}\n")


def read_stop(folder: Path) -> str | None:
    """The reason why the owner of a session's folder is done; None while it is not, or while that is unknown."""
    try:
        return (folder / layout.STOP).read_text(encoding="utf-8").strip()
    except OSError:
        return None


class Heartbeat:
    """Writes a growing counter to `session/owner` until it is stopped.

    The counter, not the file's time, is what watchers compare: clocks of two hosts may differ. It begins with the time:
    of a process that takes a session on, no sign may be like one of the process before it, after which a watcher that
    looked at both would see no change.

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
        """Fall silent, and tell watchers to end at once. Safe to call twice, and where `start` never came so far."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        write_stop(self.path.parent, "the session ended")

    def _beat(self) -> None:
        while not self._stop.wait(PERIOD_S):
            self._count += 1
            # A full or briefly unreachable disk must not end the thread; the next beat may succeed.
            with contextlib.suppress(OSError):
                write_text(self.path, f"{self._count}\n")
