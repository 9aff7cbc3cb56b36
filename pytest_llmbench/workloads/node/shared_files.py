"""Files that one machine writes and another reads, on a shared file system such as NFS."""

import os
import time
from pathlib import Path


def exists_now(path: Path) -> bool:
    """True if a file exists according to the server.

    An NFS client may answer a plain `stat` from its cache of missing files for half a minute; opening the folder
    refreshes that cache.
    """
    try:
        with os.scandir(path.parent) as entries:
            return any(entry.name == path.name for entry in entries)
    except OSError:
        return False


def wait_for(path: Path, timeout_s: float, shortest_s: float = 0.02, longest_s: float = 1.0) -> bool:
    """Wait until a file exists according to the server; True if that was in time.

    The pause between two looks doubles up to the longest, as thousands of ranks may ask the same server.
    """
    deadline, pause_s = time.monotonic() + timeout_s, shortest_s
    while not exists_now(path):
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, longest_s)
    return True
