"""How a node's clock stands against the one that stamps the files of the shared folder."""

import ctypes
import os
import time
from pathlib import Path

from pytest_llmbench.checks.host.nodes.files import Mount, mount_of
from pytest_llmbench.core.wire.answers import ProbeAnswer
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog, host_name

_TIMES = 5
_UNSYNCHRONISED = 0x0040


class _Timex(ctypes.Structure):
    """`struct timex` of `<sys/timex.h>`: all fields, because the kernel writes them all."""

    _fields_ = [
        ("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long), ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long), ("status", ctypes.c_int), ("constant", ctypes.c_long),
        ("precision", ctypes.c_long), ("tolerance", ctypes.c_long), ("seconds", ctypes.c_long),
        ("microseconds", ctypes.c_long), ("tick", ctypes.c_long), ("pps", ctypes.c_long * 2), ("shift", ctypes.c_int),
        ("statistics", ctypes.c_long * 5), ("tai", ctypes.c_int), ("padding", ctypes.c_int * 11),
    ]  # fmt: skip


class KernelClock(ProbeAnswer):
    """The kernel's word on its clock."""

    synchronised: bool
    """Whether a program keeps it (NTP, chrony, timesyncd, PTP)."""
    max_error_s: float


class NodeClock(ProbeAnswer):
    """A node's clock."""

    time: float
    """Unix time."""
    ahead_s: float
    """Lead over the stamp of a file just touched, seconds."""
    uncertainty_s: float
    """Largest error of that."""
    mount: Mount | None
    kernel: KernelClock | None
    """None where the kernel does not say."""


def clock(context: RankContext, log: ProbeLog) -> NodeClock:
    """Answer with this node's clock."""
    folder = Path(context.config["folder"])
    path = folder / f"clock-{host_name()}"
    log.phase(f"touch {path}")
    path.touch()
    # The quickest of several tells most: the stamp was made somewhere between the two readings.
    uncertainty, skew = min(_ahead_of(path) for _ in range(_TIMES))
    return NodeClock(
        time=time.time(), ahead_s=skew, uncertainty_s=uncertainty, mount=mount_of(folder), kernel=synchronised()
    )


def _ahead_of(path: Path) -> tuple[float, float]:
    """Half the time that a touch took, and how far this clock is ahead of the file's stamp, seconds."""
    before = time.time()
    os.utime(path)  # without a time: an NFS client then has the server take its own
    after = time.time()
    return (after - before) / 2, (before + after) / 2 - path.stat().st_mtime


def synchronised() -> KernelClock | None:
    """The kernel's word on its clock; None where it has none."""
    told = _Timex()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(told))
    except (OSError, AttributeError):
        return None
    if state < 0:
        return None
    return KernelClock(synchronised=not told.status & _UNSYNCHRONISED, max_error_s=told.maxerror / 1e6)
