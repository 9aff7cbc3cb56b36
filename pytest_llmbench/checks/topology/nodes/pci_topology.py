"""The GPUs and NICs of a node, each with its NUMA node, and the installed NCCL topology file."""

import os
import platform
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog

_DRIVERS = ("nvidia", "mlx5_core", "efa")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.ASCII)
# How /proc/cpuinfo calls what NCCL's file says of a processor.
_CPU = {"vendor": "vendor_id", "familyid": "cpu family", "modelid": "model"}
_LARGEST = 1 << 20


def facts(context: RankContext, log: ProbeLog) -> dict[str, Any]:
    """Answer with what the topology check judges. `config`: `sysfs`, where sysfs is mounted, `$VARIABLES` replaced."""
    root = Path(os.path.expandvars(context.config["sysfs"]))
    log.phase("PCI devices")
    return {"devices": devices(root), "cpu": cpu(), "affinity": affinity(root), "installed": installed()}


def devices(root: Path) -> list[dict[str, Any]]:
    """PCI devices that a GPU's or a NIC's driver has.

    Returns:
        For each `bus`, its address; `driver`; `class`, such as `0x030200`; `numa`, -1 where the machine has no NUMA
        nodes. The last two are None if sysfs does not have them.
    """
    found = [
        {"bus": path.name, "driver": driver, "class": _read(path / "class"), "numa": _integer(path / "numa_node")}
        for driver in _DRIVERS
        for path in sorted((root / "bus/pci/drivers" / driver).glob("*"))
        if _ADDRESS.fullmatch(path.name)
    ]
    return sorted(found, key=lambda device: str(device["bus"]))


def cpu() -> dict[str, str]:
    """Attributes of the processors in NCCL's file: `arch`, and `vendor`, `familyid` and `modelid` if they are known."""
    told = {"arch": platform.machine()}
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        for name, key in _CPU.items():
            if found := re.search(rf"^{key}\s*: (.+)$", text, re.MULTILINE):
                told[name] = found[1].strip()
    return told


def affinity(root: Path) -> dict[str, str]:
    """Masks of the CPUs of each NUMA node, `ffffffff,00000000`, by its number."""
    nodes = (root / "devices/system/node").glob("node[0-9]*")
    masks = {path.name.removeprefix("node"): _read(path / "cpumap") for path in nodes}
    return {number: mask for number, mask in sorted(masks.items()) if mask is not None}


def installed() -> dict[str, Any] | None:
    """The file that NCCL_TOPO_FILE names: its `path`, its `text`, or the `error`; None where nothing names one."""
    path = os.environ.get("NCCL_TOPO_FILE")
    if not path:
        return None
    try:
        with Path(path).open("rb") as file:
            return {"path": path, "text": file.read(_LARGEST).decode(errors="replace"), "error": None}
    except OSError as error:
        return {"path": path, "text": None, "error": error.strerror}


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def _integer(path: Path) -> int | None:
    text = _read(path) or ""
    return int(text) if re.fullmatch(r"-?\d+", text, re.ASCII) else None
