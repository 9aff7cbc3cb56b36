"""The GPUs and NICs of a node, each with its NUMA node, and the installed NCCL topology file."""

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from pytest_llmbench.core.files import read_text
from pytest_llmbench.core.wire.answers import ProbeAnswer
from pytest_llmbench.workloads.node.rdma import ADDRESS
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog

_DRIVERS = ("nvidia", "mlx5_core", "efa")
# Attributes of a processor in NCCL's file, by their names in /proc/cpuinfo.
_CPU = {"vendor": "vendor_id", "familyid": "cpu family", "modelid": "model"}
_LARGEST = 1 << 20


class PciDevice(ProbeAnswer):
    """A PCI device bound to the driver of a GPU or a NIC; None for what sysfs lacks."""

    bus: str  # its address
    driver: str
    pci_class: str | None  # such as `0x030200`
    numa: int | None  # its NUMA node, -1 where the machine has none


class InstalledFile(ProbeAnswer):
    """The file that NCCL_TOPO_FILE names: its text, or the error of reading it."""

    path: str
    text: str | None
    error: str | None


class PciFacts(ProbeAnswer):
    """The devices of a node, and the file that describes them to NCCL."""

    devices: tuple[PciDevice, ...]  # GPUs and NICs, by address
    cpu: Mapping[str, str]  # `arch`, and `vendor`, `familyid` and `modelid` if known
    affinity: Mapping[str, str]  # masks of the CPUs, `ffffffff,00000000`, by NUMA node
    installed: InstalledFile | None  # None where the environment names none


def facts(context: RankContext, log: ProbeLog) -> PciFacts:
    """Answer with what the topology check judges. `config`: `sysfs`, where sysfs is mounted, `$VARIABLES` replaced."""
    root = Path(os.path.expandvars(context.config["sysfs"]))
    log.phase("PCI devices")
    return PciFacts(devices=devices(root), cpu=cpu(), affinity=affinity(root), installed=installed())


def devices(root: Path) -> tuple[PciDevice, ...]:
    """PCI devices bound to the driver of a GPU or a NIC, by address."""
    bound = []
    for driver in _DRIVERS:
        for path in (root / "bus/pci/drivers" / driver).glob("*"):
            if ADDRESS.fullmatch(path.name):
                numa = re.fullmatch(r"-?\d+", read_text(path / "numa_node") or "", re.ASCII)
                number = None if numa is None else int(numa[0])
                bound.append(PciDevice(bus=path.name, driver=driver, pci_class=read_text(path / "class"), numa=number))
    return tuple(sorted(bound, key=lambda device: device.bus))


def cpu() -> dict[str, str]:
    """Attributes of the processors in NCCL's file."""
    attributes = {"arch": platform.machine()}
    text = read_text(Path("/proc/cpuinfo")) or ""
    for name, key in _CPU.items():
        if match := re.search(rf"^{key}\s*: (.+)$", text, re.MULTILINE):
            attributes[name] = match[1].strip()
    return attributes


def affinity(root: Path) -> dict[str, str]:
    """Masks of the CPUs of each NUMA node, `ffffffff,00000000`, by its number."""
    nodes = (root / "devices/system/node").glob("node[0-9]*")
    masks = {path.name.removeprefix("node"): read_text(path / "cpumap") for path in nodes}
    return {number: mask for number, mask in sorted(masks.items()) if mask is not None}


def installed() -> InstalledFile | None:
    """The file that NCCL_TOPO_FILE names; None where the variable is unset."""
    path = os.environ.get("NCCL_TOPO_FILE")
    if not path:
        return None
    try:
        with Path(path).open("rb") as file:
            return InstalledFile(path=path, text=file.read(_LARGEST).decode(errors="replace"), error=None)
    except OSError as error:
        return InstalledFile(path=path, text=None, error=error.strerror)
