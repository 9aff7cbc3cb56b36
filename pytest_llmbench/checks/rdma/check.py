"""Checks of RDMA ports: state and rate before the load, flaps and errors after it."""

from collections.abc import Mapping
from dataclasses import replace

from pytest_llmbench.checks.answers import read_per_host
from pytest_llmbench.checks.base import CheckDefaults, CheckSettings, Fleet, options_of
from pytest_llmbench.checks.machine import ask_machines, machine_probe
from pytest_llmbench.checks.rdma.ports import NO_RDMA, RdmaOptions, gains, judge_gains, judge_ports, sent_bytes
from pytest_llmbench.core.record.health import Report
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.core.wire.machine import MachineFacts

_LOAD_BYTES = 1e9


class _Rdma(CheckDefaults):
    options: type[Strict] = RdmaOptions
    deadline_s = 60.0

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        options = options_of(self, settings, RdmaOptions)
        nodes, unjudged = ask_machines(fleet, options.sysfs)
        if not unjudged and not any(node.ports or node.driverless for node in nodes.values()):
            return Report(skip=NO_RDMA)
        return self.report(fleet, options, options.select(nodes), unjudged)

    def report(
        self, fleet: Fleet, options: RdmaOptions, nodes: Mapping[str, MachineFacts], unjudged: Mapping[str, str]
    ) -> Report:
        """Judge the ports of nodes with some."""
        raise NotImplementedError


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
        unjudged = {**unjudged, **silent}
        if not findings and not unjudged and max(sent.values(), default=0) < _LOAD_BYTES:
            reason = f"the ports sent {max(sent.values(), default=0) / 1e9:.3g} GB since the first reading"
            return Report(skip=f"{reason}: run it with rdma_ports, and with all_reduce or pairs over several nodes")
        gained = {}
        for host in both:
            first = {port.name: port for port in nodes[host].ports}
            ports = [port for port in after[host].ports if port.name in first]
            gained[host] = {port.name: gains(first[port.name], port) for port in ports}
        return Report(findings=tuple(findings), unjudged=unjudged, evidence={"gained": gained, "sent_bytes": sent})
