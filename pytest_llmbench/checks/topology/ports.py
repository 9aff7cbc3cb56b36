"""RDMA ports before the load: active, at full rate, and like their siblings."""

from pytest_llmbench.checks.answers import read_per_host
from pytest_llmbench.checks.base import CheckDefaults, CheckSettings, Fleet, deadline_of, options_of
from pytest_llmbench.checks.rdma import NO_RDMA, RdmaOptions, judge_ports
from pytest_llmbench.core.record.health import Report
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.workloads.node.rdma import RdmaFacts


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
