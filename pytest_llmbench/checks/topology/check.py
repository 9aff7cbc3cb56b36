"""Topology: is NCCL told the truth about which GPUs and NICs are near each other, and the same on every node?"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import PositiveInt

from pytest_llmbench.checks.answers import dissenters, read_per_host
from pytest_llmbench.checks.base import CheckSettings, Fleet, NodeCheck, Probe, Site, deadline_of, options_of
from pytest_llmbench.checks.topology.kinds import finding
from pytest_llmbench.checks.topology.nodes.pci_topology import InstalledFile, PciFacts
from pytest_llmbench.checks.topology.report import read_topology, render
from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.record.health import Finding, Report, Severity
from pytest_llmbench.core.schema import Strict

_FACTS = "pytest_llmbench.checks.topology.nodes.pci_topology:facts"
_MOST_TOLD = 8
_SPEED = "16 GT/s"


class TopologyOptions(Strict):
    """How the file is written."""

    link_speed: str | None = None
    """Speed of the PCIe links in the file that fits, as sysfs writes it; absent, `16 GT/s` is written, and speeds in
    installed files are not judged.
    """
    link_width: PositiveInt = 16
    """Lanes of these links."""
    sysfs: str = "/sys"
    """Folder of sysfs on the nodes."""


@dataclass(kw_only=True, slots=True)
class _NodeFiles:
    """Files to give NCCL by host, and hosts for which there is none, with the reason."""

    files: dict[str, str] = field(default_factory=dict)
    unjudged: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


class NcclTopology(NodeCheck):
    """The topology file that NCCL_TOPO_FILE names, against what sysfs says, and nodes against each other."""

    name = "nccl_topology"
    family = "topology"
    summary = "GPUs and NICs by NUMA node: the same on all nodes, and as NCCL's topology file says"
    options: type[Strict] = TopologyOptions
    deadline_s = 60.0

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        """Ask every node, write the file that fits, and compare."""
        options = options_of(self, settings, TopologyOptions)
        config = {"sysfs": options.sysfs}
        probe = Probe(
            name="pci-topology", entry=_FACTS, deadline_s=deadline_of(self, settings), config=config, gpus=True
        )
        told, silent = read_per_host(fleet.once(probe), PciFacts)
        seen = _look(told, fleet.site, options)
        evidence = {"pci": {host: answer.model_dump(exclude={"installed": {"text"}}) for host, answer in told.items()}}
        if told and not silent and len(seen.skipped) == len(told):
            return Report(skip="no node has a GPU or a NIC for NCCL", evidence=evidence)
        kept = _keep(seen.files, told, fleet.folder)
        ignoring = frozenset({"link_speed"} if options.link_speed is None else ())
        findings = [
            *_unlike_others(seen.files, kept),
            *(
                found
                for host in seen.files
                for found in _installed(host, told[host].installed, seen.files[host], kept[host], ignoring)
            ),
        ]
        named = [host for host, answer in told.items() if answer.installed is not None]
        notes = [f"NCCL_TOPO_FILE names a file on {len(named)} of {len(told)} nodes"]
        if kept:
            notes.append(f"files that fit: {', '.join(sorted({str(path) for path in kept.values()}))}")
        return Report(
            findings=tuple(findings),
            unjudged={**silent, **seen.unjudged},
            skipped=seen.skipped,
            notes=tuple(notes),
            evidence=evidence,
        )


def _look(told: Mapping[str, PciFacts], site: Site, options: TopologyOptions) -> _NodeFiles:
    seen = _NodeFiles()
    for host, answer in told.items():
        gpus = sum(device.driver == "nvidia" for device in answer.devices)
        if gpus < site.gpus_per_node:
            seen.unjudged[host] = f"sysfs lists {gpus} GPUs of the nvidia driver, {site.gpus_per_node} expected"
        elif not answer.devices:
            seen.skipped[host] = "no GPU, and no NIC of the drivers mlx5_core and efa"
        else:
            try:
                seen.files[host] = render(
                    answer, link_speed=options.link_speed or _SPEED, link_width=options.link_width
                )
            except RunError as error:
                seen.unjudged[host] = str(error)
    return seen


def _keep(files: Mapping[str, str], told: Mapping[str, PciFacts], folder: Path) -> dict[str, Path]:
    """Write the files to install: one for the nodes that agree, one for each that does not."""
    alone = dissenters(files)
    kept: dict[str, Path] = {}
    for host, text in files.items():
        installed = told[host].installed
        name = Path(installed.path).name if installed else "nccl-topo.xml"
        path = folder / (f"{host}-{name}" if alone is None or host in alone else name)
        write_text(path, text)
        kept[host] = path
    return kept


def _unlike_others(files: Mapping[str, str], kept: Mapping[str, Path]) -> Iterator[Finding]:
    """Nodes of one system have the same devices at the same places."""
    alone = dissenters(files)
    if len(set(files.values())) < 2:
        return
    usual = next(host for host in files if alone is None or host not in alone)
    for host in (host for host in files if alone is None or host in alone):
        other = usual if host != usual else next(each for each in files if files[each] != files[host])
        differs = list(read_topology(files[host]).differences(read_topology(files[other])))
        lacks = any(words.endswith("is missing") for words in differs)
        if not differs:  # but for what one of the nodes does not tell of its processors
            continue
        rest = "" if alone is not None else "; the right node is unknown"
        message = f"differs from {other}: {_told(differs)}{rest}"
        action = f"see why the devices of this node are others; a file for it alone is {kept[host]}"
        severity = Severity.ISOLATE if lacks and alone is not None else Severity.CONFIGURE
        #: finding unlike_others: something that has to be the same on all nodes or GPUs is not
        yield finding(host, "PCI devices", "unlike_others", severity, message, action)


def _installed(
    host: str, installed: InstalledFile | None, file: str, kept: Path, ignoring: frozenset[str]
) -> Iterator[Finding]:
    """Findings about the file that NCCL is given."""
    if installed is None:
        return
    if installed.text is None:
        why = f"cannot be read: {installed.error}"
    else:
        try:
            differs = list(read_topology(installed.text).differences(read_topology(file), ignoring=ignoring))
        except RunError as error:
            why = f"is not a topology file: {error}"
        else:
            if not differs:
                return
            why = f"does not fit this node: {_told(differs)}"
    message = f"NCCL_TOPO_FILE {why}"
    action = f"copy {kept} to {installed.path} on the node"
    #: finding topology_file: the file of `NCCL_TOPO_FILE` is not a topology file, or not that of the node
    yield finding(host, installed.path, "topology_file", Severity.CONFIGURE, message, action)


def _told(differs: list[str]) -> str:
    more = f"; and {len(differs) - _MOST_TOLD} more" if len(differs) > _MOST_TOLD else ""
    return "; ".join(differs[:_MOST_TOLD]) + more
