"""The resolved options of the user, as one immutable value for all parts of the cluster layer."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pytest_llmbench.cluster.heartbeat import TTL_S
from pytest_llmbench.cluster.system import ELSEWHERE, LOCAL, SLURM, System
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import Recipe, Scale
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.records import AllocationMode, ClusterName
from pytest_llmbench.core.wire.fault import SimulatedFault


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """One session's request."""

    system: System  # the cluster it is for
    cluster: ClusterName  # how jobs get there
    allocation: AllocationMode  # `session` holds `nodes` for all runs; `run` makes a Slurm job per run
    run_dir: Path  # folder of the sessions' folders; on a cluster, on a file system that all nodes share
    nodes: int | None = None  # nodes in all; None leaves each run the number its recipe was published for
    # Nodes of one run; every recipe then runs on each group of that many of the session's nodes.
    nodes_per_run: int | None = None
    gpus_per_node: int | None = None  # overrides the system's; 0 trains on the CPU
    time_min: int | None = None  # wall-clock limit of each Slurm job, and of every run in it, minutes
    max_wait_min: int | None = None  # how long a Slurm job may wait in the queue, minutes; None for any time
    # Runs of each recipe that are judged together; None leaves each test the number that its marker has.
    repeat: int | None = None
    rerun: bool = False  # whether an inconclusive run is made again, within its time limit
    max_runs: int | None = None  # runs at once; None for as many as there are nodes
    budget: float | None = None  # most GPU-hours of a session; None for any number
    retries: int = 0  # further attempts of a run that a fault of the infrastructure ended
    # Whether the first run has the cluster to itself, and so fills caches that all would fill.
    first_run_alone: bool = False
    scale: Scale = "full"  # `full` or `smoke`
    slurm: Mapping[str, str] = field(default_factory=dict)  # options handed to sbatch
    replay: Path | None = None  # a folder of logs to judge instead of running anything
    as_recorded: bool = False  # the recipes in its records decide what had to run
    # Whether what costs GPU-hours stays away from nodes that a check found unfit; auto, where both are there.
    # `links` is on, and measures links although a node failed another check.
    gate: Literal["auto", "on", "off", "links"] = "auto"
    quarantine: Path | None = None  # the list of unfit nodes, honoured and added to
    early_verdict: bool = False  # whether runs are ended as soon as every threshold of their tests is decided
    heartbeat_timeout: float = TTL_S  # silence of pytest after which its jobs and ranks end themselves, seconds
    simulate: SimulatedFault | None = None  # a fault that the ranks of every run cause on purpose

    @property
    def lasting_fault(self) -> SimulatedFault | None:
        """The simulated fault, if it is one of all ranks of checks and runs alike."""
        return self.simulate if self.simulate is not None and self.simulate.step is None else None

    @property
    def env(self) -> Mapping[str, str]:
        """Environment variables of all ranks of ours: those of the system's file, and of a lasting fault."""
        return {**self.system.env, **(self.lasting_fault.env if self.lasting_fault else {})}

    @property
    def gpus_of_a_node(self) -> int | None:
        """GPUs of a node by the user's option, else by the system's file; None where both leave it open."""
        return self.gpus_per_node if self.gpus_per_node is not None else self.system.gpus_per_node

    @property
    def runs_are_jobs(self) -> bool:
        """True if each run is a Slurm job of its own."""
        return self.cluster == "slurm" and self.allocation == "run"

    def topology(self, recipe: Recipe) -> Topology:
        """The shape a recipe runs in under these settings."""
        chosen = (self.gpus_per_node, self.system.gpus_per_node, recipe.gpus_per_node)
        gpus = next(count for count in chosen if count is not None)
        if self.cluster == "debug":  # one rank, in this process
            return Topology(nodes=1, gpus_per_node=min(gpus, 1))
        published = recipe.nodes if recipe.scale == "full" and self.cluster in {"slurm", "replay"} else 1
        return Topology(
            nodes=self.nodes_per_run or self.nodes or published,
            gpus_per_node=gpus,
            cpu_ranks_per_node=self.system.cpu_ranks_per_node,
        )

    @property
    def groups(self) -> int:
        """Number of groups that the session's nodes are split into."""
        if self.cluster != "slurm" or self.nodes is None or self.nodes_per_run is None:
            return 1
        return self.nodes // self.nodes_per_run

    @property
    def left_over(self) -> int:
        """Number of nodes that are left over, being too few for a group."""
        return (self.nodes or 0) % self.nodes_per_run if self.nodes_per_run and self.cluster == "slurm" else 0

    def time_limit_min(self, recipe: Recipe) -> int:
        """Minutes one run of this recipe may take."""
        return recipe.time_limit if self.time_min is None else self.time_min


def existing_allocation() -> str | None:
    """Id of the Slurm job this process runs inside, if it does."""
    return os.environ.get("SLURM_JOB_ID")


def existing_nodes() -> int | None:
    """How many nodes the Slurm job has that this process runs inside."""
    text = os.environ.get("SLURM_JOB_NUM_NODES", "")
    return int(text) if existing_allocation() is not None and text.isdecimal() else None


def resolve_cluster(asked: str, system: str | None, replay: Path | None = None) -> tuple[str, ClusterName | None]:
    """Resolve `--cluster`, `--system` and `--replay` to the names of system and cluster.

    `auto` leaves the way to the system file (None here). Without a file, it is Slurm when this process is inside a
    Slurm job or `sbatch` is on PATH, else this machine.
    """
    if replay is not None:
        return system or ELSEWHERE, "replay"
    named: dict[str, tuple[str, ClusterName]] = {
        "slurm": (SLURM, "slurm"), "local": (LOCAL, "local"), "debug": (LOCAL, "debug"),
    }  # fmt: skip
    if asked in named:
        default, cluster = named[asked]
        return system or default, cluster
    if system is None:
        on_slurm = existing_allocation() is not None or shutil.which("sbatch") is not None
        system = SLURM if on_slurm else LOCAL
    return system, None


def check(settings: Settings) -> None:
    """Refuse options that contradict each other. Raises ConfigError with the options and the correction."""
    s, inside, on_slurm = settings, existing_allocation(), settings.cluster == "slurm"
    where = "logs that are replayed have" if s.replay is not None else "--cluster debug has"
    refused = {
        "--llmbench-inconclusive rerun with --llmbench-early-verdict: both look at runs several times, and each takes "
        "the whole of alpha for that; leave one out": s.rerun and s.early_verdict,
        f"--llmbench-simulate {s.simulate}: {where} no ranks to strike; use --cluster local or slurm": (
            s.simulate is not None and (s.cluster == "debug" or s.replay is not None)
        ),
        f"--nodes {s.nodes} with --cluster {s.cluster}: this machine is one node; use --cluster slurm": (
            s.cluster in {"local", "debug"} and (s.nodes or 1) > 1
        ),
        f"--nodes-per-run {s.nodes_per_run} is more than --nodes {s.nodes}": (
            s.nodes_per_run is not None and s.nodes is not None and s.nodes_per_run > s.nodes
        ),
        "llmbench_allocation = session holds nodes for the whole session: give their number with --nodes": (
            s.allocation == "session" and on_slurm and s.nodes is None and inside is None
        ),
        f"--llmbench-retries {s.retries} repeats runs that Slurm's nodes lost, and --cluster {s.cluster} has none: "
        "leave it out, or use --cluster slurm": s.retries and not on_slurm and s.replay is None,
        f"llmbench_allocation = run makes Slurm jobs, but this process is inside job {inside}: its nodes are used as "
        "they are; run pytest outside it": s.allocation == "run" and on_slurm and inside is not None,
    }
    for message, is_wrong in refused.items():
        if is_wrong:
            raise ConfigError(message)
