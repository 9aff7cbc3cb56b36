"""Facts of a node as a host and its settings, for all checks that judge hosts. Standard library alone, and quick."""

from __future__ import annotations

import os
import resource
import struct
from collections import Counter
from pathlib import Path
from typing import Any

from pytest_llmbench.checks.host.nodes.files import names_in, text_of
from pytest_llmbench.checks.host.nodes.software import container_runtime, software
from pytest_llmbench.workloads.node.files import wrong_with
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog

_BRIDGE = "0x0604"
_EXTENDED, _ACS = 0x100, 0x000D
# Request and completion redirect: traffic between two devices goes up to the root complex and down again.
_REDIRECT = 0x4 | 0x8


def tuning(root: Path) -> dict[str, Any]:
    """Facts by name; None where the kernel does not say."""
    cpus, memory = root / "sys/devices/system/cpu", root / "sys/devices/system/node"
    return {
        "iommu_options": iommu_options(text_of(root / "proc/cmdline") or ""),
        "transparent_hugepage": text_of(root / "sys/kernel/mm/transparent_hugepage/enabled"),
        "numa_balancing": text_of(root / "proc/sys/kernel/numa_balancing"),
        "numa_nodes": len(list(memory.glob("node[0-9]*"))),
        "governors": _count(cpus.glob("cpu[0-9]*/cpufreq/scaling_governor")),
        "iommu_groups": _count((root / "sys/kernel/iommu_groups").glob("*/type")),
        "acs": redirecting_bridges(root),
    }


def iommu_options(cmdline: str) -> list[str]:
    """The words about the IOMMU on the kernel's command line; the others may be confidential."""
    return [word for word in cmdline.split() if "iommu" in word]


def redirecting_bridges(root: Path) -> list[str] | None:
    """Addresses of PCI bridges that redirect traffic between devices; None where only root could read it."""
    found, unread = [], False
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        if (text_of(device / "class") or "").startswith(_BRIDGE):
            try:
                space = (device / "config").read_bytes()
            except OSError:
                space = b""
            unread |= len(space) <= _EXTENDED
            if acs_control(space) & _REDIRECT:
                found.append(device.name)
    return None if unread and not found else found


def acs_control(space: bytes) -> int:
    """The control register of Access Control Services in a PCI device's configuration space; 0 where it has none."""
    at, seen = _EXTENDED, set[int]()
    while _EXTENDED <= at <= len(space) - 8 and at not in seen:
        seen.add(at)
        (header,) = struct.unpack_from("<I", space, at)
        if header & 0xFFFF == _ACS:
            return int(struct.unpack_from("<H", space, at + 6)[0])
        at = header >> 20
    return 0


def _count(files: Any) -> dict[str, int]:
    """How many of some files hold which text."""
    return dict(Counter(text for path in files if (text := text_of(path)) is not None))


_LIMITS = {"nofile": resource.RLIMIT_NOFILE, "memlock": resource.RLIMIT_MEMLOCK, "nproc": resource.RLIMIT_NPROC}


def facts(context: RankContext, log: ProbeLog) -> dict[str, Any]:
    """Answer with the facts that the host checks judge.

    `context.config` has `runtimes`, the container runtimes to ask for, and `paths`, the files and folders to look for.
    A path of a file server that is silent hangs, and then the phase names it.
    """
    root = Path("/")
    log.phase("limits, memory and tuning")
    told: dict[str, Any] = {
        "limits": limits(root),
        "meminfo": text_of(root / "proc/meminfo"),
        "interfaces": interfaces(root),
        "infiniband": names_in(root / "sys/class/infiniband"),
        "tuning": tuning(root),
    }
    log.phase("software")
    told["software"] = software(root)
    told["containers"] = {}
    for runtime in context.config["runtimes"]:
        log.phase(f"container runtime {runtime}")
        told["containers"][runtime] = container_runtime(runtime, root)
    told["paths"] = {}
    for path in context.config["paths"]:
        log.phase(f"look at {path}")
        told["paths"][path] = wrong_with(path)
    return told


def limits(root: Path) -> dict[str, Any]:
    """Soft and hard limits of this process by name (None: unlimited), and what they have to be enough for."""
    both = {name: resource.getrlimit(number) for name, number in _LIMITS.items()}
    return {
        "soft": {name: _limit(soft) for name, (soft, _) in both.items()},
        "hard": {name: _limit(hard) for name, (_, hard) in both.items()},
        "cpus": os.cpu_count(),
        "uid": os.geteuid(),
        "capabilities": capabilities(text_of(root / "proc/self/status") or ""),
    }


def _limit(number: int) -> int | None:
    return None if number == resource.RLIM_INFINITY else number


def capabilities(status: str) -> int:
    """The effective capabilities of a process as a bit mask, from the text of its `/proc/PID/status`; 0 for none."""
    found = (line.partition(":")[2] for line in status.splitlines() if line.startswith("CapEff:"))
    return int(next(found, "0").strip() or "0", 16)


def interfaces(root: Path) -> dict[str, str]:
    """Network interfaces and their state: `up`, `down`, or `unknown` where the driver keeps none, as for `lo`."""
    folder = root / "sys/class/net"
    return {name: text_of(folder / name / "operstate") or "unknown" for name in names_in(folder)}
