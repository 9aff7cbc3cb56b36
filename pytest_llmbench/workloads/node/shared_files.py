"""Files that one machine writes and another reads, on a shared file system such as NFS."""

import os
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
