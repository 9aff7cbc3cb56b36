"""How long checks of a large cluster take to plan and judge, and whether planted faults are named and nothing else.

    python -m benchmarks.scale --nodes 125 --repeats 50 --seed 1

The nodes are simulated: 8 × H100 with 8 × 400 Gb/s each, 8 nodes behind a leaf switch and 16 in a rack. They answer the
probes of the network checks and those of RDMA ports and hosts, by the arithmetic of the planted fault with noise of
1 %; the checks that run are the real ones. Each repeat plants one fault at a random place:

    node         all pairs of a node at 0.6 of their rate
    nic          a port with half of its lanes, and its rail of that node at half rate
    leaf         all pairs through the uplinks of a leaf switch at half rate
    rack         all pairs of nodes of a rack at half rate
    everything   all pairs at 3 GB/s, as over TCP
    nothing      no fault

A repeat is right if the findings that fail, and the nodes without a verdict, are those of the fault. The program ends
with 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_llmbench.checks.base import Answer, CheckSettings, Probe, Site, get_check
from pytest_llmbench.core.recipe.topology import Places
from pytest_llmbench.core.record.health import Report
from pytest_llmbench.core.wire.machine import MachineFacts
from tests.support.fleet import HOST_FACTS
from tests.support.hardware import node as machine
from tests.support.hardware import port
from tests.support.nccl import lines

CHECKS = ("memory", "tuning", "limits", "rdma_ports", "nvlink", "pairs", "rail", "rdma_errors")
FAULTS = ("nothing", "node", "nic", "leaf", "rack", "everything")
GPUS, OF_LEAF, OF_RACK = 8, 8, 16
WIRE, RAIL, INSIDE, TCP = 380.0, 48.0, 475.0, 3.0  # GB/s
NOISE = 0.01


@dataclass
class Cluster:
    """A simulated cluster with a fault at a place: a `checks.base.Fleet`."""

    nodes: int
    fault: str
    seed: int
    own: MachineFacts
    half: MachineFacts  # the same with a port at half width
    checks: Sequence[str] = CHECKS
    folder: Path = Path()
    remembered: dict[str, list[Answer]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Choose the place of the fault."""
        self.hosts = tuple(f"n{number:04d}" for number in range(self.nodes))
        self.random = random.Random(f"{self.seed} {self.fault} {self.nodes}")
        self.leaf = {host: f"s{number // OF_LEAF}" for number, host in enumerate(self.hosts)}
        self.rack = {host: f"r{number // OF_RACK}" for number, host in enumerate(self.hosts)}
        self.places = Places({"leaf": self.leaf, "rack": self.rack})
        self.node, self.nic = self.random.choice(self.hosts), 3
        self.site = Site(
            system="simulated", nodes=self.nodes, gpus_per_node=GPUS, gpu_model="NVIDIA H100 80GB HBM3",
            gpu_memory_gib=80, selected=tuple(self.checks), places=self.places.of(self.hosts),
        )  # fmt: skip
        own = self.own.model_dump(mode="json")
        self.facts: Mapping[str, Any] = {
            "machine": own, "machine-after": own, "host-facts": HOST_FACTS.model_dump(mode="json")
        }  # fmt: skip

    @property
    def due(self) -> set[str]:
        """The findings that must fail, as node and part, or the part alone; and nodes that stay without a verdict."""
        return {
            "nothing": set[str](),
            "node": {self.node},
            "nic": {
                *({f"{self.node} rail {self.nic}"} if "rail" in self.checks else ()),
                *({f"{self.node} mlx5_{self.nic}/1"} if "rdma_ports" in self.checks else ()),
            },
            "leaf": {f"leaf {self.leaf[self.node]}"},
            "rack": {f"rack {self.rack[self.node]}"},
            "everything": {*self.hosts},
        }[self.fault]  # fmt: skip

    def run(self, probes: Sequence[Probe]) -> list[list[Answer]]:
        """Answer as nodes would."""
        return [self._play(probe) if "rounds" in probe.config else self._tell(probe) for probe in probes]

    def once(self, probe: Probe) -> list[Answer]:
        """Answer as nodes would, and remember it."""
        if probe.name not in self.remembered:
            self.remembered[probe.name] = self.run([probe])[0]
        return self.remembered[probe.name]

    def _tell(self, probe: Probe) -> list[Answer]:
        facts = self.facts[probe.name]
        half = self.half.model_dump(mode="json") if self.fault == "nic" and probe.name.startswith("machine") else facts
        return [
            Answer(host=host, rank=rank, local_rank=0, data=half if host == self.node else facts)
            for rank, host in enumerate(probe.hosts or self.hosts)
        ]

    def _play(self, probe: Probe) -> list[Answer]:
        hosts, per_node = probe.hosts or self.hosts, probe.ranks_per_node
        games: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(len(hosts) * per_node)}
        for number, groups in enumerate(probe.config["rounds"]):
            for index, ranks in enumerate(groups):
                members = list(dict.fromkeys(hosts[rank // per_node] for rank in ranks))
                rails = {rank % per_node for rank in ranks}
                busbw = self._rate(members, rails) * self.random.gauss(1.0, NOISE)
                measured = {
                    "bytes": probe.config["bytes"],
                    "seconds": 1e-3,
                    "busbw": busbw,
                    "latency_s": 2e-5,
                    "wrong": 0,
                }
                for rank in ranks:
                    games[rank].append({"round": number, "group": index, "measured": measured})
        return [self._answer(probe, hosts, rank, played) for rank, played in games.items()]

    def _rate(self, members: Sequence[str], rails: set[int]) -> float:
        usual = INSIDE if len(members) == 1 else WIRE if len(rails) > 1 else RAIL
        leaves, here = {self.leaf[host] for host in members}, self.node in members
        if len(members) == 1 or self.fault == "nothing":
            return usual
        if self.fault == "everything":
            return TCP
        bad_nic = self.fault == "nic" and here and self.nic in rails
        slow = {
            "node": 0.6 if here else 1.0, "nic": (0.5 if len(rails) == 1 else 0.75) if bad_nic else 1.0,
            "leaf": 0.5 if len(leaves) > 1 and self.leaf[self.node] in leaves else 1.0,
            "rack": 0.5 if self.rack[self.node] in {self.rack[host] for host in members} else 1.0,
        }  # fmt: skip
        return usual * slow[self.fault]

    def _answer(self, probe: Probe, hosts: Sequence[str], rank: int, games: list[dict[str, Any]]) -> Answer:
        host, local = hosts[rank // probe.ranks_per_node], rank % probe.ranks_per_node
        data: dict[str, Any] = {
            "device": self.site.gpu_model, "games": games, "stopped": None, "nvlink": None if local else True,
        }  # fmt: skip
        if probe.config.get("nccl"):
            alone = len(probe.config["rounds"][0][0]) == probe.ranks_per_node
            between = "NET/Socket/0" if self.fault == "everything" else "NET/IB/0/GDRDMA"
            printed = lines((host,) if alone else (host, "other"), GPUS, between=between, nics_of=8)
            data["nccl"] = {"lines": [line for line in printed if line.startswith(host)], "variables": {}}
        return Answer(host=host, rank=rank, local_rank=local, data=data)


def machines() -> tuple[MachineFacts, MachineFacts]:
    """A healthy node, and one with a port at half width."""
    ports = (port(number, 200 if number == 3 else 400, lanes=2 if number == 3 else 4) for number in range(GPUS))
    return machine(nics=GPUS), machine(ports=tuple(ports))


def run_checks(cluster: Cluster) -> dict[str, Report]:
    """Run its checks on a cluster: those behind the gate on all nodes, so that each fault is seen by all."""
    return {name: get_check(name).run(cluster, CheckSettings()) for name in cluster.checks}


def accused(reports: Mapping[str, Report]) -> set[str]:
    """Nodes, parts and places with a finding that fails."""
    findings = (finding for report in reports.values() for finding in report.findings if finding.severity.fails)
    return {f"{finding.host or ''} {finding.subject}".strip() for finding in findings}


def judge(cluster: Cluster, reports: Mapping[str, Report]) -> str:
    """The way in which a repeat is wrong; empty for a right one."""
    named, due = accused(reports), cluster.due
    problems = [f"{name}: {report.problem or report.skip}" for name, report in reports.items()
                if name != "rdma_errors" and (report.problem or report.skip)]  # fmt: skip
    if cluster.fault == "everything":  # all of them, by whatever part
        hosts = {name.split()[0] for name in named} & {*cluster.hosts}
        unjudged = {host for report in reports.values() for host in report.unjudged}
        problems += (
            [f"{len(hosts | unjudged)} of {cluster.nodes} named"] if len(hosts | unjudged) < cluster.nodes else []
        )
    else:
        parts = {part.partition(" rail ")[0] for part in due} | (
            {cluster.node} if cluster.fault == "nic" else set[str]()
        )
        wrong = {name for name in named if name.partition(" rail ")[0] not in parts}
        missed = due - named
        problems += [f"accused: {', '.join(sorted(wrong)[:5])}"] if wrong else []
        problems += [f"missed: {', '.join(sorted(missed)[:5])}"] if missed else []
    return "; ".join(problems)


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant the faults; 1 if one repeat is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=125)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", nargs="*", default=FAULTS, choices=FAULTS)
    parser.add_argument("--checks", nargs="*", default=CHECKS, choices=CHECKS)
    options = parser.parse_args(arguments)
    ports, half = machines()
    failed = 0
    for fault in options.faults:
        wrong, began, cpu = [], time.monotonic(), time.process_time()
        for number in range(options.repeats):
            cluster = Cluster(options.nodes, fault, options.seed * 1000 + number, ports, half, checks=options.checks)
            if said := judge(cluster, run_checks(cluster)):
                wrong.append(f"seed {cluster.seed}: {said}")
        took, cpu = time.monotonic() - began, time.process_time() - cpu
        failed += len(wrong)
        print(f"{fault:10} {options.repeats - len(wrong)}/{options.repeats} right, {took / options.repeats:.2f} s and "
              f"{cpu / options.repeats:.2f} s of CPU a repeat", *wrong[:5], sep="\n    ", flush=True)  # fmt: skip
    print(f"{options.nodes} nodes, {len(options.checks)} checks; at most "
          f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB of memory")  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
