"""Facts of a node as a host, for all checks that judge hosts. Standard library alone, and quick."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

from pytest_llmbench.checks.host.nodes.files import names_in, text_of
from pytest_llmbench.checks.host.nodes.software import container_runtime, software
from pytest_llmbench.checks.host.nodes.tuning import tuning
from pytest_llmbench.workloads.node.files import wrong_with
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog

_LIMITS = {"nofile": resource.RLIMIT_NOFILE, "memlock": resource.RLIMIT_MEMLOCK, "nproc": resource.RLIMIT_NPROC}


def facts(context: RankContext, log: ProbeLog) -> dict[str, Any]:
    """Answer with the facts that the host checks judge.

    `context.config` has `runtimes`, the container runtimes to ask for, and `paths`, the files and folders to look for.
    A path of a file server that is silent hangs, and then the phase names it.
    """
    root = Path("/")
    log.phase("limits, memory and tuning")
    told: dict[str, Any] = {
        "limits": limits(root),
        "meminfo": text_of(root / "proc/meminfo"),
        "interfaces": interfaces(root),
        "infiniband": names_in(root / "sys/class/infiniband"),
        "tuning": tuning(root),
    }
    log.phase("software")
    told["software"] = software(root)
    told["containers"] = {}
    for runtime in context.config["runtimes"]:
        log.phase(f"container runtime {runtime}")
        told["containers"][runtime] = container_runtime(runtime, root)
    told["paths"] = {}
    for path in context.config["paths"]:
        log.phase(f"look at {path}")
        told["paths"][path] = wrong_with(path)
    return told


def limits(root: Path) -> dict[str, Any]:
    """Soft and hard limits of this process by name (None: unlimited), and what they have to be enough for."""
    both = {name: resource.getrlimit(number) for name, number in _LIMITS.items()}
    return {
        "soft": {name: _limit(soft) for name, (soft, _) in both.items()},
        "hard": {name: _limit(hard) for name, (_, hard) in both.items()},
        "cpus": os.cpu_count(),
        "uid": os.geteuid(),
        "capabilities": capabilities(text_of(root / "proc/self/status") or ""),
    }


def _limit(number: int) -> int | None:
    return None if number == resource.RLIM_INFINITY else number


def capabilities(status: str) -> int:
    """The effective capabilities of a process as a bit mask, from the text of its `/proc/PID/status`; 0 for none."""
    found = (line.partition(":")[2] for line in status.splitlines() if line.startswith("CapEff:"))
    return int(next(found, "0").strip() or "0", 16)


def interfaces(root: Path) -> dict[str, str]:
    """Network interfaces and their state: `up`, `down`, or `unknown` where the driver keeps none, as for `lo`."""
    folder = root / "sys/class/net"
    return {name: text_of(folder / name / "operstate") or "unknown" for name in names_in(folder)}
