"""The context of a rank: its task, and its place among the ranks."""

import gc
import importlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.plain import read_json
from pytest_llmbench.core.recipe.topology import Device
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.fault import SimulatedFault
from pytest_llmbench.core.wire.task import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class RankContext:
    """One rank of one run."""

    rank: int  # 0-based number among all ranks
    world_size: int  # number of all ranks
    local_rank: int  # 0-based number among the ranks of this node
    ranks_per_node: int
    nodes: int
    folder: Path  # of the run, on a file system that every node shares
    config: Mapping[str, Any]  # plain data for the entry function
    device: Device
    token: str | None = None  # of the run
    may_end_early: bool = False  # whether the session may end the run before its last step, by `StepLog.enough`
    simulate: SimulatedFault | None = None  # a fault that a rank has to cause


def arrive(folder: Path) -> tuple[Task, RankContext]:
    """Read a folder's task, adopt its environment, and find this process's rank."""
    task = Task.read(folder / layout.TASK)
    os.environ.update(task.env)
    if task.simulate is not None and task.simulate.name == "one-core":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return task, place(task, folder, os.environ)


def entry_of(task: Task) -> Callable[..., Any]:
    """Import the function that a task names.

    Frameworks create a million permanent objects during their import. They are excluded from garbage collection, which
    would otherwise slow the start of a rank and later its steps.
    """
    module, _, function = task.entry.partition(":")
    collects = gc.isenabled()
    gc.disable()
    try:
        entry: Callable[..., Any] = getattr(importlib.import_module(module), function)
    finally:
        gc.freeze()
        if collects:
            gc.enable()
    return entry


def token_of(folder: Path) -> str | None:
    """Return the token of the run in a folder; None if the folder lacks a task or the task lacks a token."""
    for name in (layout.TASK, layout.COMMAND):
        with suppress(OSError, ValueError, AttributeError):
            token = read_json((folder / name).read_bytes()).get("token")
            return None if token is None else str(token)
    return None


# Names of the environment variables of rank, local rank, number of ranks and number of nodes. The first of two that is
# set counts: inside a larger allocation only the step's own counts are those of the run.
_SLURM = (
    ("SLURM_PROCID",), ("SLURM_LOCALID",),
    ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_STEP_NUM_NODES", "SLURM_NNODES"),
)  # fmt: skip
_LOCAL = (
    ("SUBMITIT_LOCAL_GLOBALID",), ("SUBMITIT_LOCAL_LOCALID",),
    ("SUBMITIT_LOCAL_NTASKS",), ("SUBMITIT_LOCAL_JOB_NUM_NODES",),
)  # fmt: skip


def place(task: Task, folder: Path, environ: Mapping[str, str]) -> RankContext:
    """Find this process's rank, and check that the launcher started the requested shape.

    The environment is that of srun, or of submitit's local executor; with neither, this is rank 0 of 1. Raises RunError
    `wrong_ranks` if the number of ranks or nodes differs from the task's, or a variable is missing or malformed.
    """
    rank, local_rank, ranks, nodes = _read_place(environ)
    world_size = task.nodes * task.ranks_per_node
    if (ranks, nodes) != (world_size, task.nodes) or not local_rank < task.ranks_per_node:
        raise RunError(
            "wrong_ranks",  #: error wrong_ranks: the launcher started another number of ranks or nodes than asked
            f"the run asks for {task.nodes} nodes with {task.ranks_per_node} ranks each; the launcher "
            f"started {ranks} ranks on {nodes} nodes, and this is rank {rank}, number {local_rank} on its "
            "node: check --nodes, --ntasks and --ntasks-per-node of the launcher",
        )
    return RankContext(
        rank=rank, world_size=world_size, local_rank=local_rank, ranks_per_node=task.ranks_per_node, nodes=task.nodes,
        folder=folder, config=task.config, device=task.device, token=task.token, may_end_early=task.may_end_early,
        simulate=task.simulate,
    )  # fmt: skip


def _read_place(environ: Mapping[str, str]) -> tuple[int, int, int, int]:
    # A local run inside a Slurm job also sees the variables of that job, which must be ignored.
    if environ.get("SUBMITIT_EXECUTOR") == "local":
        names: tuple[tuple[str, ...], ...] = _LOCAL
    elif "SLURM_PROCID" in environ:
        names = _SLURM
    else:
        return 0, 0, 1, 1
    rank, local_rank, ranks, nodes = (_number(environ, choices) for choices in names)
    return rank, local_rank, ranks, nodes


def _number(environ: Mapping[str, str], names: tuple[str, ...]) -> int:
    name = next((name for name in names if name in environ), names[-1])
    value = environ.get(name)
    if value is None or not (value.isascii() and value.isdigit()):
        raise RunError("wrong_ranks", f"the launcher should set {name} to a number; it is {value!r}")
    return int(value)
