"""Settings of a node that cost speed and break nothing, as the kernel has them."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path
from typing import Any

from pytest_llmbench.checks.host.nodes.files import text_of

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
