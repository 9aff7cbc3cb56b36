"""NCCL's topology file: which PCI devices are near which processors, as it is read, and as it should be written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree as ET

from pytest_llmbench.checks.topology.nodes.pci_topology import PciDevice, PciFacts
from pytest_llmbench.core.errors import RunError
from pytest_llmbench.readers.pci import pci_address

# Addresses of switches are made up in such files: what counts is which devices share one.
_SWITCH = "0x0604"
_MASK = "affinity"


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuTopology:
    """The content of a file, without its order.

    Attributes:
        devices: attributes of each device (`class`, `link_speed`, ...) by PCI address.
        numa: the NUMA node of each device, by PCI address.
        switch: PCI addresses of the devices that share a switch with each device, this one among them.
        cpus: attributes of the processors by NUMA node.
    """

    devices: dict[str, Mapping[str, str]] = field(default_factory=dict)
    numa: dict[str, str] = field(default_factory=dict)
    switch: dict[str, frozenset[str]] = field(default_factory=dict)
    cpus: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def differences(self, truth: GpuTopology, *, ignoring: frozenset[str] = frozenset()) -> Iterator[str]:
        """Yield in what this differs from the truth, in words.

        It may list more switches than the truth, which then were hidden from the observer. An attribute that one of
        them leaves out does not count, nor does one of a device that `ignoring` names.
        """
        for bus in sorted(truth.devices.keys() - self.devices.keys()):
            yield f"{bus} is missing"
        for bus in sorted(self.devices.keys() - truth.devices.keys()):
            yield f"{bus} is extra"
        common = self.devices.keys() & truth.devices.keys()
        for bus in sorted(common):
            if self.numa[bus] != truth.numa[bus]:
                yield f"{bus} is at NUMA node {self.numa[bus]}, not {truth.numa[bus]}"
            strangers = (self.switch[bus] & common) - truth.switch[bus]
            if strangers:
                yield f"{bus} is behind one switch with {', '.join(sorted(strangers))}"
            yield from _unlike(bus, self.devices[bus], truth.devices[bus], ignoring)
        for numa in sorted(self.cpus.keys() & truth.cpus.keys()):
            yield from _unlike(f"cpu {numa}", self.cpus[numa], truth.cpus[numa], frozenset())


def read_topology(text: str) -> GpuTopology:
    """Read a topology file.

    Raises:
        RunError: `unreadable`, when it is not an XML of a system, or a device has no address or is there twice.
    """
    try:
        system = ET.fromstring(text)  # noqa: S314 - a file of the node's own administrators
    except ET.ParseError as error:
        raise RunError("unreadable", f"it is not XML: {error}") from error
    if system.tag != "system":
        raise RunError("unreadable", f"its root is <{system.tag}>, not <system>")
    found = GpuTopology()
    for cpu in system.iter("cpu"):
        numa = cpu.get("numaid", "")
        found.cpus[numa] = {name: _value(name, value) for name, value in cpu.attrib.items() if name != "numaid"}
        _devices(cpu, numa, found)
    return found


def _devices(parent: ET.Element, numa: str, found: GpuTopology) -> None:
    """Note the devices below a processor or a switch; those directly below it share it."""
    children = parent.findall("pci")
    here = [child for child in children if not _is_switch(child)]
    shared = frozenset(pci_address(child.get("busid", "")) for child in here)
    for child in here:
        bus = pci_address(child.get("busid", ""))
        if not bus or bus in found.devices:
            raise RunError("unreadable", f"device {bus or 'without busid'} is there twice or has no address")
        found.devices[bus] = {name: value.strip() for name, value in child.attrib.items() if name != "busid"}
        found.numa[bus] = numa
        found.switch[bus] = shared
    for child in children:
        if _is_switch(child):
            _devices(child, numa, found)


def _is_switch(pci: ET.Element) -> bool:
    return pci.get("class", "").startswith(_SWITCH) or pci.find("pci") is not None


def _value(name: str, text: str) -> str:
    """An attribute of a processor; masks are written with and without commas and leading zeros."""
    if name != _MASK:
        return text.strip()
    return text.replace(",", "").strip().lstrip("0").lower() or "0"


def _unlike(what: str, here: Mapping[str, str], truth: Mapping[str, str], ignoring: frozenset[str]) -> Iterator[str]:
    for name in sorted((here.keys() & truth.keys()) - ignoring):
        if here[name] != truth[name]:
            yield f"{what} has {name} {here[name]}, not {truth[name]}"


_INFINIBAND = "0x0207"
# A machine without NUMA nodes says -1 of all devices; NCCL counts from 0.
_NO_NUMA = -1


def of_interest(devices: Sequence[PciDevice]) -> list[PciDevice]:
    """The GPUs, and the NICs that NCCL is to use.

    On a machine with InfiniBand, an Ethernet port of the same driver is the machine's way out, and no data goes there.
    """
    infiniband = any(_is_infiniband(device) for device in devices)
    return [device for device in devices if device.driver == "nvidia" or not infiniband or _is_infiniband(device)]


def _is_infiniband(device: PciDevice) -> bool:
    return device.driver != "nvidia" and (device.pci_class or "").startswith(_INFINIBAND)


def render(told: PciFacts, *, link_speed: str, link_width: int) -> str:
    """Write the file: one switch for each NUMA node with devices, and its GPUs and NICs behind it.

    Virtual machines hide the real switches and links. All devices of a NUMA node are near each other there, so that
    is what the file says, at the given speed, as sysfs would write it (`16 GT/s`), and width in lanes.

    Raises:
        RunError: `unreadable`, when sysfs does not say the class or NUMA node of a device.
    """
    devices = of_interest(told.devices)
    several = len({device.numa for device in devices}) > 1
    placed: dict[int, list[dict[str, str]]] = {}
    for device in devices:
        if device.pci_class is None or device.numa is None or (device.numa == _NO_NUMA and several):
            raise RunError("unreadable", f"sysfs does not say the class or the NUMA node of {device.bus}")
        placed.setdefault(device.numa, []).append({"busid": device.bus, "class": device.pci_class})
    system = ET.Element("system", version="1")
    link = {"link_speed": link_speed, "link_width": str(link_width)}
    for number, numa in enumerate(sorted(placed), 1):
        node = str(max(0, numa))
        mask = {"affinity": told.affinity[node]} if node in told.affinity else {}
        cpu = ET.SubElement(system, "cpu", {"numaid": node, **mask, **told.cpu})
        switch = ET.SubElement(cpu, "pci", {"busid": f"ffff:ff:{number:02x}.0", "class": "0x060400", **link})
        for attributes in placed[numa]:
            ET.SubElement(switch, "pci", {**attributes, **link})
    ET.indent(system)
    return ET.tostring(system, encoding="unicode") + "\n"
