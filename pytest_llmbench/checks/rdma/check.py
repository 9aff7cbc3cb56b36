"""RDMA ports before the load, active, at full rate and like their siblings; and after it, without flaps and errors."""

from dataclasses import replace

from pytest_llmbench.checks.answers import read_per_host
from pytest_llmbench.checks.base import CheckDefaults, CheckSettings, Fleet, deadline_of, options_of
from pytest_llmbench.checks.rdma.ports import NO_RDMA, RdmaOptions, gains, judge_gains, judge_ports, sent_bytes
from pytest_llmbench.core.record.health import Report
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.workloads.node.rdma import RdmaFacts

_LOAD_BYTES = 1e9


class RdmaPorts(CheckDefaults):
    """State, rate, width, PCIe link and partitions of each port of InfiniBand, RoCE and EFA."""

    name = "rdma_ports"
    family = "topology"
    summary = "RDMA ports are active, at full rate, and alike on all nodes"
    options: type[Strict] = RdmaOptions
    deadline_s = 60.0

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        options = options_of(self, settings, RdmaOptions)
        nodes, unjudged = read_per_host(fleet.once(options.probe(deadline_of(self, settings))), RdmaFacts)
        nodes = options.select(nodes)
        if not unjudged and not any(node.ports or node.idle for node in nodes.values()):
            return Report(skip=NO_RDMA)
        findings, notes = judge_ports(nodes)
        evidence = {"rdma": {host: node.model_dump() for host, node in nodes.items()}}
        return Report(findings=tuple(findings), unjudged=unjudged, notes=tuple(notes), evidence=evidence)


class RdmaErrors(CheckDefaults):
    """The gain of each port's counters since the first reading, which `rdma_ports` makes."""

    name = "rdma_errors"
    family = "network"
    summary = "RDMA ports had no flaps and few errors while the other checks loaded them"
    options: type[Strict] = RdmaOptions
    deadline_s = 60.0

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        options = options_of(self, settings, RdmaOptions)
        probe = options.probe(deadline_of(self, settings))
        before, unjudged = read_per_host(fleet.once(probe), RdmaFacts)
        if not unjudged and not any(node.ports for node in before.values()):
            return Report(skip=NO_RDMA)
        again = fleet.run([replace(probe, name="rdma-ports-after")])[0]
        after, silent = read_per_host(again, RdmaFacts)
        before, after = options.select(before), options.select(after)
        both = [host for host in before if host in after]
        findings = [found for host in both for found in judge_gains(host, before[host], after[host])]
        sent = {host: sent_bytes(before[host], after[host]) for host in both}
        unjudged = {**unjudged, **silent}
        if not findings and not unjudged and max(sent.values(), default=0) < _LOAD_BYTES:
            reason = f"the ports sent {max(sent.values(), default=0) / 1e9:.3g} GB since the first reading"
            return Report(skip=f"{reason}: run it with rdma_ports, and with all_reduce or pairs over several nodes")
        gained = {}
        for host in both:
            first = {port.name: port for port in before[host].ports}
            ports = [port for port in after[host].ports if port.name in first]
            gained[host] = {port.name: gains(first[port.name], port) for port in ports}
        return Report(findings=tuple(findings), unjudged=unjudged, evidence={"gained": gained, "sent_bytes": sent})
