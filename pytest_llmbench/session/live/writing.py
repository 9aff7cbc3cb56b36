"""Writing the picture of a session into its folder, at most once a second, by a thread of its own."""

import threading
import time
import traceback
from pathlib import Path

from pytest_llmbench.core.files import PRIVATE, write_text
from pytest_llmbench.core.wire import layout
from pytest_llmbench.session.live.making import Pictures
from pytest_llmbench.session.live.snapshot import LiveSnapshot
from pytest_llmbench.session.record_store import RecordStore

PERIOD_S = 1.0
# Written at least so often, as a sign of life, also where nothing changes.
SIGN_S = 5.0
# Pictures of very large sessions come less often: the thread may take no more than this share of one processor.
_SHARE = 0.03


class LiveWriter:
    """Takes a picture of a session now and then, and writes it as `live.json`. An error in this thread ends no run.

    Attributes:
        latest: the last picture; None before the first.
    """

    def __init__(self, pictures: Pictures, folder: Path, store: RecordStore) -> None:
        self.latest: LiveSnapshot | None = None
        self._pictures = pictures
        self._path = folder / layout.LIVE
        self._store = store
        self._written: LiveSnapshot | None = None
        self._told = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="llmbench-live", daemon=True)

    def start(self) -> None:
        """Take the first picture, and go on in the background."""
        self.write()
        self._thread.start()

    def stop(self, word: str | None, exit_code: int | None) -> None:
        """Take the last picture, with the end of the session. Safe to call twice: the first end stands."""
        if self._over.is_set():
            return
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self.write(word, exit_code)

    def write(self, word: str | None = None, exit_code: int | None = None) -> None:
        """Take a picture, and write it where it shows anything new, or where a sign of life is due."""
        try:
            self.latest = picture = self._pictures.take(word, exit_code)
            if self._is_news(picture):
                write_text(self._path, picture.model_dump_json(exclude_defaults=True), mode=PRIVATE)
                self._written = picture
        except Exception as error:  # noqa: BLE001 - a border: runs and verdicts need no picture
            if not self._told:
                self._told = True
                why = str(error) if isinstance(error, OSError) else traceback.format_exc()
                self._store.notes.append(f"{self._path} is not kept up to date: {why}")

    def _is_news(self, picture: LiveSnapshot) -> bool:
        last = self._written
        if last is None or picture.word is not None or picture.exit_code is not None:
            return True
        return picture.at - last.at >= SIGN_S or picture.tasks != last.tasks

    def _work(self) -> None:
        pause_s = PERIOD_S
        while not self._over.wait(pause_s):
            began = time.thread_time()
            self.write()
            pause_s = max(PERIOD_S, (time.thread_time() - began) / _SHARE)
