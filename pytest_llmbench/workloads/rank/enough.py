"""The end of a run before its last step, where its session has seen enough."""

import time
from pathlib import Path
from threading import Event, Thread

from pytest_llmbench.core.wire import layout
from pytest_llmbench.workloads.node.shared_files import exists_now

_LOOK_S = 0.2


def watch(folder: Path) -> Event:
    """Watch for the file with which a session asks for the end, from a daemon thread that sets the event."""
    asked = Event()
    Thread(target=_wait, args=(folder / layout.ENOUGH, asked), name="llmbench-enough", daemon=True).start()
    return asked


def _wait(file: Path, asked: Event) -> None:
    while not exists_now(file):
        time.sleep(_LOOK_S)
    asked.set()
