"""Folders of the kernel and the system, which may be missing, and the file system of a folder."""

import os
import re
from pathlib import Path

from pytest_llmbench.core.files import read_text
from pytest_llmbench.core.wire.answers import ProbeAnswer

_ESCAPE = re.compile(r"\\([0-7]{3})")


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


def mount_of(path: Path, root: Path = Path("/")) -> Mount | None:
    """The mount that a path lies on; None where the kernel lacks it."""
    return find_mount(path.resolve(), read_text(root / "proc/self/mountinfo") or "")


def find_mount(path: Path, mountinfo: str) -> Mount | None:
    """The mount of an absolute path without links, by the text of `/proc/PID/mountinfo`.

    The deepest mount point counts, and of several at one point the last: it hides the others.
    """
    best: Mount | None = None
    for line in mountinfo.splitlines():
        left, dash, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if not dash or len(fields) <= 4 or len(kind) <= 1:
            continue
        mount = Mount(point=_unescape(fields[4]), type=kind[0], source=_unescape(kind[1]))
        deep_enough = best is None or len(Path(mount.point).parts) >= len(Path(best.point).parts)
        if deep_enough and path.is_relative_to(mount.point):
            best = mount
    return best


def _unescape(text: str) -> str:
    r"""Replace the kernel's octal codes: `\040` is a space."""
    return _ESCAPE.sub(lambda code: chr(int(code[1], 8)), text)
