"""Expectations of physics for the nodes of a check, from facts that all checks of a session ask for once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_llmbench.checks.answers import read_per_host
from pytest_llmbench.checks.base import Fleet, Probe, Site
from pytest_llmbench.core.record.curves import IN_PARTS
from pytest_llmbench.core.record.health import Finding, Reading
from pytest_llmbench.core.wire.machine import GpuPath, MachineFacts, MachineGpu
from pytest_llmbench.judging import physics
from pytest_llmbench.judging.nics import Nics, count_nics
from pytest_llmbench.judging.physics import Links, NoLaw, PhysicsResult

# Generation of NVLink by compute capability, where the driver does not report it.
_NVLINK_OF = {"7.0": 2, "8.0": 3, "9.0": 4, "10.0": 5, "10.3": 5}
_ALL_LINKS = 18  # of a GPU since NVLink 4: they lead to all others, by switches or directly
_RING_LIKE = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"}


def ask_machines(fleet: Fleet, sysfs: str = "/sys") -> tuple[dict[str, MachineFacts], dict[str, str]]:
    """The hardware of each node, by host, and the reason for each node without an answer.

    The first check of a session that asks has the counters of ports before any load.
    """
    return read_per_host(fleet.once(machine_probe(sysfs)), MachineFacts)


def machine_probe(sysfs: str) -> Probe:
    """The step that reads the hardware of nodes; `sysfs` is where it is mounted there."""
    entry = "pytest_llmbench.workloads.node.hardware:facts"
    return Probe(name="machine", entry=entry, config={"sysfs": sysfs}, deadline_s=120.0, gpus=True)


def domain_of(host: str, facts: MachineFacts, env: Mapping[str, str]) -> str:
    """The NVLink domain of a node: a rack's partition by its cluster and clique, or the node itself.

    NCCL joins nodes under the same condition. A fabric may be completed without success, with a cluster of zeros.
    """
    fabrics = [gpu.fabric for gpu in facts.gpus]
    ids = {(fabric.cluster_uuid, fabric.clique_id) for fabric in fabrics if fabric and fabric.state == 3}
    joined = all(fabric is not None and fabric.state == 3 and fabric.status == 0 for fabric in fabrics)
    if not fabrics or not joined or len(ids) > 1 or env.get("NCCL_MNNVL_ENABLE") == "0":
        return host
    cluster, clique = ids.pop()
    return f"{cluster} {clique}" if cluster.strip("0") else host


@dataclass(frozen=True, kw_only=True, slots=True)
class Machines:
    """The nodes of a check, with the rates that physics expects of them."""

    site: Site
    facts: Mapping[str, MachineFacts]
    missing: Mapping[str, str]  # the reason for each node without facts
    _nics: dict[str, Nics | NoLaw] = field(default_factory=dict)

    @classmethod
    def ask(cls, fleet: Fleet) -> "Machines | None":
        """Ask the nodes; None where physics is silent: on CPUs, and at scale smoke."""
        if not fleet.site.is_full_gpu:
            return None
        facts, missing = ask_machines(fleet)
        return cls(site=fleet.site, facts=facts, missing=missing)

    @property
    def evidence(self) -> dict[str, Any]:
        """The facts, each once with the nodes that are alike in them; PCI addresses are left out."""
        alike: dict[str, tuple[MachineFacts, list[str]]] = {}
        for host, node in self.facts.items():
            gpus = tuple(gpu.model_copy(update={"bus": ""}) for gpu in node.gpus)
            ports = tuple(port.model_copy(update={"board": "", "counters": {}}) for port in node.ports)
            plain = node.model_copy(update={"gpus": gpus, "ports": ports})
            alike.setdefault(plain.model_dump_json(), (plain, []))[1].append(host)
        machines = [{"hosts": hosts, **node.model_dump(mode="json")} for node, hosts in alike.values()]
        return {"machines": machines, **({"missing": dict(self.missing)} if self.missing else {})}

    def products(self, reading: Reading, dtype: str, program: str = "gemm") -> PhysicsResult:
        """Products of a GPU; `program` as in `expect_products`."""
        gpu = self._gpu(reading)
        if isinstance(gpu, NoLaw):
            return gpu
        power = gpu.default_power_limit_w
        return physics.expect_products(
            gpu.name, gpu.capability, gpu.sms, gpu.max_sm_mhz, dtype, program, default_power_w=power
        )  # fmt: skip

    def lowered_power(self, reading: Reading | Finding) -> tuple[str, str]:
        """The cause of a GPU's low rate and its cure, if its power limit is below its default; else empty texts."""
        gpu = self._gpu(reading)
        limit, usual = (None, None) if isinstance(gpu, NoLaw) else (gpu.power_limit_w, gpu.default_power_limit_w)
        if limit is None or usual is None or limit >= usual:
            return "", ""
        return f"its power limit is {limit:g} W, and {usual:g} W by default", f"nvidia-smi -pl {usual:g}"

    def slow_link(self, reading: Reading | Finding, path: GpuPath) -> str:
        """The cause of a slow copy to or from the host, if the GPU's PCIe link is below its most; else empty."""
        gpu = self._gpu(reading)
        now = (path.pcie_gen, path.pcie_width)
        most = now if isinstance(gpu, NoLaw) else (gpu.pcie_gen, gpu.pcie_width)
        below = any(own is not None and best is not None and own < best for own, best in zip(now, most, strict=True))
        link = "PCIe generation {} with {} lanes"
        return f"its link runs at {link.format(*now)}, and can at {link.format(*most)}" if below else ""

    def memory(self, reading: Reading) -> PhysicsResult:
        gpu = self._gpu(reading)
        if isinstance(gpu, NoLaw):
            return gpu
        return physics.expect_memory(gpu.bus_bits, gpu.max_memory_mhz, capability=gpu.capability)

    def host_copy(self, reading: Reading, *, to_device: bool) -> PhysicsResult:
        gpu = self._gpu(reading)
        if isinstance(gpu, NoLaw):
            return gpu
        if not gpu.c2c and self.facts[str(reading.host)].virtual and _is_hidden(gpu):
            return NoLaw("a virtual machine hides the slot of the GPU")
        gen = _cap(gpu.pcie_gen, self.facts[str(reading.host)])
        return physics.expect_host_copy(gen, gpu.pcie_width, c2c=gpu.c2c, to_device=to_device)

    def _gpu(self, reading: Reading | Finding) -> MachineGpu | NoLaw:
        """The GPU of a reading, whose subject has its number."""
        node = self._node(str(reading.host))
        if isinstance(node, NoLaw):
            return node
        number = int(digits) if (digits := reading.subject.rpartition(" ")[2]).isdigit() else 0
        return node.gpus[min(number, len(node.gpus) - 1)]

    def _node(self, host: str) -> MachineFacts | NoLaw:
        node = self.facts.get(host)
        if node is None:
            return NoLaw(f"{host}: {self.missing.get(host, 'its hardware is not known')}")
        if not node.gpus:
            return NoLaw(f"{host}: {node.trouble or 'NVML lists no GPU'}")
        return NoLaw(f"{host}: MIG is on") if any(gpu.mig for gpu in node.gpus) else node

    def nics(self, host: str) -> Nics | NoLaw:
        if host not in self._nics:
            self._nics[host] = count_nics(self.facts[host], self.site.network, self.site.system)
        return self._nics[host]

    def collective(
        self,
        name: str,
        hosts: Sequence[str],
        size: int,
        gpus_per_node: int | None = None,
        growth: float | None = None,
    ) -> PhysicsResult:
        """A collective over GPUs of these nodes, by default all that the session has on each, at a size in bytes.

        `growth` is that of the last doubling of the size, if it was measured.
        """
        nodes = [self._node(host) for host in hosts]
        if reason := next((node for node in nodes if isinstance(node, NoLaw)), None):
            return reason
        whole = [node for node in nodes if isinstance(node, MachineFacts)]
        used = gpus_per_node or self.site.gpus_per_node
        expected = physics.at_size(size, self._collective(name, dict(zip(hosts, whole, strict=True)), used))
        if name in IN_PARTS:
            expected = physics.of_parts(expected, size, used * len(hosts), growth)
        return physics.unsaturated(expected, growth)

    def _collective(self, name: str, nodes: Mapping[str, MachineFacts], used: int) -> PhysicsResult:
        links = [_links_of(node, used) for node in nodes.values()]
        if len({one.version for one in links}) > 1:
            return NoLaw("the nodes have different GPUs")
        inside = min(links, key=lambda one: one.links)._replace(nvls=all(one.nvls for one in links))
        domains: dict[str, list[str]] = {}
        for host, node in nodes.items():
            domains.setdefault(domain_of(host, node, self.site.env), []).append(host)
        if inside.version is None and used > 1 and name not in _RING_LIKE:
            return NoLaw(f"no {name} between GPUs that PCIe joins is known")
        within = self._within(name, next(iter(nodes.values())), used * max(map(len, domains.values())), inside)
        if len(domains) == 1:
            return within
        net = self._net(list(nodes), used)
        if isinstance(net, NoLaw):
            return net
        gb_s, share, how = net
        largest = max(map(len, domains.values()))
        if largest > 1 and name in _RING_LIKE:
            expected: PhysicsResult = physics.expect_racks(gb_s)
        else:
            place = (name, len(domains), used * largest, gb_s * largest)
            expected = physics.expect_between(*place, inside, share=share, net_of=how)
        # GPUs that only PCIe joins are slower than their NICs.
        if inside.version is None and used > 1:
            expected = min((one for one in (expected, within) if not isinstance(one, NoLaw)), key=lambda one: one.fail)
        network = self.site.network
        return physics.oversubscribed(expected, network.oversubscription if network else 1.0)

    def _within(self, name: str, node: MachineFacts, gpus: int, inside: Links) -> PhysicsResult:
        if inside.version is not None:
            return physics.expect_in_domain(name, gpus, inside)
        gpu = node.gpus[0]
        if gpu.nvlinks and node.joined is None:
            return NoLaw("it is unknown whether NVLink joins the GPUs")
        gen = _cap(gpu.own_pcie_gen if _is_hidden(gpu) else gpu.pcie_gen, node)
        return physics.expect_in_pcie_node(gen, gpu.pcie_width)

    def _net(self, hosts: Sequence[str], used: int) -> tuple[float, str, str] | NoLaw:
        """Rate of the NICs that these GPUs of a node have, GB/s, with its tier and how it was counted."""
        slowest: tuple[float, Nics] | None = None
        for host in hosts:
            nics = self.nics(host)
            if isinstance(nics, NoLaw):
                return NoLaw(f"{host}: {nics.reason}")
            there = len(self.facts[host].root_ports) or len(self.facts[host].gpus)
            rate = nics.gb_s * min(1.0, used / there)
            if slowest is None or rate < slowest[0]:
                slowest = rate, nics
        assert slowest is not None
        part = "" if slowest[0] == slowest[1].gb_s else f", {slowest[0]:.4g} GB/s for {used} GPUs"
        return slowest[0], slowest[1].share, f"{slowest[1]}{part}"

    def rail(self, hosts: Sequence[str], size: int) -> PhysicsResult:
        """The rate that one GPU of each of two nodes reaches with the other over its own NIC."""
        expected = self.collective("sendrecv", hosts, size, 1)
        return expected if isinstance(expected, NoLaw) else replace(expected, how=f"one GPU: {expected.how}")


def _cap(gen: int | None, node: MachineFacts) -> int | None:
    """A generation of PCIe, at most that of the processor."""
    return gen if gen is None or node.cpu_pcie_gen is None else min(gen, node.cpu_pcie_gen)


def _is_hidden(gpu: MachineGpu) -> bool:
    """True if the slot of a GPU seems slower than any real one, as the emulated port of a virtual machine."""
    return gpu.pcie_gen is None or gpu.pcie_gen not in physics.PCIE_LANE


def _links_of(node: MachineFacts, used: int) -> Links:
    """The NVLinks of a node's GPUs, as many as most have; none where they leave out a GPU that is used."""
    links = max(gpu.nvlinks for gpu in node.gpus)
    joined = node.joined or used == 1 or all(gpu.nvswitch for gpu in node.gpus) or links >= _ALL_LINKS
    if not links or not joined:
        return Links()
    gpu = next(gpu for gpu in node.gpus if gpu.nvlinks == links)
    version = gpu.nvlink_version or _NVLINK_OF.get(gpu.capability or "", 0)
    return Links(version, links, all(gpu.multicast is True for gpu in node.gpus))
