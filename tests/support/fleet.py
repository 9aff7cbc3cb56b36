"""Nodes for the tests of checks: real processes of this machine, one per rank, each told that it is on some node."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_llmbench.checks.base import Answer, Probe, Site
from pytest_llmbench.checks.host.nodes.facts import (
    HostFacts,
    HostMemorySizes,
    KernelTuning,
    ProcessLimits,
    ResourceLimits,
)
from pytest_llmbench.checks.host.nodes.files import Mount
from pytest_llmbench.core.plain import write_plain
from pytest_llmbench.core.wire.task import Task
from tests.support.warm.asking import Forked, RefusedError, may_ask

RANK = "pytest_llmbench.workloads.rank.probe"
Process = subprocess.Popen[bytes] | Forked


@dataclass
class ProcessFleet:
    """A `checks.base.Fleet` of processes."""

    site: Site
    hosts: tuple[str, ...]
    folder: Path
    # Further environment variables by host: how a test makes one node a bad one.
    env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    torch: bool = False  # whether ranks import PyTorch: then they are forked from a process that has
    inherit: bool = False  # whether ranks are new processes, which inherit the limits of this one
    asked: list[Probe] = field(default_factory=list)  # the probes that ran, in order
    _known: dict[str, list[Answer]] = field(default_factory=dict)

    def run(self, probes: Sequence[Probe]) -> list[list[Answer]]:
        started = [self._start(probe) for probe in probes]
        return [self._finish(probe, *each) for probe, each in zip(probes, started, strict=True)]

    def once(self, probe: Probe) -> list[Answer]:
        if probe.name not in self._known:
            self._known[probe.name] = self.run([probe])[0]
        return self._known[probe.name]

    def _start(self, probe: Probe) -> tuple[Path, list[Process]]:
        self.asked.append(probe)
        folder, hosts = self.folder / f"{len(self.asked)}-{probe.name}", probe.hosts or self.hosts
        task = Task(
            entry=probe.entry, config=probe.config, nodes=len(hosts), ranks_per_node=probe.ranks_per_node,
            device=self.site.device if probe.gpus else "cpu", env=self.site.env,
        )  # fmt: skip
        write_plain(folder / "task.json", task)
        world = len(hosts) * probe.ranks_per_node
        return folder, [self._rank(probe, folder, hosts, rank, world) for rank in range(world)]

    def _rank(self, probe: Probe, folder: Path, hosts: Sequence[str], rank: int, world: int) -> Process:
        host, local_rank = hosts[rank // probe.ranks_per_node], rank % probe.ranks_per_node
        slurm = {
            "SLURM_PROCID": rank, "SLURM_LOCALID": local_rank, "SLURM_STEP_NUM_TASKS": world,
            "SLURM_STEP_NUM_NODES": len(hosts), "SLURMD_NODENAME": host, "OMP_NUM_THREADS": 1,
            # All of these nodes are one machine, whose own name may not resolve.
            "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        env = {**os.environ, **{name: str(value) for name, value in slurm.items()}, **self.env.get(host, {})}
        log = folder / f"rank-{rank}.log"
        with log.open("wb") as output:
            if may_ask([], env) and not self.inherit:
                with suppress(RefusedError):
                    return Forked([RANK, str(folder)], folder, env, output, "torch" if self.torch else "pytest")
            return subprocess.Popen([sys.executable, "-m", RANK, str(folder)], env=env, stdout=output, stderr=output)

    def _finish(self, probe: Probe, folder: Path, ranks: Sequence[Process]) -> list[Answer]:
        deadline = time.monotonic() + probe.deadline_s
        for process in ranks:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        hosts = probe.hosts or self.hosts
        return [self._answer(folder, rank, hosts[rank // probe.ranks_per_node], probe) for rank in range(len(ranks))]

    @staticmethod
    def _answer(folder: Path, rank: int, host: str, probe: Probe) -> Answer:
        path = folder / "answers" / f"rank-{rank:05d}.json"
        told: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {"why": "no answer"}
        local_rank = rank % probe.ranks_per_node
        return Answer(host=host, rank=rank, local_rank=local_rank, data=told.get("data"), why=told.get("why"))


@dataclass
class AnsweringFleet:
    """A `checks.base.Fleet` whose ranks answer at once."""

    site: Site
    hosts: tuple[str, ...]
    # The answer to a probe, by host and local rank; a text is why there is none.
    answer: Callable[[Probe, str, int], Mapping[str, Any] | str]
    folder: Path = Path()
    asked: list[Probe] = field(default_factory=list)  # the probes that were asked, in order

    def run(self, probes: Sequence[Probe]) -> list[list[Answer]]:
        return [self.once(probe) for probe in probes]

    def once(self, probe: Probe) -> list[Answer]:
        self.asked.append(probe)
        places = [(host, local) for host in probe.hosts or self.hosts for local in range(probe.ranks_per_node)]
        answers = []
        for rank, (host, local) in enumerate(places):
            data = self.answer(probe, host, local)
            why = data if isinstance(data, str) else None
            known = None if isinstance(data, str) else data
            answers.append(Answer(host=host, rank=rank, local_rank=local, data=known, why=why))
        return answers


def cpu_site(nodes: int, **changes: Any) -> Site:
    """A site without GPUs, with one rank per node."""
    return Site(**{"system": "test", "nodes": nodes, "gpus_per_node": 0, **changes})


def mount_of_kind(kind: str) -> Mount:
    """A mounted file system."""
    return Mount(point="/shared", type=kind, source="server:/shared")


UNLIMITED = ResourceLimits(nofile=None, memlock=None, nproc=None)
LIMITS = ProcessLimits(
    soft=UNLIMITED, hard=UNLIMITED, cpus=96, uid=1000, capabilities=0,
)  # fmt: skip
TUNING = KernelTuning(
    iommu_options=("iommu=pt",), transparent_hugepage="always [madvise] never", numa_balancing="0", numa_nodes=2,
    governors={"performance": 96}, iommu_groups={"identity": 40}, acs=(),
)  # fmt: skip
HOST_FACTS = HostFacts(
    limits=LIMITS, memory=HostMemorySizes(total=2**41, available=2**41 - 2**35, swapped=0), interfaces={},
    infiniband=(), tuning=TUNING, software={}, containers={}, paths={},
)  # fmt: skip
