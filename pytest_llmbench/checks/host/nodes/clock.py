"""A node's clock against the one that stamps the files of the shared folder."""

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
    """The kernel's report on its clock."""

    synchronised: bool  # by NTP, chrony, timesyncd or PTP
    max_error_s: float


class NodeClock(ProbeAnswer):
    """A node's clock."""

    time: float  # Unix time
    ahead_s: float  # lead over the stamp of a file just touched, seconds
    uncertainty_s: float  # largest error of that
    mount: Mount | None
    kernel: KernelClock | None  # None without a report


def clock(context: RankContext, log: ProbeLog) -> NodeClock:
    """Answer with this node's clock. `context.config` has the shared `folder`."""
    folder = Path(context.config["folder"])
    path = folder / f"clock-{host_name()}"
    log.phase(f"touch {path}")
    path.touch()
    # The stamp was made somewhere between the two readings, so the quickest of several is the most exact.
    uncertainty, lead = min(_measure_lead(path) for _ in range(_TIMES))
    return NodeClock(
        time=time.time(), ahead_s=lead, uncertainty_s=uncertainty, mount=mount_of(folder), kernel=kernel_clock()
    )


def _measure_lead(path: Path) -> tuple[float, float]:
    """Half the time that a touch took, and the lead of this clock over the file's stamp, seconds."""
    before = time.time()
    os.utime(path)  # without a time: an NFS client then has the server take its own
    after = time.time()
    return (after - before) / 2, (before + after) / 2 - path.stat().st_mtime


def kernel_clock() -> KernelClock | None:
    """The kernel's report on its clock; None without one."""
    timex = _Timex()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        return None
    if state < 0:
        return None
    return KernelClock(synchronised=not timex.status & _UNSYNCHRONISED, max_error_s=timex.maxerror / 1e6)
