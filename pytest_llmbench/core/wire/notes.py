"""Notes of a run's processes in its folder: second starts and pauses.

A controller of Slurm that was killed may start a job again that has run already: the second start must not touch the
measurements of the first. Processes note for how long they were stopped. Slurm knows the reason, but may not answer.
"""

import contextlib
import socket
import time
from pathlib import Path

from pytest_llmbench.core.files import make_folder, write_text
from pytest_llmbench.core.wire import layout


def note_second_start(folder: Path, who: str) -> None:
    """Record that a process refused to begin because it had been started before."""
    with contextlib.suppress(OSError):  # a full disk: it ends all the same
        write_text(folder / layout.AGAIN, f"{who} on {socket.gethostname()}\n")


def second_start(folder: Path) -> str | None:
    """The process of a run that was started a second time, and its host; None without one."""
    try:
        return (folder / layout.AGAIN).read_text(encoding="utf-8", errors="replace").strip()[:200]
    except OSError:
        return None


def note_pause(folder: Path, who: str, seconds: float) -> None:
    """Record a pause of a process, as the process itself measured it."""
    with contextlib.suppress(OSError):  # a full disk must not end a process that can go on
        make_folder(folder / layout.PAUSES)
        with (folder / layout.PAUSES / who).open("a", encoding="ascii") as file:
            file.write(f"{seconds:.1f} {time.time():.1f}\n")


def longest_pause(folder: Path, since: float = 0.0) -> tuple[str, float] | None:
    """The process of a run that stood still for longest, and for how many seconds; None if there is none.

    Pauses that were over before the Unix time `since` do not count: a rank that loads libraries from a slow file system
    stands still as well, in all its threads.
    """
    pauses: list[tuple[float, str]] = []
    for path in sorted((folder / layout.PAUSES).glob("*")):
        for line in path.read_text(encoding="ascii", errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                took, ended = map(float, line.split())
                if ended >= since:
                    pauses.append((took, path.name))
    seconds, who = max(pauses, default=(0.0, ""))
    return (who, seconds) if who else None
