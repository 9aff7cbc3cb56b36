"""The folders of a node's compiled kernels: three short probes find the other nodes that use the same folders.

`mark` leaves a file in each folder, `look` says whose files are there, `sweep` takes them away again. They are apart
because every node has to be done with one before any begins the next.
"""

import getpass
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pytest_llmbench.checks.host.nodes.files import Mount, mount_of, names_in, text_of
from pytest_llmbench.core.wire.answers import ProbeAnswer
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog, host_name

_MARK = ".llmbench-"


class KernelCache(ProbeAnswer):
    """A folder of compiled kernels."""

    folder: str
    mount: Mount | None
    """Its mount, or that of the nearest folder above it that is there."""
    warm: bool
    """Whether anything lies in it."""
    marked: bool
    """Whether this node left its mark in it."""


class KernelCaches(ProbeAnswer):
    """The folders of a node by name; `boot` names its kernel's start, which two nodes do not share."""

    boot: str | None
    folders: Mapping[str, KernelCache]


class CacheMarks(ProbeAnswer):
    """The hosts whose marks lie in each folder, by the folder's name."""

    marks: Mapping[str, tuple[str, ...]]


def mark(context: RankContext, log: ProbeLog) -> KernelCaches:
    """Describe each folder, and leave a mark in it where `context.config` has a `token`."""
    token = context.config.get("token")
    told = {}
    for name, folder in _folders(context).items():
        log.phase(f"look at {folder}")
        there = nearest(folder)
        told[name] = KernelCache(
            folder=str(folder),
            mount=mount_of(there),
            warm=is_warm(folder),
            marked=token is not None and _leave(there / _mark(token, host_name())),
        )
    return KernelCaches(boot=text_of(Path("/proc/sys/kernel/random/boot_id")), folders=told)


def look(context: RankContext, log: ProbeLog) -> CacheMarks:
    """Say whose marks lie in each folder."""
    start = _mark(context.config["token"], "")
    told = {}
    for name, folder in _folders(context).items():
        log.phase(f"look at {folder}")
        names = [each for each in names_in(nearest(folder)) if each.startswith(start)]
        told[name] = tuple(sorted(each.removeprefix(start) for each in names))
    return CacheMarks(marks=told)


def sweep(context: RankContext, log: ProbeLog) -> ProbeAnswer:
    """Take this node's marks away."""
    for folder in _folders(context).values():
        log.phase(f"clean {folder}")
        with suppress(OSError):
            (nearest(folder) / _mark(context.config["token"], host_name())).unlink()
    return ProbeAnswer()


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
    """The folder, or the nearest one above it that is there: what is made in that later is shared as that is."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())


def is_warm(folder: Path) -> bool:
    """Whether anything lies in it, marks apart."""
    return any(not name.startswith(_MARK) for name in names_in(folder))


def _folders(context: RankContext) -> dict[str, Path]:
    """This rank's own folders, and those that environments of the system's file name."""
    return cache_folders(os.environ) | {name: Path(path) for name, path in context.config["folders"].items()}


def _mark(token: str, host: str) -> str:
    return f"{_MARK}{token}-{host}"


def _leave(path: Path) -> bool:
    try:
        path.touch()
    except OSError:
        return False
    return True
