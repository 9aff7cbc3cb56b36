"""Tasks: what the login node writes into a folder for the processes that it starts there."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pytest_llmbench.core.plain import Positive, PositiveSeconds, read_plain
from pytest_llmbench.core.recipe.topology import Device
from pytest_llmbench.core.wire.fault import SimulatedFault


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """The process that waits for this run."""

    path: Path  # the file it keeps rewriting (see `deadman`)
    ttl_s: PositiveSeconds  # longest silence of a live owner, seconds
    # The lock that the run's processes hold while they live, if sessions share a machine without Slurm (see
    # `machine_lock`).
    machine_lock: Path | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchedTask:
    """The part that all tasks share."""

    nodes: Positive  # nodes the run must find itself on
    ranks_per_node: Positive  # ranks on each
    device: Device  # device of the ranks
    token: str | None = None  # names the run among all runs, in its step logs or in its log
    # Environment variables, set before a rank imports anything else; for a command, of its checks and versions.
    env: Mapping[str, str] = field(default_factory=dict)
    owner: Owner | None = None  # owner of the run; without one it runs to its end

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a task. Raises ConfigError: the file is unreadable or something else than a task."""
        return read_plain(cls, path)


@dataclass(frozen=True, kw_only=True, slots=True)
class Task(LaunchedTask):
    """`task.json` of a folder: every rank calls a function of ours."""

    entry: str  # `package.module:function`, called with a `RankContext` and a `StepLog`
    config: Mapping[str, Any]  # handed to it as `RankContext.config`
    may_end_early: bool = False  # the session may ask for an end before the last step
    simulate: SimulatedFault | None = None  # a fault that a rank is to cause
