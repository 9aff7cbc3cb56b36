"""Check of NCCL's topology file, which lists GPUs and NICs that are close: correct, and equal on all nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree as ET

from pydantic import PositiveInt

from pytest_llmbench.checks.answers import dissenters, read_per_host
from pytest_llmbench.checks.base import CheckDefaults, CheckSettings, Fleet, options_of
from pytest_llmbench.checks.findings import FindingMaker, SharedKind, make_finding
from pytest_llmbench.checks.topology.nodes.pci_topology import InstalledFile, PciDevice, PciFacts
from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.quantity import listed
from pytest_llmbench.core.record.health import Finding, Report, Severity
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.readers.pci import pci_address

TopologyKind = Literal["topology_file"]
finding: FindingMaker[TopologyKind | SharedKind] = make_finding

_MOST_NAMED = 8
_LINK_SPEED = "16 GT/s"
# PCI classes. Addresses of switches are made up in topology files: what counts is which devices share one.
_SWITCH, _INFINIBAND = "0x0604", "0x0207"
# The NUMA node of all devices of a machine without NUMA nodes; NCCL counts from 0.
_NO_NUMA = -1


class TopologyOptions(Strict):
    """How the file is written."""

    link_speed: str | None = None
    """Speed of the PCIe links in the written file, as sysfs writes it.

    Absent, `16 GT/s` is written, and speeds in installed files are not judged.
    """
    link_width: PositiveInt = 16
    """Number of lanes of the PCIe links in the written file."""
    sysfs: str = "/sys"
    """Folder of sysfs on the nodes."""


class NcclTopology(CheckDefaults):
    """The topology file that NCCL_TOPO_FILE names, against sysfs, and nodes against each other."""

    name = "nccl_topology"
    family = "topology"
    summary = "GPUs and NICs by NUMA node: the same on all nodes, and as NCCL's topology file says"
    options: type[Strict] = TopologyOptions
    deadline_s = 60.0

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        options = options_of(self, settings, TopologyOptions)
        config = {"sysfs": options.sysfs}
        probe = self.probe(settings, "pci_topology:facts", config, name="pci-topology", gpus=True)
        facts, unjudged = read_per_host(fleet.once(probe), PciFacts)
        evidence = {"pci": {host: node.model_dump(exclude={"installed": {"text"}}) for host, node in facts.items()}}
        files: dict[str, str] = {}
        skipped: dict[str, str] = {}
        for host, node in facts.items():
            gpus = sum(device.driver == "nvidia" for device in node.devices)
            if gpus < fleet.site.gpus_per_node:
                unjudged[host] = f"sysfs lists {gpus} GPUs of the nvidia driver, {fleet.site.gpus_per_node} expected"
            elif not node.devices:
                skipped[host] = "no GPU, and no NIC of the drivers mlx5_core and efa"
            else:
                try:
                    speed = options.link_speed or _LINK_SPEED
                    files[host] = render(node, link_speed=speed, link_width=options.link_width)
                except RunError as error:
                    unjudged[host] = str(error)
        if facts and len(skipped) == len(fleet.hosts):
            return Report(skip="no node has a GPU or a NIC for NCCL", evidence=evidence)
        kept = _write_files(files, facts, fleet.folder)
        ignoring = frozenset({"link_speed"} if options.link_speed is None else ())
        findings = [*_compare_nodes(files, kept)]
        for host, file in files.items():
            findings += _compare_installed(host, facts[host].installed, file, kept[host], ignoring)
        installed = sum(node.installed is not None for node in facts.values())
        notes = [f"NCCL_TOPO_FILE names a file on {installed} of {len(facts)} nodes"]
        if kept:
            notes.append(f"files that fit: {', '.join(sorted({str(path) for path in kept.values()}))}")
        return Report(
            findings=tuple(findings), unjudged=unjudged, skipped=skipped, notes=tuple(notes), evidence=evidence
        )


def _write_files(files: Mapping[str, str], facts: Mapping[str, PciFacts], folder: Path) -> dict[str, Path]:
    """Write the files to install: one for the nodes that agree, and one for each dissenter."""
    odd = dissenters(files)
    kept: dict[str, Path] = {}
    for host, text in files.items():
        installed = facts[host].installed
        name = Path(installed.path).name if installed else "nccl-topo.xml"
        kept[host] = folder / (f"{host}-{name}" if odd is None or host in odd else name)
        write_text(kept[host], text)
    return kept


def _compare_nodes(files: Mapping[str, str], kept: Mapping[str, Path]) -> Iterator[Finding]:
    if len(set(files.values())) < 2:
        return
    odd = dissenters(files)
    usual = next(host for host in files if odd is None or host not in odd)
    for host in files if odd is None else odd:
        other = usual if host != usual else next(name for name in files if files[name] != files[host])
        differences = list(read_topology(files[host]).differences(read_topology(files[other])))
        if not differences:  # the files differ in an attribute of processors that one node lacks
            continue
        message = f"differs from {other}: {listed(differences, _MOST_NAMED, '; ')}"
        message += "; the right node is unknown" if odd is None else ""
        action = f"see why the devices of this node are others; a file for it alone is {kept[host]}"
        lacks = any(difference.endswith("is missing") for difference in differences)
        severity = Severity.ISOLATE if lacks and odd is not None else Severity.CONFIGURE
        #: finding unlike_others: a property differs between nodes or GPUs
        yield finding(host, "PCI devices", "unlike_others", severity, message, action)


def _compare_installed(
    host: str, installed: InstalledFile | None, file: str, kept: Path, ignoring: frozenset[str]
) -> Iterator[Finding]:
    """Yield a finding if the file that NCCL reads is unreadable or contradicts the node."""
    if installed is None:
        return
    if installed.text is None:
        fault = f"cannot be read: {installed.error}"
    else:
        try:
            differences = list(read_topology(installed.text).differences(read_topology(file), ignoring=ignoring))
        except RunError as error:
            fault = f"is not a topology file: {error}"
        else:
            if not differences:
                return
            fault = f"does not fit this node: {listed(differences, _MOST_NAMED, '; ')}"
    action = f"copy {kept} to {installed.path} on the node"
    #: finding topology_file: the file of `NCCL_TOPO_FILE` is wrong
    yield finding(host, installed.path, "topology_file", Severity.CONFIGURE, f"NCCL_TOPO_FILE {fault}", action)


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuTopology:
    """The content of a topology file, without its order."""

    # Attributes of each device (`class`, `link_speed`, ...) by PCI address.
    devices: dict[str, Mapping[str, str]] = field(default_factory=dict)
    numa: dict[str, str] = field(default_factory=dict)  # the NUMA node of each device, by PCI address
    # PCI addresses of the devices behind the same switch as each device, itself included.
    switch: dict[str, frozenset[str]] = field(default_factory=dict)
    cpus: dict[str, Mapping[str, str]] = field(default_factory=dict)  # attributes of the processors by NUMA node

    def differences(self, truth: GpuTopology, *, ignoring: frozenset[str] = frozenset()) -> Iterator[str]:
        """Yield the differences from the truth, in words.

        Further switches are accepted: a virtual machine hides them from the observer. An attribute counts only where
        both have it, and `ignoring` names those of devices to leave out.
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
            yield from _compare_attributes(bus, self.devices[bus], truth.devices[bus], ignoring)
        for numa in sorted(self.cpus.keys() & truth.cpus.keys()):
            yield from _compare_attributes(f"cpu {numa}", self.cpus[numa], truth.cpus[numa], frozenset())


def _compare_attributes(
    what: str, here: Mapping[str, str], truth: Mapping[str, str], ignoring: frozenset[str]
) -> Iterator[str]:
    for name in sorted((here.keys() & truth.keys()) - ignoring):
        if here[name] != truth[name]:
            yield f"{what} has {name} {here[name]}, not {truth[name]}"


def read_topology(text: str) -> GpuTopology:
    """Read a topology file.

    Raises RunError `unreadable` if it is not the XML of a system, or a device lacks an address or is listed twice.
    """
    try:
        system = ET.fromstring(text)  # noqa: S314 - a file of the node's own administrators
    except ET.ParseError as error:
        raise RunError("unreadable", f"it is not XML: {error}") from error
    if system.tag != "system":
        raise RunError("unreadable", f"its root is <{system.tag}>, not <system>")
    topology = GpuTopology()
    for cpu in system.iter("cpu"):
        numa = cpu.get("numaid", "")
        topology.cpus[numa] = {name: _normalize(name, text) for name, text in cpu.attrib.items() if name != "numaid"}
        _add_devices(cpu, numa, topology)
    return topology


def _add_devices(parent: ET.Element, numa: str, topology: GpuTopology) -> None:
    """Add the devices below a processor or a switch; those directly below it share it."""
    switches = [child for child in parent.findall("pci") if _is_switch(child)]
    devices = [child for child in parent.findall("pci") if not _is_switch(child)]
    shared = frozenset(pci_address(device.get("busid", "")) for device in devices)
    for device in devices:
        bus = pci_address(device.get("busid", ""))
        if not bus or bus in topology.devices:
            raise RunError("unreadable", f"device {bus} is listed twice" if bus else "a device has no busid")
        topology.devices[bus] = {name: value.strip() for name, value in device.attrib.items() if name != "busid"}
        topology.numa[bus], topology.switch[bus] = numa, shared
    for switch in switches:
        _add_devices(switch, numa, topology)


def _is_switch(pci: ET.Element) -> bool:
    return pci.get("class", "").startswith(_SWITCH) or pci.find("pci") is not None


def _normalize(name: str, text: str) -> str:
    """An attribute of a processor; masks are written with and without commas and leading zeros."""
    return text.strip() if name != "affinity" else text.replace(",", "").strip().lstrip("0").lower() or "0"


def select_devices(devices: Sequence[PciDevice]) -> list[PciDevice]:
    """The GPUs, and the NICs that NCCL is to use.

    On a machine with InfiniBand, an Ethernet port of the same driver is for management alone.
    """
    infiniband = {device.bus for device in devices if (device.pci_class or "").startswith(_INFINIBAND)}
    return [device for device in devices if device.driver == "nvidia" or not infiniband or device.bus in infiniband]


def render(facts: PciFacts, *, link_speed: str, link_width: int) -> str:
    """Write the file: one switch for each NUMA node with devices, and its GPUs and NICs behind it.

    Virtual machines hide the real switches and links, and all devices of a NUMA node are near each other there. The
    speed is as sysfs writes it (`16 GT/s`), the width in lanes. Raises RunError `unreadable` if sysfs lacks the class
    or NUMA node of a device.
    """
    devices = select_devices(facts.devices)
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
        mask = {"affinity": facts.affinity[node]} if node in facts.affinity else {}
        cpu = ET.SubElement(system, "cpu", {"numaid": node, **mask, **facts.cpu})
        switch = ET.SubElement(cpu, "pci", {"busid": f"ffff:ff:{number:02x}.0", "class": "0x060400", **link})
        for attributes in placed[numa]:
            ET.SubElement(switch, "pci", {**attributes, **link})
    ET.indent(system)
    return ET.tostring(system, encoding="unicode") + "\n"
