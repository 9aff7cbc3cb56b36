"""The owner's sign of life. What was started for a pytest process ends itself when this falls silent."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Self

from pytest_llmbench.core.files import write_text

PERIOD_S = 5.0
TTL_S = 30.0


class Heartbeat:
    """Writes a growing counter to `session/owner` until it is stopped.

    The counter, not the file's time, is what watchers compare: clocks of two hosts may differ.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "owner"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="llmbench-heartbeat", daemon=True)

    def start(self) -> Self:
        """Write the first sign and go on in the background."""
        write_text(self.path, "0\n")
        self._thread.start()
        return self

    def stop(self) -> None:
        """Fall silent, and tell watchers to end at once."""
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(OSError):  # a full disk: they will notice the silence instead
            write_text(self.path.with_name("stop"), "the session ended\n")

    def _beat(self) -> None:
        count = 0
        while not self._stop.wait(PERIOD_S):
            count += 1
            # A full or briefly unreachable disk must not end the thread; the next beat may succeed.
            with contextlib.suppress(OSError):
                write_text(self.path, f"{count}\n")
