"""RDMA ports, judged against their siblings on the node and against the same port of the other nodes.

Two checks read the ports: the first before any load, the second after all of it, for the gain of the counters.
"""

from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pytest_llmbench.checks.answers import read_per_host, skip_all
from pytest_llmbench.checks.base import CheckDefaults, CheckSettings, Fleet, options_of
from pytest_llmbench.checks.findings import FindingMaker, make_finding
from pytest_llmbench.checks.machine import ask_machines, machine_probe
from pytest_llmbench.core.quantity import listed
from pytest_llmbench.core.record.health import Finding, Report, Severity
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.core.wire.machine import MachineFacts, MachinePort

RdmaKind = Literal[
    "counter_saturated", "link_flapped", "nic_missing", "nic_slot", "nic_unused", "no_rdma_driver", "pkey",
    "port_congested", "port_down", "port_errors", "port_slow",
]  # fmt: skip
finding: FindingMaker[RdmaKind] = make_finding

_NO_RDMA = "no RDMA device, and no card for one on PCI"
# With this many siblings, a fault of all nodes counts as well, such as a rail whose switch is off.
_ENOUGH_SIBLINGS = 4
# Cards that a virtual machine is to have are bound to these.
_GIVEN_AWAY = frozenset({"vfio-pci", "pci-stub"})
_CABLE = "check its cable, transceiver and switch port, and swap them with those of a good port"
_CURES = {
    "Disabled": "enable it (ibportstate, ip link set up)",
    "LinkUp": "it has a link and no subnet manager has set it up: see opensm and the switch",
}
_MOST_NAMED = 8
_LOAD_BYTES = 1e9
_UP = "ACTIVE"


class RdmaOptions(Strict):
    """The ports to judge."""

    devices: tuple[str, ...] = ()
    """Names of the RDMA devices to judge; absent, all of them."""
    sysfs: str = "/sys"
    """Folder of sysfs on the nodes."""

    def select(self, nodes: Mapping[str, MachineFacts]) -> dict[str, MachineFacts]:
        """Keep the devices that are to be judged."""
        return {
            host: node.model_copy(update={"ports": tuple(port for port in node.ports if port.device in self.devices)})
            if self.devices
            else node
            for host, node in nodes.items()
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trait:
    """Something that a port has in common with its siblings."""

    kind: RdmaKind
    severity: Severity
    # The value of a port; None where it is unknown. Values are compared within a node, and between nodes.
    value: Callable[[MachinePort], str | None]
    better: Callable[[str, str], bool]  # whether the second value is better than the first
    cure: Callable[[MachinePort], str]


def _link(port: MachinePort) -> str | None:
    lanes = "" if port.lanes is None else f" ({port.lanes} lanes)"
    return f"{port.rate_gbits:g} Gb/s{lanes}" if port.active and port.rate_gbits is not None else None


def _first_number(text: str) -> float:
    return float(text.split(maxsplit=1)[0])


def _slot_gb_s(slot: str) -> float:
    speed, _, width = slot.rpartition(" x")
    return _first_number(speed) * int(width)


_TRAITS = (
    #: finding port_down: an RDMA port is not active, unlike its siblings
    _Trait(
        kind="port_down", severity=Severity.ISOLATE,
        value=lambda port: (_UP if port.active else f"{port.state} ({port.phys_state})") if port.state else None,
        better=lambda own, other: other == _UP != own, cure=lambda port: _CURES.get(port.phys_state, _CABLE),
    ),
    #: finding port_slow: an RDMA port is slower than its siblings
    _Trait(
        kind="port_slow", severity=Severity.ISOLATE, value=_link,
        better=lambda own, other: _first_number(other) > _first_number(own), cure=lambda _: _CABLE,
    ),
    #: finding nic_slot: the PCIe link of a NIC is slower than those of its siblings
    _Trait(
        kind="nic_slot", severity=Severity.ISOLATE, value=lambda port: port.slot,
        better=lambda own, other: _slot_gb_s(other) > _slot_gb_s(own),
        cure=lambda _: "seat the card again, and look for PCIe errors (lspci -vv: LnkSta)",
    ),
    #: finding pkey: the partitions of an InfiniBand port differ from its siblings'
    _Trait(
        kind="pkey", severity=Severity.CONFIGURE,
        value=lambda port: ", ".join(port.pkeys) if port.active and port.link_layer == "InfiniBand" else None,
        better=lambda own, other: own != other, cure=lambda _: "give the port its partitions in the subnet manager",
    ),
)  # fmt: skip


def judge_ports(nodes: Mapping[str, MachineFacts]) -> tuple[list[Finding], list[str]]:
    """Find the ports that are worse than their siblings; remarks on what all nodes have in common.

    A port is compared with the ports of its kind on its node, and with the port of its name on the other nodes. A
    value that half of the nodes have better is a fault. A value that most nodes have is the design of the machine,
    unless most of four or more siblings have it better.
    """
    findings = [*_find_missing(nodes), *_find_undriven(nodes)]
    remarks: Counter[str] = Counter()
    for trait in _TRAITS:
        known = {host: [(port, trait.value(port)) for port in node.ports] for host, node in nodes.items()}
        by_name: dict[object, Counter[str]] = defaultdict(Counter)
        by_kind: dict[object, Counter[str]] = defaultdict(Counter)
        values = [(host, port, value) for host, ports in known.items() for port, value in ports if value is not None]
        for host, port, value in values:
            by_name[port.name][value] += 1
            by_kind[host, port.kind][value] += 1
        for host, port, value in values:
            fault, remark = _compare(trait, value, by_name[port.name], by_kind[host, port.kind], port)
            if fault:
                message = f"{port.name} is {value}; {fault}"
                findings.append(finding(host, port.name, trait.kind, trait.severity, message, trait.cure(port)))
            elif remark:
                remarks[f"{port.name} is {value}"] += 1
    return findings, [f"{what} on {count} of {len(nodes)} nodes" for what, count in remarks.items()]


def _compare(
    trait: _Trait, own: str, nodes: Counter[str], siblings: Counter[str], port: MachinePort
) -> tuple[str, bool]:
    """The fault of a port, in words, by the values of its name on all nodes and of its kind on its own.

    Without a fault, whether something is better all the same.
    """
    elsewhere, beside = _count_better(own, nodes, trait), _count_better(own, siblings, trait)
    if elsewhere and 2 * elsewhere >= nodes.total():
        return f"{nodes.most_common(1)[0][0]} on {elsewhere} of {nodes.total()} nodes", True
    if siblings.total() >= _ENOUGH_SIBLINGS and 2 * beside > siblings.total():
        return f"{beside} of {siblings.total()} ports of its kind are {siblings.most_common(1)[0][0]}", True
    down = trait.kind == "port_down" and own != _UP
    if down and port.link_layer == "InfiniBand" and siblings.total() >= _ENOUGH_SIBLINGS and not siblings[_UP]:
        return f"no port of its kind is {_UP}", True
    return "", bool(elsewhere or beside or down)


def _count_better(own: str, values: Counter[str], trait: _Trait) -> int:
    return sum(count for value, count in values.items() if trait.better(own, value))


def _find_missing(nodes: Mapping[str, MachineFacts]) -> Iterator[Finding]:
    """Yield a finding for a node with fewer ports than half of the nodes have."""
    counts = sorted((len(node.ports) for node in nodes.values()), reverse=True)
    usual = counts[(len(counts) - 1) // 2] if counts else 0
    names = Counter(port.name for node in nodes.values() for port in node.ports)
    for host, node in nodes.items():
        if len(node.ports) < usual:
            own = {port.name for port in node.ports}
            absent = [name for name, count in names.items() if 2 * count >= len(nodes) and name not in own]
            message = f"{len(node.ports)} RDMA ports, {usual} on most nodes"
            message += f"; {listed(absent, _MOST_NAMED)} missing" if absent else ""
            action = "look for the card with lspci, and for its driver's words in the kernel log"
            #: finding nic_missing: a node has too few RDMA ports, or lost one
            yield finding(host, "", "nic_missing", Severity.ISOLATE, message, action)


def _find_undriven(nodes: Mapping[str, MachineFacts]) -> Iterator[Finding]:
    for host, node in nodes.items():
        for bus, name in node.driverless.items():
            if name not in _GIVEN_AWAY:
                driver = "no driver has it" if name is None else f"its driver {name} made no device"
                message = f"a card for RDMA is on PCI, and there is no device in /sys/class/infiniband: {driver}"
                action = "load mlx5_ib or efa on the node, or install the driver"
                #: finding no_rdma_driver: a NIC for RDMA has no driver
                yield finding(host, bus, "no_rdma_driver", Severity.CONFIGURE, message, action)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Limit:
    """How much some counters may gain while a session loads the network."""

    kind: RdmaKind
    severity: Severity
    most: int
    counters: tuple[str, ...]
    action: str


# As `ibcheckerrors` of infiniband-diags has them: 10 of what a bad link makes, 100 of what others or the load make.
_LIMITS = (
    #: finding link_flapped: an RDMA port lost its link during the session
    _Limit(
        kind="link_flapped", severity=Severity.ISOLATE, most=0, action=_CABLE,
        counters=("link_downed", "carrier_down_count", "link_down_events_phy"),
    ),
    #: finding port_errors: an RDMA port counted link errors during the session
    _Limit(
        kind="port_errors", severity=Severity.ISOLATE, most=10, action=_CABLE,
        counters=(
            "symbol_error", "link_error_recovery", "port_rcv_errors", "local_link_integrity_errors",
            "excessive_buffer_overrun_errors", "rx_crc_errors", "rx_pcs_symbol_err_phy",
        ),
    ),
    #: finding port_congested: an RDMA port dropped or repeated packets during the session
    _Limit(
        kind="port_congested", severity=Severity.MONITOR, most=100,
        action="look for congestion, and on Ethernet for PFC and ECN; see the counters of the switch",
        counters=(
            "port_rcv_remote_physical_errors", "port_rcv_switch_relay_errors", "port_xmit_discards",
            "port_xmit_constraint_errors", "port_rcv_constraint_errors", "VL15_dropped", "out_of_sequence",
            "packet_seq_err", "local_ack_timeout_err", "rx_drops", "retrans_timeout_events",
            "unresponsive_remote_events", "impaired_remote_conn_events", "rdma_read_wr_err", "rdma_write_wr_err",
            "rx_discards_phy", "tx_discards_phy",
        ),
    ),
)  # fmt: skip
# The largest numbers of counters that stop there.
_LARGEST = {
    **dict.fromkeys(("link_downed", "link_error_recovery", "local_link_integrity_errors"), 0xFF),
    **dict.fromkeys(("symbol_error", "port_rcv_errors", "port_xmit_discards"), 0xFFFF),
    "excessive_buffer_overrun_errors": 0xF,
}
# A port of a kind that sent so much is in use; one that sent less than this share of it is not.
_IN_USE_BYTES, _UNUSED = 10e9, 0.01


def gains(before: MachinePort, after: MachinePort) -> dict[str, int]:
    """The gain of each counter of a port; one that was reset in between gained its present value."""
    pairs = {name: (before.counters.get(name, count), count) for name, count in after.counters.items()}
    grown = {name: new - old if new >= old else new for name, (old, new) in pairs.items()}
    return {name: gain for name, gain in grown.items() if gain}


def sent_bytes(before: MachineFacts, after: MachineFacts) -> int:
    """Bytes that a node sent in between."""
    old = {port.name: port.sent_bytes for port in before.ports}
    return sum(max(0, port.sent_bytes - old.get(port.name, port.sent_bytes)) for port in after.ports)


def judge_gains(host: str, before: MachineFacts, after: MachineFacts) -> Iterator[Finding]:
    """Yield what happened to a node's ports between two readings."""
    old = {port.name: port for port in before.ports}
    new = {port.name: port for port in after.ports}
    for name in sorted(old.keys() - new.keys()):
        message = "it was there at the first reading, and is gone"
        yield finding(host, name, "nic_missing", Severity.ISOLATE, message, "look for the card with lspci")
    pairs = {name: (old[name], port) for name, port in new.items() if name in old}
    for name, (first, port) in pairs.items():
        one, two = _link(first), _link(port)
        if first.active and not port.active:
            message = f"it was ACTIVE at the first reading, and is {port.state} ({port.phys_state})"
            yield finding(host, name, "port_down", Severity.ISOLATE, message, _CABLE)
        elif one and two and _first_number(two) < _first_number(one):
            message = f"it had {one} at the first reading, and has {two}"
            yield finding(host, name, "port_slow", Severity.ISOLATE, message, _CABLE)
        yield from _find_gained(host, first, port)
    yield from _find_unused(host, pairs)


def _find_gained(host: str, first: MachinePort, port: MachinePort) -> Iterator[Finding]:
    gained = gains(first, port)
    for limit in _LIMITS:
        over = [f"{counter} +{gained[counter]}" for counter in limit.counters if gained.get(counter, 0) > limit.most]
        if over:
            yield finding(host, port.name, limit.kind, limit.severity, ", ".join(over), limit.action)
    if full := [counter for counter, most in _LARGEST.items() if first.counters.get(counter) == most]:
        message = f"{', '.join(full)} stands at its maximum and counts no further"
        #: finding counter_saturated: a counter of an RDMA port is at its maximum
        yield finding(host, port.name, "counter_saturated", Severity.MONITOR, message, "clear it: perfquery -R")


def _find_unused(host: str, pairs: Mapping[str, tuple[MachinePort, MachinePort]]) -> Iterator[Finding]:
    """Yield a hint for each port without traffic where a port of its kind had much."""
    kinds: dict[object, dict[str, int]] = defaultdict(dict)
    for name, (first, port) in pairs.items():
        if first.active and port.active:
            kinds[port.kind][name] = max(0, port.sent_bytes - first.sent_bytes)
    for amounts in kinds.values():
        most = max(amounts.values())
        for name, sent in amounts.items():
            if most >= _IN_USE_BYTES and sent < _UNUSED * most:
                message = f"it sent {sent / 1e9:.3g} GB while a port of its kind sent {most / 1e9:.3g} GB"
                action = "see NCCL_IB_HCA, and the NICs that NCCL lists with NCCL_DEBUG=INFO"
                #: finding nic_unused: an RDMA port carries no data, unlike others of its kind
                yield finding(host, name, "nic_unused", Severity.MONITOR, message, action)


class _Rdma(CheckDefaults):
    options: type[Strict] = RdmaOptions
    deadline_s = 60.0

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        options = options_of(self, settings, RdmaOptions)
        nodes, unjudged = ask_machines(fleet, options.sysfs)
        if not any(node.ports or node.driverless for node in nodes.values()):
            return skip_all(_NO_RDMA, nodes, unjudged)
        return self.report(fleet, options, options.select(nodes), unjudged)

    @abstractmethod
    def report(
        self, fleet: Fleet, options: RdmaOptions, nodes: Mapping[str, MachineFacts], unjudged: Mapping[str, str]
    ) -> Report:
        """Judge the ports of nodes with some."""


class RdmaPorts(_Rdma):
    """State, rate, width, PCIe link and partitions of each port of InfiniBand, RoCE and EFA."""

    name = "rdma_ports"
    family = "topology"
    summary = "RDMA ports are active, at full rate, and alike on all nodes"

    def report(
        self, fleet: Fleet, options: RdmaOptions, nodes: Mapping[str, MachineFacts], unjudged: Mapping[str, str]
    ) -> Report:
        findings, notes = judge_ports(nodes)
        evidence = {host: node.model_dump(include={"ports", "driverless"}) for host, node in nodes.items()}
        return Report(
            findings=tuple(findings), unjudged=unjudged, notes=tuple(notes), evidence={"rdma": evidence}
        )  # fmt: skip


class RdmaErrors(_Rdma):
    """The gain of each port's counters since the first reading, which the first check that asks for it makes."""

    name = "rdma_errors"
    family = "network"
    summary = "RDMA ports had no flaps and few errors while the other checks loaded them"

    def report(
        self, fleet: Fleet, options: RdmaOptions, nodes: Mapping[str, MachineFacts], unjudged: Mapping[str, str]
    ) -> Report:
        probe = replace(machine_probe(options.sysfs), name="machine-after", gpus=False)
        after, silent = read_per_host(fleet.run([probe])[0], MachineFacts)
        after = options.select(after)
        both = [host for host in nodes if host in after]
        findings = [found for host in both for found in judge_gains(host, nodes[host], after[host])]
        sent = {host: sent_bytes(nodes[host], after[host]) for host in both}
        cure = "run it with rdma_ports, and with all_reduce or pairs over several nodes"
        idle = {
            host: f"its ports sent {amount / 1e9:.3g} GB since the first reading: {cure}"
            for host, amount in sent.items()
            if amount < _LOAD_BYTES
        }
        gained = {}
        for host in both:
            first = {port.name: port for port in nodes[host].ports}
            ports = [port for port in after[host].ports if port.name in first]
            gained[host] = {port.name: gains(first[port.name], port) for port in ports}
        return Report(
            findings=tuple(findings), unjudged={**unjudged, **silent}, skipped=idle,
            evidence={"gained": gained, "sent_bytes": sent},
        )  # fmt: skip
