"""A simulated cluster with a planted fault: its nodes answer the probes of all checks.

What programs and files show is asked once, on this machine, with stand-ins for the programs of NVIDIA, and is the
answer of every node. Rates are those of physics, with noise, and slower where the fault is.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from pytest_llmbench.checks.base import Answer, Probe, Site
from pytest_llmbench.checks.compute.nodes.answer import TURNS, groups, teams
from pytest_llmbench.checks.storage.nodes.storage import BLOCK
from pytest_llmbench.core.recipe.topology import Places
from pytest_llmbench.core.record.curves import IN_PARTS, Curve, Point, busbw_factor, timing
from pytest_llmbench.core.wire.task import Task
from pytest_llmbench.judging import physics
from pytest_llmbench.workloads.rank.context import RankContext, entry_of
from pytest_llmbench.workloads.rank.probe import ProbeLog
from tests.support.fleet import HOST_FACTS
from tests.support.hardware import node as machine
from tests.support.hardware import port
from tests.support.nccl import lines

CHECKS = ("memory", "tuning", "limits", "rdma_ports", "nvlink", "pairs", "rail", "rdma_errors")
FAULTS = ("nothing", "node", "nic", "leaf", "rack", "everything")
GPUS, OF_LEAF, OF_RACK = 8, 8, 16
WIRE, RAIL, INSIDE, TCP = 380.0, 48.0, 475.0, 3.0  # GB/s
NOISE = 0.01
_GPU = machine().gpus[0]
_PRODUCTS = {
    dtype: physics.expect_products(_GPU.name, _GPU.capability, _GPU.sms, _GPU.max_sm_mhz, dtype)
    for dtype in ("bf16", "fp16", "tf32", "fp32", "fp8")
}
Tell = Callable[[int], dict[str, Any]]  # the answer of a rank by its number


@dataclass
class Cluster:
    """A simulated cluster with a fault at a place: a `checks.base.Fleet`."""

    nodes: int
    fault: str
    seed: int
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
        own, self.half, after = machines()
        host = HOST_FACTS.model_copy(update={"software": {"driver's cuda": "13.0"}})
        self.facts = {"machine": own, "machine-after": after, "host-facts": host.model_dump(mode="json")}

    def leaf_hosts(self, leaf: str) -> list[str]:
        """The nodes behind a leaf switch."""
        return [host for host, name in self.leaf.items() if name == leaf]

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
        return [list(self.answer(probe)) for probe in probes]

    def once(self, probe: Probe) -> list[Answer]:
        """Answer as nodes would, and remember it."""
        if probe.name not in self.remembered:
            self.remembered[probe.name] = self.run([probe])[0]
        return self.remembered[probe.name]

    def answer(self, probe: Probe) -> Iterator[Answer]:
        """Answer as each of the ranks would."""
        hosts, per_node = probe.hosts or self.hosts, probe.ranks_per_node
        makers = {
            "pairs:play": self._play, "collectives:measure": self._collect, "compute:measure": self._compute,
            "compute:sustain": self._sustain, "replica:train": self._train, "storage:measure": self._store,
        }  # fmt: skip
        tell = makers.get(probe.entry.rpartition(".nodes.")[2], self._read)(probe, hosts)
        for rank in range(len(hosts) * per_node):
            host, local = hosts[rank // per_node], rank % per_node
            data = tell(rank)
            if probe.config.get("nccl"):
                alone = "rounds" in probe.config and len(probe.config["rounds"][0][0]) == per_node
                data["nccl"] = {"lines": self._lines(host, local, 1 if alone else len(hosts)), "variables": {}}
            yield Answer(host=host, rank=rank, local_rank=local, data=data)

    def _read(self, probe: Probe, hosts: Sequence[str]) -> Tell:
        facts = self.facts.get(probe.name)
        recorded = self._record(probe, hosts) if facts is None else json.dumps(facts)
        bad = json.dumps(self.half) if self.fault == "nic" and probe.name.startswith("machine") else recorded
        return lambda rank: json.loads(
            bad if hosts[rank] == self.node else recorded.replace(hosts[0], hosts[rank])
        )  # fmt: skip

    def _store(self, probe: Probe, hosts: Sequence[str]) -> Tell:
        size = probe.config["streams"] * probe.config["blocks"] * BLOCK
        return lambda rank: {
            "bytes": size, "direct": True, "wrong": [], "read_from": (rank + 1) % len(hosts),
            "files": probe.config["files"],
            **{name: self._noisy(0.5) for name in ("write_s", "read_s", "create_s", "stat_s", "unlink_s")},
        }  # fmt: skip

    def _record(self, probe: Probe, hosts: Sequence[str]) -> str:
        """Let this machine answer as the first node; what it writes under that node's name, the others write, too."""
        os.environ |= {"SLURMD_NODENAME": hosts[0]}
        task = Task(entry=probe.entry, config=probe.config, nodes=1, ranks_per_node=1, device="cuda")
        context = RankContext(
            rank=0, world_size=len(hosts), local_rank=0, ranks_per_node=1, nodes=len(hosts), folder=self.folder,
            config=probe.config, device="cuda",
        )  # fmt: skip
        answer = entry_of(task)(context, ProbeLog(context)).model_dump_json()
        for path in self.folder.parents[1].rglob(f"*{hosts[0]}*"):
            for host in hosts[1:]:
                other = path.with_name(path.name.replace(hosts[0], host))
                other.write_text(path.read_text().replace(hosts[0], host))
        return str(answer)

    def _noisy(self, value: float) -> float:
        return value * self.random.gauss(1.0, NOISE)

    def _law(self, law: physics.PhysicsResult) -> float:
        assert isinstance(law, physics.PhysicsBound)
        return self._noisy(law.expected)

    def _compute(self, probe: Probe, _hosts: Sequence[str]) -> Tell:
        same = {"repeated": 9, "changed": 0, "error": 1e-6}
        gemm = {"side": probe.config["side"], "factors": "all", "lacking": {}}
        memory, copy = physics.expect_memory(_GPU.bus_bits, _GPU.max_memory_mhz), physics.expect_host_copy(5, 16)
        copies = ("host_to_device", "host_to_device_all", "device_to_host", "device_to_host_all")
        return lambda _: {
            "device": self.site.gpu_model, "setting": {}, "memory": 1e9 * self._law(memory),
            "host_device": {name: 1e9 * self._law(copy) for name in copies},
            "gemm": {**gemm, "precisions": {
                dtype: {"rate": 1e12 * self._law(law), "digest": dtype, **same} for dtype, law in _PRODUCTS.items()
            }},
        }  # fmt: skip

    def _sustain(self, probe: Probe, _hosts: Sequence[str]) -> Tell:
        samples = [(float(at), 1400, 61, 699.0, 4) for at in range(round(probe.config["seconds"]))]
        return lambda _: {
            "device": self.site.gpu_model, "precision": "bf16", "telemetry": samples, "trouble": None,
            "rates": [(sample[0] + 1, 1e12 * self._law(_PRODUCTS["bf16"])) for sample in samples],
        }  # fmt: skip

    def _train(self, probe: Probe, hosts: Sequence[str]) -> Tell:
        ranks, steps = len(hosts) * probe.ranks_per_node, probe.config["steps"]
        turns: list[list[Any]] = [[{"seat": None, "steps": []} for _ in range(TURNS)] for _ in range(ranks)]
        for number, team in enumerate(teams(range(ranks))):
            for turn, group in product(range(TURNS), (0, 1)):
                members = groups(team, turn)[group]
                for shard, rank in enumerate(members):
                    own = [[f"{step} {other}" for other in range(len(members))] for step in range(steps)]
                    turns[rank][turn] = {
                        "seat": {"team": number, "group": group, "shard": shard},
                        "steps": [(of[shard], of, of[0]) for of in own],
                    }  # fmt: skip
        return lambda rank: {"device": self.site.gpu_model, "turns": turns[rank]}

    def _collect(self, probe: Probe, hosts: Sequence[str]) -> Tell:
        """Curves at the rate of the slowest pair, with 20 µs for each operation."""
        config, ranks = probe.config, len(hosts) * GPUS
        share = min(self._rate((self.node, host), {0, 1}) for host in hosts if host != self.node) / WIRE
        curves: dict[str, Any] = {}
        for name in config["collectives"]:
            law = physics.expect_between(name, len(hosts), GPUS, 400.0, physics.Links(4, 18, nvls=True))
            busbw = share * (self._law(law) if isinstance(law, physics.PhysicsBound) else 20.0)
            sizes = [size for size in config["sizes"] if size >= 16 * ranks or name not in IN_PARTS]
            points = [
                Point(size=size, count=size // 4, dtype="float32", redop="sum", **dict.fromkeys(
                    ("out_of_place", "in_place"),
                    timing(name, size, ranks, 20 + size * busbw_factor(name, ranks) / busbw / 1e3, 0),
                ))
                for size in sizes
            ]  # fmt: skip
            curves[name] = Curve(
                collective=name, points=tuple(points), ranks=ranks, nodes=len(hosts), gpus=ranks, complete=True
            ).model_dump(mode="json")  # fmt: skip
        measured: dict[str, Any] = {"device": self.site.gpu_model, "curves": curves, "unsupported": {}, "notes": []}
        return lambda rank: {"wrong": dict.fromkeys(curves, 0), "measured": None if rank else measured}

    def _play(self, probe: Probe, hosts: Sequence[str]) -> Tell:
        per_node = probe.ranks_per_node
        games: list[list[dict[str, Any]]] = [[] for _ in range(len(hosts) * per_node)]
        for number, pairs in enumerate(probe.config["rounds"]):
            for index, ranks in enumerate(pairs):
                members = list(dict.fromkeys(hosts[rank // per_node] for rank in ranks))
                busbw = self._noisy(self._rate(members, {rank % per_node for rank in ranks}))
                measured = {
                    "bytes": probe.config["bytes"], "seconds": 1e-3, "busbw": busbw, "latency_s": 2e-5, "wrong": 0,
                }  # fmt: skip
                for rank in ranks:
                    games[rank].append({"round": number, "group": index, "measured": measured})
        return lambda rank: {
            "device": self.site.gpu_model, "games": games[rank], "stopped": None,
        }  # fmt: skip

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

    def _lines(self, host: str, local: int, nodes: int) -> list[str]:
        """NCCL's lines of a rank, whose node has one other beside it in the ring."""
        between = "NET/Socket/0" if self.fault == "everything" else "NET/IB/0/GDRDMA"
        here = (host,) if nodes == 1 else (host, "other")
        printed = lines(here, GPUS, between=between, nics_of=8, nodes=nodes, nvls="yes", nvls_channels=16)
        return [line for line in printed if line.startswith(f"{host}:{100 + local}:")]


@cache
def machines() -> tuple[dict[str, Any], ...]:
    """A healthy node, one with a port at half width, and the healthy one after load."""
    half = [port(number, 200 if number == 3 else 400, lanes=2 if number == 3 else 4) for number in range(GPUS)]
    after = [port(number, counters={"port_xmit_data": 1 << 40}) for number in range(GPUS)]
    nodes = (machine(nics=GPUS), machine(ports=tuple(half)), machine(ports=tuple(after)))
    return tuple(node.model_dump(mode="json") for node in nodes)
