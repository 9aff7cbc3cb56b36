"""Times in which a process of a run stood still, as it saw them itself: `pauses/` of the run's folder, one a line.

A stopped process does not know the reason. Slurm does, as long as it answers: this is for when it does not.
"""

import contextlib
import time
from pathlib import Path

from pytest_llmbench.core.files import make_folder
from pytest_llmbench.core.wire import layout


def note_pause(folder: Path, who: str, seconds: float) -> None:
    """Write down that a process has just stood still for a while."""
    with contextlib.suppress(OSError):  # a full disk must not end who would go on
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
