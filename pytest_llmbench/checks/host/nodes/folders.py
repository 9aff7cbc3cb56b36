"""Folders of a node: their room, the shared folder, and folders of compiled kernels."""

import getpass
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pytest_llmbench.checks.host.nodes.files import Mount, mount_of, names_in
from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.wire.answers import ProbeAnswer
from pytest_llmbench.workloads.node.shared_files import wait_for
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog, host_name

# A file that one machine writes is visible to another a moment later.
LAG_S = 3.0
LOOK_S = 0.1
_BLOCK = b"\0" * 4096


class Room(ProbeAnswer):
    """Room in one folder, free for this user; quotas are unknown. Sizes are None where the folder is missing."""

    path: str
    why: str | None  # a fault of writing; None for a writable folder
    mount: Mount | None = None
    bytes: int | None = None
    free_bytes: int | None = None
    inodes: int = 0  # 0 on a file system that makes inodes as it needs them
    free_inodes: int = 0


class Rooms(ProbeAnswer):
    """Room in the folders of a node, by name."""

    folders: Mapping[str, Room]


class SharedView(ProbeAnswer):
    """The shared folder as a node sees it."""

    read: str | None  # the text of the file that pytest's machine wrote
    mount: Mount | None


class KernelCache(ProbeAnswer):
    """A folder of compiled kernels."""

    folder: str
    mount: Mount | None  # its mount, or that of the nearest existing folder above it
    warm: bool  # whether it holds anything


class KernelCaches(ProbeAnswer):
    """The folders of a node by name."""

    folders: Mapping[str, KernelCache]


def disk(context: RankContext, log: ProbeLog) -> Rooms:
    """Answer with the room in each of `context.config["folders"]`, by name, and in the folder for temporary files."""
    rooms = {}
    folders = {"temporary": os.environ.get("TMPDIR", "/tmp"), **context.config["folders"]}  # noqa: S108 - it is judged
    for name, path in folders.items():
        log.phase(f"look at {path}")
        rooms[name] = room(Path(path))
    return Rooms(folders=rooms)


def room(path: Path) -> Room:
    """Room in one folder."""
    try:
        stat = os.statvfs(path)
    except OSError as error:
        return Room(path=str(path), why=f"{error.strerror}")
    return Room(
        path=str(path), mount=mount_of(path), bytes=stat.f_blocks * stat.f_frsize,
        free_bytes=stat.f_bavail * stat.f_frsize, inodes=stat.f_files, free_inodes=stat.f_favail,
        why=_why_not_writable(path),
    )  # fmt: skip


def _why_not_writable(path: Path) -> str | None:
    """Write a file: it shows missing permissions, a read-only mount, a used-up quota and a broken disk."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(_BLOCK)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror
    return None


def shared(context: RankContext, log: ProbeLog) -> SharedView:
    """Read the file of pytest's machine in a folder, and write one for it there.

    `context.config` has the `folder`, the `name` of the file there, and the `mark` to write.
    """
    folder = Path(context.config["folder"])
    path = folder / context.config["name"]
    log.phase(f"read {path}")
    read = path.read_text(encoding="utf-8") if wait_for(path, LAG_S, LOOK_S, LOOK_S) else None
    log.phase(f"write into {folder}")
    write_text(folder / host_name(), f"{context.config['mark']} {host_name()}")
    return SharedView(read=read, mount=mount_of(folder))


def caches(context: RankContext, log: ProbeLog) -> KernelCaches:
    """Describe this rank's own folders, and those that environments name: `context.config["folders"]`."""
    found = {}
    named = {name: Path(path) for name, path in context.config["folders"].items()}
    for name, folder in {**cache_folders(os.environ), **named}.items():
        log.phase(f"look at {folder}")
        found[name] = KernelCache(folder=str(folder), mount=mount_of(nearest(folder)), warm=bool(names_in(folder)))
    return KernelCaches(folders=found)


def cache_folders(environ: Mapping[str, str]) -> dict[str, Path]:
    """Folders in which PyTorch, Triton and CUDA keep compiled kernels, by the variable that moves it."""
    home = environ.get("HOME") or str(Path.home())
    usual = {
        "TORCH_EXTENSIONS_DIR": Path(environ.get("XDG_CACHE_HOME") or f"{home}/.cache", "torch_extensions"),
        "TRITON_CACHE_DIR": Path(environ.get("TRITON_HOME") or home, ".triton", "cache"),
        "CUDA_CACHE_PATH": Path(home, ".nv", "ComputeCache"),
        "TORCHINDUCTOR_CACHE_DIR": Path(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}"),
    }
    return {name: Path(environ.get(name) or folder) for name, folder in usual.items()}


def nearest(folder: Path) -> Path:
    """The folder, or the nearest existing one above it, on whose file system it will be made."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
