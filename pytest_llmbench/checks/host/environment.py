"""Environment of the nodes: files, folders and network devices that variables of the system's file name."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from pytest_llmbench.checks.base import CheckSettings, Fleet, Site
from pytest_llmbench.checks.host.base import HostCheck, ask_hosts, named_paths, variables
from pytest_llmbench.checks.host.kinds import finding
from pytest_llmbench.checks.host.nodes.facts import HostFacts
from pytest_llmbench.core.record.health import Finding, Report, Severity


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceVariable:
    """How a variable names devices.

    Attributes:
        kinds: source of the devices: `interfaces`, `infiniband`.
        prefixes: whether a name stands for all that begin with it, unless `=` stands before the list.
        ports: whether `:1` after a name is a port.
        every: whether each name must be there, not just one.
        everything: a word that stands for all devices.
    """

    kinds: tuple[str, ...]
    prefixes: bool = False
    ports: bool = False
    every: bool = False
    everything: str | None = None


RULES = {
    "NCCL_SOCKET_IFNAME": DeviceVariable(kinds=("interfaces",), prefixes=True, ports=True),
    "NCCL_IB_HCA": DeviceVariable(kinds=("infiniband",), prefixes=True, ports=True),
    "GLOO_SOCKET_IFNAME": DeviceVariable(kinds=("interfaces",), every=True),
    "TP_SOCKET_IFNAME": DeviceVariable(kinds=("interfaces",), every=True),
    "UCX_NET_DEVICES": DeviceVariable(kinds=("interfaces", "infiniband"), ports=True, everything="all"),
}


def chosen(value: str, there: Collection[str], rule: DeviceVariable) -> tuple[set[str], list[str]]:
    """The devices that a variable's value chooses, and its names that fit none of them.

    `^` before the list leaves the named ones out, and `=` before it (after a `^`) asks for whole names. Only a list
    that does not leave out has names that miss something.
    """
    leave_out = value.startswith("^")
    rest = value.removeprefix("^")
    whole = not rule.prefixes or rest.startswith("=")
    names = [name for part in rest.removeprefix("=").split(",") if (name := part.strip())]
    fits = {name: _fitting(name, there, rule, whole=whole) for name in names}
    found = set[str]().union(*fits.values())
    if leave_out:
        return set(there) - found, []
    return found, [name for name, devices in fits.items() if not devices]


def _fitting(name: str, there: Collection[str], rule: DeviceVariable, *, whole: bool) -> set[str]:
    if name == rule.everything:
        return set(there)
    plain = name.partition(":")[0] if rule.ports else name
    return {device for device in there if device == plain or (not whole and device.startswith(plain))}


# The kernel knows no state of some interfaces that work, `lo` for one.
_USABLE = {"up", "unknown"}


class EnvironmentCheck(HostCheck):
    """The system's file against the nodes. That its variables are set needs no look: every rank sets them itself."""

    name = "environment"
    summary = "files and network devices that the system's file names are on every node"

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        """Ask every node."""
        paths, named = named_paths(fleet.site), _device_variables(fleet.site)
        if not paths and not named:
            return Report(skip="the system's file names no files and no network devices of its nodes")
        facts, unjudged = ask_hosts(self, fleet, settings)
        findings = [
            finding
            for host, told in facts.items()
            for finding in (*missing_files(host, told, paths), *missing_devices(host, told, named))
        ]
        evidence = {
            host: told.model_dump(include={"paths", "interfaces", "infiniband"}) for host, told in facts.items()
        }
        return Report(findings=tuple(findings), unjudged=unjudged, evidence={"nodes": evidence})


def missing_files(host: str, told: HostFacts, paths: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about files and folders that are not there, empty, or not to be read."""
    for path, where in paths.items():
        if wrong := told.paths[path]:
            action = "put it on every node at that path, or correct the system's file"
            #: finding missing_file: a file or folder that the system's file names is not there, empty, or not readable
            yield finding(host, where, "missing_file", Severity.CONFIGURE, wrong, action)


def missing_devices(host: str, told: HostFacts, named: Mapping[tuple[str, str], str]) -> Iterator[Finding]:
    """Findings about variables that name no device of this node, or none that is up."""
    for (where, name), value in named.items():
        severity, words = _wrong_with(value, told, RULES[name])
        if words:
            message = f"{name}={value}: {words}"
            action = "bring the device up, or correct the variable in the system's file"
            #: finding missing_device: a variable of the system's file names a network device that is not there or not
            #:  up
            yield finding(host, f"{name} of {where}", "missing_device", severity, message, action)


def _wrong_with(value: str, told: HostFacts, rule: DeviceVariable) -> tuple[Severity, str]:
    states = {device: "up" for device in told.infiniband if "infiniband" in rule.kinds}
    states |= told.interfaces if "interfaces" in rule.kinds else {}
    devices, absent = chosen(value, states, rule)
    there = ", ".join(f"{device} ({state})" for device, state in sorted(states.items())) or "none"
    if not devices or (rule.every and absent):
        return Severity.CONFIGURE, f"{', '.join(absent) or 'nothing is left that'} is not among the devices: {there}"
    if not any(states[device] in _USABLE for device in devices):
        return Severity.CONFIGURE, f"none of what it names is up: {there}"
    return Severity.MONITOR, f"{', '.join(absent)} is not among the devices: {there}" if absent else ""


def _device_variables(site: Site) -> dict[tuple[str, str], str]:
    """Values of variables that name devices, by where they are set and their name. NCCL ignores an empty one."""
    return {
        (where, name): env[name]
        for where, env in variables(site).items()
        for name in RULES
        if env.get(name, "").strip()
    }
