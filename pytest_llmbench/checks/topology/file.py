"""Writing the topology file that NCCL should be given, from what sysfs says of a node's GPUs and NICs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as ET

from pytest_llmbench.core.errors import RunError

_INFINIBAND = "0x0207"
# A machine without NUMA nodes says -1 of all devices; NCCL counts from 0.
_NO_NUMA = -1


def of_interest(devices: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The GPUs, and the NICs that NCCL is to use.

    On a machine with InfiniBand, an Ethernet port of the same driver is the machine's way out, and no data goes there.
    """
    infiniband = any(_is_infiniband(device) for device in devices)
    return [device for device in devices if device["driver"] == "nvidia" or not infiniband or _is_infiniband(device)]


def _is_infiniband(device: Mapping[str, Any]) -> bool:
    return device["driver"] != "nvidia" and str(device["class"]).startswith(_INFINIBAND)


def render(told: Mapping[str, Any], *, link_speed: str, link_width: int) -> str:
    """Write the file: one switch for each NUMA node with devices, and its GPUs and NICs behind it.

    Virtual machines hide the real switches and links. All devices of a NUMA node are near each other there, so that
    is what the file says, at the speed that is given.

    Args:
        told: the answer of `workloads.checks.pci_topology`.
        link_speed: of every switch and device, as sysfs would write it: `16 GT/s`.
        link_width: likewise, lanes.

    Raises:
        RunError: `unreadable`, when sysfs does not say the class or NUMA node of a device.
    """
    devices = of_interest(told["devices"])
    numas = {device["numa"] for device in devices}
    for device in devices:
        if device["class"] is None or device["numa"] is None or (device["numa"] == _NO_NUMA and len(numas) > 1):
            raise RunError("unreadable", f"sysfs does not say the class or the NUMA node of {device['bus']}")
    system = ET.Element("system", version="1")
    link = {"link_speed": link_speed, "link_width": str(link_width)}
    for number, numa in enumerate(sorted(numas), 1):
        node = str(max(0, numa))
        mask = {"affinity": told["affinity"][node]} if node in told["affinity"] else {}
        cpu = ET.SubElement(system, "cpu", {"numaid": node, **mask, **told["cpu"]})
        switch = ET.SubElement(cpu, "pci", {"busid": f"ffff:ff:{number:02x}.0", "class": "0x060400", **link})
        for device in devices:
            if device["numa"] == numa:
                ET.SubElement(switch, "pci", {"busid": device["bus"], "class": device["class"], **link})
    ET.indent(system)
    return ET.tostring(system, encoding="unicode") + "\n"
