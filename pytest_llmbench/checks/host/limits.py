"""Check of the limits of a rank's process, against the needs of a job of this size."""

from collections.abc import Iterator

from pydantic import PositiveInt

from pytest_llmbench.checks.base import CheckSettings, Fleet, Site, options_of
from pytest_llmbench.checks.host.base import HostCheck, finding
from pytest_llmbench.checks.host.nodes.facts import ProcessLimits
from pytest_llmbench.core.record.health import Finding, Report, Severity
from pytest_llmbench.core.schema import Strict

# Lambda found 1024 open files to be just enough for 32 nodes of 8 GPUs: 4 for each rank of the whole job.
_FILES_PER_RANK = 4
_FEWEST_FILES = 1024
# Each rank may start one thread per CPU for its arithmetic, and these for NCCL, data loading and the runtimes: a
# generous guess.
_FURTHER_THREADS = 64
# Capabilities that lift a limit, by their bits in the kernel: IPC_LOCK; SYS_ADMIN and SYS_RESOURCE.
_LIFTED_BY = {"memlock": 1 << 14, "nproc": 1 << 21 | 1 << 24}
_ULIMIT = {"nofile": "-n", "memlock": "-l", "nproc": "-u"}
_WORDS = {"nofile": "open files", "memlock": "bytes of locked memory", "nproc": "processes and threads of the user"}


class LimitsOptions(Strict):
    """Smallest soft limits of a rank, instead of those that follow from the nodes."""

    nofile: PositiveInt | None = None
    """Smallest limit of open files; absent, 4 for each rank of the session's nodes, and 1024 at least."""
    memlock: PositiveInt | None = None
    """Smallest limit of locked memory, in bytes; absent, unlimited where GPUs are used, else none."""
    nproc: PositiveInt | None = None
    """Smallest limit of processes and threads; absent, ranks per node × (CPUs + 64)."""


class Limits(HostCheck):
    """Limits of a rank's process, compared with the need of the session's nodes."""

    name = "limits"
    summary = "soft limits of a rank: open files, locked memory, processes"
    options: type[Strict] = LimitsOptions

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        options = options_of(self, settings, LimitsOptions)
        facts, unjudged = self.ask(fleet, settings)
        limits = {host: node.limits for host, node in facts.items()}
        findings = [finding for host, own in limits.items() for finding in find_too_low(host, own, fleet.site, options)]
        notes = () if fleet.site.gpus_per_node or options.memlock else ("memlock is not judged without GPUs",)
        return Report(findings=tuple(findings), unjudged=unjudged, notes=notes, evidence={"limits": limits})


def needs(limits: ProcessLimits, site: Site, options: LimitsOptions) -> dict[str, int | None]:
    """Required soft limits on a node with these facts; None for unlimited."""
    ranks = site.ranks_per_node
    needed: dict[str, int | None] = {
        "nofile": options.nofile or max(_FEWEST_FILES, _FILES_PER_RANK * site.nodes * ranks),
        "nproc": options.nproc or ranks * ((limits.cpus or 1) + _FURTHER_THREADS),
    }
    if site.gpus_per_node or options.memlock:
        needed["memlock"] = options.memlock
    return needed


def find_too_low(host: str, limits: ProcessLimits, site: Site, options: LimitsOptions) -> Iterator[Finding]:
    """Findings about one node's limits; a capability or root may lift a limit."""
    for name, needed in needs(limits, site, options).items():
        soft, hard = getattr(limits.soft, name), getattr(limits.hard, name)
        lifted = limits.capabilities & _LIFTED_BY.get(name, 0) or (name == "nproc" and limits.uid == 0)
        if _reaches(soft, needed) or lifted:
            continue
        # `ulimit` counts locked memory in KiB.
        value = -(-needed // 1024) if needed is not None and name == "memlock" else needed
        if _reaches(hard, needed):
            action = f"`ulimit {_ULIMIT[name]} {_format(value)}` in `setup` of the system's file needs no root; the "
            action += f"hard limit is {_format(hard)}"
        else:
            action = f"only root can: raise {name}, soft and hard (now {_format(hard)}), in /etc/security/limits.d and "
            action += "in slurmd's unit, and restart slurmd"
        message = f"{_format(soft)} {_WORDS[name]} allowed, {_format(needed)} needed by {site.nodes} × "
        message += f"{site.ranks_per_node} ranks"
        #: finding limit: a limit of the process is lower than a job of this size needs
        yield finding(host, name, "limit", Severity.CONFIGURE, message, action)


def _reaches(limit: int | None, needed: int | None) -> bool:
    return limit is None or (needed is not None and limit >= needed)


def _format(limit: int | None) -> str:
    return "unlimited" if limit is None else str(limit)
