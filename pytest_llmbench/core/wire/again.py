"""A second start of what was started before: `started_again` of the run's folder.

A controller that was killed may have saved a job as one that waits, and starts it again. The second start must not
touch the measurements of the first.
"""

import contextlib
import socket
from pathlib import Path

from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.wire import layout


def refuse(folder: Path, who: str) -> None:
    """Write down that a process has refused to begin, because an earlier start of it has."""
    with contextlib.suppress(OSError):  # a full disk: it ends all the same
        write_text(folder / layout.AGAIN, f"{who} on {socket.gethostname()}\n")


def refused(folder: Path) -> str | None:
    """The process of a run that was started a second time, and its host; None where none was."""
    try:
        return (folder / layout.AGAIN).read_text(encoding="utf-8", errors="replace").strip()[:200]
    except OSError:
        return None
