"""A file that is written again in the background whenever it has changed, so seldom that its cost is negligible."""

import threading
import time
import traceback
from collections.abc import Callable

# Readers of the file can wait this long.
SHORTEST_S = 2.0
# At most this share of the time is spent on writing: a report of ten thousand tests takes seconds.
SHARE = 0.01


def pause_s(took_s: float) -> float:
    """Seconds to wait after a file was written, which took `took_s` seconds."""
    return max(SHORTEST_S, took_s / SHARE)


class Refreshing:
    """Writes a file again when its content has changed. After an error, which it reports once, it goes on."""

    def __init__(self, write: Callable[[], None], tell: Callable[[str], None]) -> None:
        """Take a function that writes it, called by one thread at a time, and one that gets the reason of an error."""
        self._write = write
        self._tell = tell
        self._told = False
        self._changed, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="llmbench-report", daemon=True)
        self._pause_s = SHORTEST_S

    def start(self) -> None:
        """Write it now, and go on in the background."""
        self._attempt()
        self._thread.start()

    def note_change(self) -> None:
        """Have it written again, when it is time for it."""
        self._changed.set()

    def stop(self) -> None:
        """Stop writing, as soon as a file that is being written is complete. Safe to call twice."""
        self._over.set()
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        while not self._over.wait(self._pause_s):
            self._changed.wait()
            self._changed.clear()
            if not self._over.is_set():
                self._attempt()

    def _attempt(self) -> None:
        began = time.monotonic()
        try:
            self._write()
        except Exception as error:  # noqa: BLE001 - a border: verdicts and the report at the end do not depend on it
            if not self._told:
                self._told = True
                self._tell(str(error) if isinstance(error, OSError) else traceback.format_exc())
        self._pause_s = pause_s(time.monotonic() - began)
