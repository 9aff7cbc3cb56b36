"""Folders of the kernel and the system, which may be missing, and the file system of a folder."""

import os
from pathlib import Path

import psutil

from pytest_llmbench.core.wire.answers import ProbeAnswer


class Mount(ProbeAnswer):
    """A mounted file system."""

    point: str
    type: str  # such as `nfs4`
    source: str  # a device, or a server and its folder


def names_in(folder: Path) -> list[str]:
    """Names in a folder; empty for a missing or unreadable folder."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names are wanted, not paths
    except OSError:
        return []


def mount_of(path: Path) -> Mount | None:
    """The mount that a path lies on; None where the kernel lists none.

    The deepest mount point counts, and of several at one point the last: it hides the others.
    """
    path = path.resolve()
    mounts = [mount for mount in psutil.disk_partitions(all=True) if path.is_relative_to(mount.mountpoint)]
    best = max(reversed(mounts), key=lambda mount: len(Path(mount.mountpoint).parts), default=None)
    return None if best is None else Mount(point=best.mountpoint, type=best.fstype, source=best.device)
