"""Task and report of a command's driver: `workloads.node.command` runs it on a run's first node."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.plain import Positive, read_plain
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.foreign import Mark
from pytest_llmbench.core.wire.task import LaunchedTask

# What the driver sets for the script: hosts and hostfile of the run, its first node's name, and a port to meet at.
VARIABLES = ("LLMBENCH_HOSTS", "LLMBENCH_HOSTFILE", "LLMBENCH_FIRST_HOST", "LLMBENCH_PORT")


@dataclass(frozen=True, kw_only=True, slots=True)
class Needed:
    """One thing that has to be there before the run: a `Preparation` of its recipe, every name filled in."""

    name: str  # name of this item in the list of what a run needs
    path: str | None = None  # must be found on the first node; `**` stands for any folders
    count: Positive | None = None  # smallest number of files that the pattern must find; None for one
    min_bytes: Positive | None = None  # smallest size of each of them; for a folder, of its files together
    check: str | None = None  # must succeed in the engine's environment
    make: str  # the command that makes it, for people
    why: str = ""  # reason why the run needs it


@dataclass(frozen=True, kw_only=True, slots=True)
class Obstacle:
    """The reason why a script was not started, or the things that the nodes lack."""

    kind: Literal["not_prepared", "wrong_hardware", "wrong_nodes"]  # a stable word, as in a run's record
    message: str  # the event, its place, and the recommended action


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandTask(LaunchedTask):
    """`command.json` of a run's folder: a driver runs a script, whose ranks are not ours."""

    labels: Positive = 1  # how many nodes print a label
    # The nodes, where they are known before the run starts; else those of its Slurm job, or this machine.
    hosts: tuple[str, ...] = ()
    prepare: tuple[Needed, ...] = ()  # preparations to look for, every name filled in
    setup: tuple[str, ...] = ()  # shell lines that make the framework's environment usable, for checks and versions
    python: str = "python"  # the framework's interpreter
    root: str | None = None  # the framework's checkout
    # Environment variables by the file on the node that holds the value; values are never written down.
    secrets: Mapping[str, str] = field(default_factory=dict)
    image: str | None = None  # the container's image, as the system's file gives it; None for a bare run
    mounts: tuple[str, ...] = ()  # folders of the node inside the container: `from:to` or `from:to:flags`
    # The start of a shell command line, whose rest runs inside the container on the first node; empty for a bare run.
    inside: str = ""

    def on_node(self, path: str) -> str | None:
        """The path outside its container of a path that the framework sees; None for one that no mount covers."""
        if self.image is None:
            return path
        best = None
        for mount in self.mounts:
            source, _, rest = mount.partition(":")
            target = rest.partition(":")[0] or source
            # Without a slash it is a volume that the runtime keeps, and the innermost of nested mounts is seen.
            if not source.startswith("/") or not PurePosixPath(path).is_relative_to(target):
                continue
            if best is None or len(target) > len(best[1]):
                best = (source, target)
        return None if best is None else str(PurePosixPath(best[0]) / PurePosixPath(path).relative_to(best[1]))


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverReport:
    """`driver.json` of a run's folder: written when the script starts, and again when it ended."""

    hosts: tuple[str, ...]  # the nodes of the run
    device: str  # `cpu`, or the GPU model that every node has, as its driver names it
    # Unix times; `ended` is None while it runs.
    started: float
    ended: float | None = None
    exit_code: int | None = None  # of the script. 0 proves nothing: the launchers it wraps lose their ranks' failures.
    problem: Obstacle | None = None  # the reason why the script was not started, or the things that the nodes lack
    provenance: Mapping[str, str] = field(default_factory=dict)  # versions, commits and digests
    secrets: tuple[Mark, ...] = ()  # marks that find the secrets of its environment in a text, without holding them


def read_report(folder: Path) -> DriverReport | None:
    """Read what the driver of a run reported; None before it did, and for a run without one."""
    try:
        return read_plain(DriverReport, folder / layout.DRIVER)
    except ConfigError:
        return None
