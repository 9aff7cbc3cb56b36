"""Memory of the nodes: the same on all of them, and free."""

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, NonNegativeFloat

from pytest_llmbench.checks.base import CheckSettings, Fleet, options_of
from pytest_llmbench.checks.host.base import HostCheck, alike_in_size, ask_hosts, below, differing
from pytest_llmbench.checks.host.kinds import finding
from pytest_llmbench.core.record.health import Finding, Reading, Report, Severity
from pytest_llmbench.core.schema import Strict

_LINE = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE | re.ASCII)
# The kernel keeps a little of it back, and not the same everywhere; the smallest module is far more.
_TOLERANCE = 0.02
_ACTION = "look for processes and files in /dev/shm that an earlier job has left (`ps aux`, `df /dev/shm`), or reboot"


class MemoryOptions(Strict):
    """How much memory must be available before a job starts."""

    available_percent: Annotated[float, Field(ge=0, le=100)] = 50
    """Share of the memory that must be available, %."""
    available_gib: NonNegativeFloat | None = None
    """The same in GiB, instead."""


class HostMemory(HostCheck):
    """Memory of the hosts, not of the GPUs."""

    name = "memory"
    summary = "memory of the hosts: as much as on the other nodes, and available"
    options: type[Strict] = MemoryOptions
    #: statistic memory.memory_total: memory of the host
    #: statistic memory.memory_available: available memory of the host
    statistics: Mapping[str, str] = {"memory_total": "GiB", "memory_available": "GiB"}

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        """Ask every node."""
        options = options_of(self, settings, MemoryOptions)
        facts, unjudged = ask_hosts(self, fleet, settings)
        sizes = {host: meminfo(told.meminfo or "") for host, told in facts.items()}
        whole = {host: size for host, size in sizes.items() if {"MemTotal", "MemAvailable"} <= size.keys()}
        unjudged |= dict.fromkeys(sizes.keys() - whole.keys(), "/proc/meminfo lacks the sizes of the memory")
        totals = {host: size["MemTotal"] for host, size in whole.items()}
        available = {host: size["MemAvailable"] for host, size in whole.items()}
        readings = [
            Reading(host=host, statistic=name, value=size / 2**30, unit="GiB", gpus=fleet.site.gpus_per_node)
            for name, sizes_of in (("memory_total", totals), ("memory_available", available))
            for host, size in sizes_of.items()
        ]
        findings = [
            *(_other_size(host, words) for host, words in differing(alike_in_size(totals, _TOLERANCE)).items()),
            *(
                _used(host, free, totals[host])
                for host, free in available.items()
                if free < _need(totals[host], options)
            ),
            *below(readings, fleet.site, settings, _ACTION),
        ]
        return Report(findings=tuple(findings), readings=tuple(readings), unjudged=unjudged)


def meminfo(text: str) -> dict[str, int]:
    """Bytes by name from the text of `/proc/meminfo`; lines without a size in kB are left out."""
    return {name: int(kib) * 1024 for name, kib in _LINE.findall(text)}


def _need(total: int, options: MemoryOptions) -> float:
    return total * options.available_percent / 100 if options.available_gib is None else options.available_gib * 2**30


def _other_size(host: str, words: str) -> Finding:
    action = "a memory module is missing, off, or of another size: see `dmidecode --type memory` and the BMC's log"
    #: finding differs: memory or software of a node is not that of most nodes
    return finding(host, "memory", "differs", Severity.ISOLATE, words, action)


def _used(host: str, free: int, total: int) -> Finding:
    message = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB are available before anything has started"
    #: finding memory_in_use: memory of the host or of a GPU is taken before anything has started
    return finding(host, "memory", "memory_in_use", Severity.CONFIGURE, message, _ACTION)
