"""Check of the files, folders and network devices that the system's file names in variables."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from pytest_llmbench.checks.base import CheckSettings, Fleet
from pytest_llmbench.checks.host.base import HostCheck, finding, named_paths, variables
from pytest_llmbench.checks.host.nodes.facts import HostFacts
from pytest_llmbench.core.record.health import Finding, Report, Severity


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceVariable:
    """How a variable names devices."""

    kinds: tuple[str, ...]  # source of the devices: `interfaces`, `infiniband`
    prefixes: bool = False  # whether a name stands for all that begin with it, unless `=` stands before the list
    ports: bool = False  # whether `:1` after a name is a port
    every: bool = False  # whether each name must be there, or just one
    everything: str | None = None  # a word that stands for all devices


RULES = {
    "NCCL_SOCKET_IFNAME": DeviceVariable(kinds=("interfaces",), prefixes=True, ports=True),
    "NCCL_IB_HCA": DeviceVariable(kinds=("infiniband",), prefixes=True, ports=True),
    "GLOO_SOCKET_IFNAME": DeviceVariable(kinds=("interfaces",), every=True),
    "TP_SOCKET_IFNAME": DeviceVariable(kinds=("interfaces",), every=True),
    "UCX_NET_DEVICES": DeviceVariable(kinds=("interfaces", "infiniband"), ports=True, everything="all"),
}
# The state of some interfaces that work, such as `lo`, is `unknown`.
_USABLE = {"up", "unknown"}


class EnvironmentCheck(HostCheck):
    """The paths and devices of the system's file against the nodes; its variables are set by every rank itself."""

    name = "environment"
    summary = "files and network devices that the system's file names are on every node"

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        paths = named_paths(fleet.site)
        devices = {
            (where, name): env[name]
            for where, env in variables(fleet.site).items()
            for name in RULES
            if env.get(name, "").strip()  # NCCL ignores an empty one
        }
        if not paths and not devices:
            return Report(skip="the system's file names no files and no network devices of its nodes")
        facts, unjudged = self.ask(fleet, settings)
        findings = [
            finding
            for host, node in facts.items()
            for finding in (*_find_missing_files(host, node, paths), *find_missing_devices(host, node, devices))
        ]
        kept = {"paths", "interfaces", "infiniband"}
        evidence = {"nodes": {host: node.model_dump(include=kept) for host, node in facts.items()}}
        return Report(findings=tuple(findings), unjudged=unjudged, evidence=evidence)


def _find_missing_files(host: str, node: HostFacts, paths: Mapping[str, str]) -> Iterator[Finding]:
    for path, where in paths.items():
        if fault := node.paths[path]:
            action = "put it on every node at that path, or correct the system's file"
            #: finding missing_file: a file or folder of the system's file is missing, empty, or unreadable
            yield finding(host, where, "missing_file", Severity.CONFIGURE, fault, action)


def find_missing_devices(host: str, node: HostFacts, devices: Mapping[tuple[str, str], str]) -> Iterator[Finding]:
    """Findings about variables that name missing devices of this node, or only ones that are down."""
    for (where, name), value in devices.items():
        severity, fault = _check_devices(value, node, RULES[name])
        if fault:
            action = "bring the device up, or correct the variable in the system's file"
            #: finding missing_device: a network device of the system's file is missing or down
            yield finding(host, f"{name} of {where}", "missing_device", severity, f"{name}={value}: {fault}", action)


def _check_devices(value: str, node: HostFacts, rule: DeviceVariable) -> tuple[Severity, str]:
    states = {device: "up" for device in node.infiniband if "infiniband" in rule.kinds}
    states |= node.interfaces if "interfaces" in rule.kinds else {}
    devices, absent = choose_devices(value, states, rule)
    present = ", ".join(f"{device} ({state})" for device, state in sorted(states.items())) or "none"
    if not devices or (rule.every and absent):
        names = ", ".join(absent) or "nothing is left that"
        return Severity.CONFIGURE, f"{names} is not among the devices: {present}"
    if not any(states[device] in _USABLE for device in devices):
        return Severity.CONFIGURE, f"none of what it names is up: {present}"
    return Severity.MONITOR, f"{', '.join(absent)} is not among the devices: {present}" if absent else ""


def choose_devices(value: str, present: Collection[str], rule: DeviceVariable) -> tuple[set[str], list[str]]:
    """The devices that a variable's value chooses, and its names that fit none of them.

    `^` before the list excludes the named ones, and `=` before it (after a `^`) asks for whole names. Names that
    are excluded may be missing.
    """
    rest = value.removeprefix("^")
    whole = not rule.prefixes or rest.startswith("=")
    names = [name for part in rest.removeprefix("=").split(",") if (name := part.strip())]
    fits = {name: _find_fitting(name, present, rule, whole=whole) for name in names}
    devices = set[str]().union(*fits.values())
    if value.startswith("^"):
        return set(present) - devices, []
    return devices, [name for name, fitting in fits.items() if not fitting]


def _find_fitting(name: str, present: Collection[str], rule: DeviceVariable, *, whole: bool) -> set[str]:
    if name == rule.everything:
        return set(present)
    plain = name.partition(":")[0] if rule.ports else name
    return {device for device in present if device == plain or (not whole and device.startswith(plain))}
