"""The waiting place of tests: in the runner's process, or in an xdist worker, on the files the runner writes."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_llmbench.cluster.heartbeat import read_stop
from pytest_llmbench.cluster.runs import Session
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.wire import layout
from pytest_llmbench.plugin.interruption import Interruption
from pytest_llmbench.plugin.output.progress import LiveLine
from pytest_llmbench.session.live.writer import LiveWriter
from pytest_llmbench.session.record_store import AnyRecord, RecordStore

_LOOK_S = 0.2
# Asks for further runs: key of the series, number of the last run, number of the look that needs it.
Repeat = Callable[[str, int, int], None]


class RunWaiter:
    """Waits for a record in the store of this process, and shows the progress of all runs meanwhile.

    The first signal that ends the session makes the runner end its runs, which soon have a record, so it is only noted.
    """

    def __init__(
        self, store: RecordStore, live: LiveWriter, progress: LiveLine, interruption: Interruption, repeat: Repeat
    ) -> None:
        self.repeat = repeat
        self._store = store
        self._live = live
        self._progress = progress
        self._interruption = interruption

    def wait(self, kind: type[AnyRecord], name: str) -> AnyRecord:
        """Block until the run or check has a record; every one gets one, whatever happens."""
        with self._interruption.bearing(1):
            while True:
                try:
                    record = self._store.wait(kind, name, _LOOK_S)
                except ConfigError as error:
                    pytest.fail(str(error), pytrace=False)
                self._progress.take(self._store.notes)
                if record is not None:
                    self._progress.clear()
                    return record
                self._progress.show(self._live.latest)


class FileWaiter:
    """Waits in an xdist worker for the controller's runner, which writes every record to disk."""

    def __init__(self, session: Session, ttl_s: float) -> None:
        self._session = session
        self._ttl_s = ttl_s

    def repeat(self, series: str, number: int, look: int) -> None:
        """Ask the controller."""
        write_text(self._session.folder / layout.REPEATS / series, f"{number} {look}")

    def wait(self, kind: type[AnyRecord], name: str) -> AnyRecord:
        """Block until the record is on disk."""
        path = self._session.folder_of(kind.about, name) / layout.RECORD
        self._wait_for(path, f"{kind.about} {name}")
        try:
            return kind.read(path)
        except ConfigError as error:
            pytest.fail(str(error), pytrace=False)

    def _wait_for(self, path: Path, what: str) -> None:
        """Block until a file is there; fail the test if the controller dies or gives up before."""
        seen, moved = "", time.monotonic()
        while not path.exists():
            reason = read_stop(self._session.folder)
            if reason is not None and not path.exists():  # records are written before the end is noted
                pytest.fail(f"{what}: the controller left no record: {reason}", pytrace=False)
            time.sleep(_LOOK_S)
            sign = self._sign()
            if sign != seen:
                seen, moved = sign, time.monotonic()
            elif time.monotonic() - moved > 2 * self._ttl_s:
                pytest.fail(
                    f"{what}: the controller gave no sign of life for {2 * self._ttl_s:g} s and left no record in "
                    f"{self._session.folder}: it died, or the disk is full", pytrace=False,
                )  # fmt: skip

    def _sign(self) -> str:
        try:
            return (self._session.folder / layout.OWNER).read_text(encoding="ascii")
        except OSError:
            return ""
