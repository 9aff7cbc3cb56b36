"""Watching a session from another process: its picture, and whether the process that takes it lives."""

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.session.live.snapshot import LiveSnapshot, read_snapshot
from pytest_llmbench.session.live.writing import SIGN_S

# Several signs of life are missing: a file server may be slow with one of them.
SILENT_S = 3 * SIGN_S
# A living process has written by then.
_SURE_S = SIGN_S + 1.0
# A picture that is replaced in one step is never torn for long.
_TORN_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Sight:
    """One look at a session.

    Attributes:
        snapshot: the last picture that could be read.
        silent_s: for how long its process has given no sign of life; 0 while it does, and where the session is over.
        torn: the reason why the picture there is now cannot be read; empty where it can.
        doubtful: whether its process seems to be gone, or its picture to be old: only a later look can tell.
    """

    snapshot: LiveSnapshot
    silent_s: float = 0.0
    torn: str = ""
    doubtful: bool = False

    @property
    def over(self) -> bool:
        """Whether the session has ended in order."""
        return self.snapshot.exit_code is not None


class Watcher:
    """Looks at one session again and again. Clocks of two hosts may differ: what counts is whether pictures follow."""

    def __init__(
        self, folder: Path, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._now = now
        self._last: LiveSnapshot | None = None
        self._moved: float | None = None
        self._first = clock()
        self._torn_since: float | None = None

    def look(self) -> Sight:
        """Look once.

        Raises:
            ConfigError: there is no picture, or it cannot be read for longer than a moment.
        """
        torn = self._read()
        last = self._last
        if last is None:
            raise ConfigError(torn)
        silent_s = self._silent_s(last)
        doubtful = last.exit_code is None and (self._is_gone(last) or self._now() - last.at > SILENT_S)
        return Sight(snapshot=last, silent_s=silent_s, torn=torn, doubtful=doubtful)

    @property
    def is_sure(self) -> bool:
        """Whether it was looked at for long enough to tell a dead process from a clock that is wrong."""
        return self._moved is not None or self._clock() - self._first > _SURE_S

    def _read(self) -> str:
        """Read the picture; return the reason where it cannot be read, but an earlier one could."""
        try:
            snapshot = read_snapshot(self._folder)
        except ConfigError as error:
            self._torn_since = self._clock() if self._torn_since is None else self._torn_since
            if self._last is None or self._clock() - self._torn_since > _TORN_S:
                raise
            return str(error)
        self._torn_since = None
        if self._last is not None and (snapshot.count, snapshot.pid) != (self._last.count, self._last.pid):
            self._moved = self._clock()
        self._last = snapshot
        return ""

    def _silent_s(self, last: LiveSnapshot) -> float:
        if last.exit_code is not None:
            return 0.0
        now = self._clock()
        silent = now - self._moved if self._moved is not None else max(self._now() - last.at, now - self._first)
        # A container may have the name of its host, and does not show the processes of that.
        return silent if silent > (_SURE_S if self._is_gone(last) else SILENT_S) else 0.0

    @staticmethod
    def _is_gone(last: LiveSnapshot) -> bool:
        return last.host == socket.gethostname() and not Path(f"/proc/{last.pid}").exists()
