"""Folders of a node: how much room they have, and whether all nodes see the same one."""

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from pytest_llmbench.checks.host.nodes.files import Mount, mount_of
from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.wire.answers import ProbeAnswer
from pytest_llmbench.workloads.node.shared_files import exists_now
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog, host_name

# What one machine writes, another sees a moment later.
_LAG_S = 3.0
_LOOK_S = 0.1
_BLOCK = b"\0" * 4096


class Room(ProbeAnswer):
    """Room in one folder. Free is what is free to this user, apart from quotas, which no file system tells here."""

    path: str
    why: str | None
    """The reason why nothing can be written into it; None where something can."""
    mount: Mount | None = None
    bytes: int | None = None
    """None where the folder is not there."""
    free_bytes: int | None = None
    """None where the folder is not there."""
    inodes: int = 0
    """The same of files; 0 on a file system that makes inodes as it needs them."""
    free_inodes: int = 0
    """The same of files; 0 on a file system that makes inodes as it needs them."""


class Rooms(ProbeAnswer):
    """Room in the folders of a node, by name."""

    folders: Mapping[str, Room]


def disk(context: RankContext, log: ProbeLog) -> Rooms:
    """Answer with the room in each of `context.config["folders"]`, by name, and in the folder for temporary files."""
    told = {}
    folders = {"temporary": os.environ.get("TMPDIR", "/tmp"), **context.config["folders"]}  # noqa: S108 - it is judged
    for name, path in folders.items():
        log.phase(f"look at {path}")
        told[name] = room(Path(path))
    return Rooms(folders=told)


def room(path: Path) -> Room:
    """Room in one folder."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        return Room(path=str(path), why=f"{error.strerror}")
    return Room(
        path=str(path),
        mount=mount_of(path),
        bytes=found.f_blocks * found.f_frsize,
        free_bytes=found.f_bavail * found.f_frsize,
        inodes=found.f_files,
        free_inodes=found.f_favail,
        why=_why_not_writable(path),
    )


def _why_not_writable(path: Path) -> str | None:
    """Write for real: permissions, a read-only mount, a used-up quota and a broken disk all show, and only so."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(_BLOCK)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror
    return None


class SharedView(ProbeAnswer):
    """The shared folder as a node sees it."""

    read: str | None
    """The text of the file that pytest's machine wrote; None if this node does not see it."""
    mount: Mount | None


def shared(context: RankContext, log: ProbeLog) -> SharedView:
    """Read what pytest's machine wrote into a folder, and write there what it is to read.

    `context.config` has the `folder`, the `name` of the file there, and the `token` to write.
    """
    folder = Path(context.config["folder"])
    path = folder / context.config["name"]
    log.phase(f"read {path}")
    deadline = time.monotonic() + _LAG_S
    while not exists_now(path) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    read = path.read_text(encoding="utf-8") if exists_now(path) else None
    log.phase(f"write into {folder}")
    write_text(folder / host_name(), f"{context.config['token']} {host_name()}")
    return SharedView(read=read, mount=mount_of(folder))
