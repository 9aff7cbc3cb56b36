"""Small files and folders of the kernel and the system, which may not be there, and the file system of a folder."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from pytest_llmbench.core.wire.answers import ProbeAnswer


def text_of(path: Path) -> str | None:
    """The text of a file without the space around it; None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def names_in(folder: Path) -> list[str]:
    """Names in a folder; empty if there is no such folder, or if it cannot be read."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names are wanted, not paths
    except OSError:
        return []


_ESCAPE = re.compile(r"\\([0-7]{3})")


class Mount(ProbeAnswer):
    """A mounted file system."""

    point: str
    type: str
    """Such as `nfs4`."""
    source: str
    """A device, or a server and its folder."""


def mount_of(path: Path, root: Path = Path("/")) -> Mount | None:
    """The mount that a path lies on; None where the kernel names none."""
    mounts = text_of(root / "proc/self/mountinfo") or ""
    return find_mount(path.resolve(), mounts)


def find_mount(path: Path, mountinfo: str) -> Mount | None:
    """The mount of an absolute path without links, by the text of `/proc/PID/mountinfo`.

    The deepest mount point counts, and of several at one point the last: it hides the others.
    """
    best: Mount | None = None
    for mount in _mounts(mountinfo):
        deep_enough = best is None or len(Path(mount.point).parts) >= len(Path(best.point).parts)
        if deep_enough and path.is_relative_to(mount.point):
            best = mount
    return best


def _mounts(mountinfo: str) -> Iterator[Mount]:
    for line in mountinfo.splitlines():
        left, dash, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if dash and len(fields) > 4 and len(kind) > 1:
            yield Mount(point=_plain(fields[4]), type=kind[0], source=_plain(kind[1]))


def _plain(text: str) -> str:
    r"""The kernel writes a space as `\040`."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), text)
