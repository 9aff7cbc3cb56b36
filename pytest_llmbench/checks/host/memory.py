"""Check of the hosts' memory: equal on all nodes, and available."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, NonNegativeFloat

from pytest_llmbench.checks.base import CheckSettings, Fleet, options_of
from pytest_llmbench.checks.host.base import HostCheck, find_below, find_differing, finding, name_sizes
from pytest_llmbench.core.record.health import Reading, Report, Severity
from pytest_llmbench.core.schema import Strict

# The kernel keeps a little of it back, a varying amount; the smallest module is far more.
_TOLERANCE = 0.02
_MODULES = "a memory module is missing, off, or of another size: see `dmidecode --type memory` and the BMC's log"
_ACTION = "look for processes and files in /dev/shm that an earlier job has left (`ps aux`, `df /dev/shm`), or reboot"


class MemoryOptions(Strict):
    """How much memory must be available before a job starts."""

    available_percent: Annotated[float, Field(ge=0, le=100)] = 50
    """Share of the memory that must be available, in %."""
    available_gib: NonNegativeFloat | None = None
    """Memory in GiB that must be available, instead of a share."""


class HostMemory(HostCheck):
    """Memory of the hosts."""

    name = "memory"
    summary = "memory of the hosts: as much as on the other nodes, and available"
    options: type[Strict] = MemoryOptions
    #: statistic memory.memory_total: memory of the host
    #: statistic memory.memory_available: available memory of the host
    statistics: Mapping[str, str] = {"memory_total": "GiB", "memory_available": "GiB"}

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        options = options_of(self, settings, MemoryOptions)
        facts, unjudged = self.ask(fleet, settings)
        sizes = {host: node.memory for host, node in facts.items()}
        readings = [
            Reading(host=host, statistic=statistic, value=value / 2**30, unit="GiB", gpus=fleet.site.gpus_per_node)
            for host, size in sizes.items()
            for statistic, value in (("memory_total", size.total), ("memory_available", size.available))
        ]
        totals = {host: size.total for host, size in sizes.items()}
        findings = [  #: finding differs: memory or software differs from that of most nodes
            finding(host, "memory", "differs", Severity.ISOLATE, difference, _MODULES)
            for host, difference in find_differing(name_sizes(totals, _TOLERANCE)).items()
        ]
        for host, size in sizes.items():
            free, total = size.available / 2**30, size.total / 2**30
            needed = total * options.available_percent / 100 if options.available_gib is None else options.available_gib
            if free < needed:
                message = f"{free:.1f} of {total:.1f} GiB are available before anything has started"
                #: finding memory_in_use: memory of the host or of a GPU is taken before anything has started
                findings.append(finding(host, "memory", "memory_in_use", Severity.CONFIGURE, message, _ACTION))
        findings += find_below(readings, fleet.site, settings, _ACTION)
        return Report(findings=tuple(findings), readings=tuple(readings), unjudged=unjudged)
