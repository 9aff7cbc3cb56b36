"""The NICs of a node that carry collectives, and their rate: the weakest of the facts, kept with the rule that decided.

A doubtful port is left out: with one NIC too many good clusters fail, with one too few some faults are missed.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from pytest_llmbench.core.quantity import counted
from pytest_llmbench.core.recipe.environments import Network
from pytest_llmbench.core.wire.machine import MachineFacts, MachinePort
from pytest_llmbench.judging.physics import NoLaw, rate_of_port

# Types of instances with the number of NICs, their rate in Gb/s and their tier. EC2 shows the type as the machine's
# product; old drivers of EFA report 100 Gb/s for every device.
INSTANCES: Mapping[str, tuple[int, float, str]] = {
    "p4d.24xlarge": (4, 100, "efa_v1"),
    "p4de.24xlarge": (4, 100, "efa_v1"),
    "p5.48xlarge": (32, 100, "between"),
    "p5e.48xlarge": (32, 100, "between"),
    "p5en.48xlarge": (16, 200, "between"),
    "p6-b200.48xlarge": (8, 400, "between"),
    "p6-b300.48xlarge": (16, 400, "between"),
}
# The rate of a port without a link, and of an XDR port under an older kernel.
_NO_RATE = 10.0
_EFA_OF_OLD_DRIVERS = 100.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Nics:
    """The NICs of a node for collectives."""

    count: int
    rate_gbits: float  # of each, at most what its PCIe link carries
    share: str  # the tier of `physics.LAW`: `between`, `behind_cpu` or `efa_v1`
    rule: str  # the source of the count
    devices: tuple[str, ...] = ()  # their names, if sysfs was counted
    down: tuple[str, ...] = ()  # those of them without a link

    @property
    def gb_s(self) -> float:
        """Rate of all of them in one direction, GB/s."""
        return self.count * self.rate_gbits / 8

    def __str__(self) -> str:
        return f"{counted(self.count, 'NIC')} × {self.rate_gbits:g} Gb/s = {self.gb_s:.4g} GB/s ({self.rule})"


def count_nics(
    facts: MachineFacts, network: Network | None = None, system: str = "", used: int | None = None
) -> Nics | NoLaw:
    """Count the NICs of a node that carry collectives: by the system's file, the type of the instance, or sysfs.

    `used` is the number that NCCL itself lists. If it is higher than what was counted, the count is wrong.
    """
    counted_nics = _count(facts, network or Network(), system)
    if isinstance(counted_nics, Nics) and used is not None and used > counted_nics.count:
        return NoLaw(f"NCCL uses {used} NICs, and {counted_nics} were counted")
    return counted_nics


def _count(facts: MachineFacts, network: Network, system: str) -> Nics | NoLaw:
    instance = next((name for name in (facts.product, system) if name in INSTANCES), None)
    far = bool(facts.ports) and _is_far(facts, facts.ports)
    share = INSTANCES[instance][2] if instance else "behind_cpu" if far else "between"
    if network.nics_per_node is not None and network.rate_gbits is not None:
        return Nics(
            count=network.nics_per_node, rate_gbits=network.rate_gbits, share=share, rule="by the system's file"
        )
    if instance is not None:
        count, rate, _ = INSTANCES[instance]
        return Nics(count=count, rate_gbits=rate, share=share, rule=f"as {instance} has")
    nics = count_ports(facts)
    if isinstance(nics, NoLaw):
        return nics
    if network.nics_per_node is not None:
        nics = replace(nics, count=network.nics_per_node, rule="number by the system's file, rate by sysfs")
    if network.rate_gbits is not None:
        nics = replace(nics, rate_gbits=network.rate_gbits, rule="rate by the system's file, number by sysfs")
    return nics


def _is_far(facts: MachineFacts, ports: Sequence[MachinePort]) -> bool:
    """True if all ports are behind the processor from every GPU. C2C makes that the usual way, a VM hides it."""
    c2c = any(gpu.c2c for gpu in facts.gpus)
    return not facts.virtual and not c2c and bool(facts.root_ports) and not any(map(facts.near, ports))


def count_ports(facts: MachineFacts) -> Nics | NoLaw:
    """Count by sysfs: ports of one kind of link and of the highest rate; only those near a GPU, where some are."""
    if facts.driverless and not facts.ports:
        return NoLaw(f"{counted(len(facts.driverless), 'InfiniBand or EFA card')} without a driver")
    if not facts.ports:
        return NoLaw("the node has no RDMA device, and the system's file names no network")
    own = facts.own_ports
    rated = [port for port in own if port.active and port.rate_gbits and port.rate_gbits != _NO_RATE]
    if not own:
        return NoLaw("its RDMA devices are virtual functions")
    if not rated:
        return NoLaw("no port of an RDMA device is active with a rate")
    # InfiniBand comes first among equals: Ethernet of the same rate is the front end.
    best = max(rated, key=lambda port: (port.rate_gbits or 0, port.link_layer == "InfiniBand"))
    chosen = [port for port in rated if (port.link_layer, port.rate_gbits) == (best.link_layer, best.rate_gbits)]
    efa = best.link_layer not in {"InfiniBand", "Ethernet"}
    if efa and best.rate_gbits == _EFA_OF_OLD_DRIVERS:
        return NoLaw("EFA devices of 100 Gb/s on an unknown instance: older drivers report that for every rate")
    near = [port for port in chosen if facts.near(port)]
    down = _find_down(facts, own, chosen)
    kept = _drop_surplus(facts, [*near, *(port for port in down if facts.near(port))]) if near else [*chosen, *down]
    rates = Counter(rate_of_port(best.rate_gbits or 0, port.pcie_gen, port.pcie_width) for port in kept)
    where = "near the GPUs" if near else "behind the processor" if _is_far(facts, chosen) else "of this node"
    return Nics(
        count=len(kept), rate_gbits=min(rates), share="behind_cpu" if _is_far(facts, chosen) else "between",
        rule=f"{best.link_layer or 'ports'} {where} by sysfs", devices=tuple(port.device for port in kept),
        down=tuple(port.device for port in kept if port in down),
    )  # fmt: skip


def _find_down(facts: MachineFacts, own: Sequence[MachinePort], chosen: Sequence[MachinePort]) -> list[MachinePort]:
    """Ports without a link that should be like the chosen ones: of the same model, on boards with too few.

    On metal, one that is near no GPU may be a spare card without a cable.
    """
    models, active = {port.model for port in chosen}, Counter(port.board for port in chosen)
    usual = max(active.values())
    down: list[MachinePort] = []
    for port in own:
        alike = not port.active and port.model in models and port not in chosen
        if alike and active[port.board] < usual and (facts.virtual or facts.near(port)):
            active[port.board] += 1
            down.append(port)
    return down


def _drop_surplus(facts: MachineFacts, ports: Sequence[MachinePort]) -> list[MachinePort]:
    """Leave out ports below a root port that has more of them for each of its GPUs than is usual on this node."""
    gpus = Counter(facts.root_ports.values())
    below = {root: [port for port in ports if port.root_port == root] for root in gpus if root is not None}
    usual = median(len(own) / gpus[root] for root, own in below.items() if own)
    return [port for root, own in below.items() for port in own[: max(1, round(usual * gpus[root]))]]
