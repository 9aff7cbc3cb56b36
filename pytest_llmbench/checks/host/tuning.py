"""Hints: settings of the nodes that are known to cost speed. None of them makes a node unfit."""

from collections.abc import Iterator

from pytest_llmbench.checks.base import CheckSettings, Fleet
from pytest_llmbench.checks.host.base import HostCheck, ask_hosts, differing
from pytest_llmbench.checks.host.kinds import finding
from pytest_llmbench.checks.host.memory import meminfo
from pytest_llmbench.checks.host.nodes.facts import KernelTuning
from pytest_llmbench.core.record.health import Report, Severity

# Less than that is what lies in there since the node started.
_SWAP_BYTES = 256 * 2**20
_PERFORMANCE = {"performance"}
_IDENTITY = "identity"

Hint = tuple[str, str, str]  # subject, what was found, what to do


class Tuning(HostCheck):
    """Settings of the kernel, the CPUs and the PCI bus."""

    name = "tuning"
    summary = "hints: huge pages, IOMMU, PCI ACS, CPU governor, NUMA balancing, swap"

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        """Ask every node."""
        facts, unjudged = ask_hosts(self, fleet, settings)
        told = {host: each.tuning for host, each in facts.items()}
        swapped = {host: swap(each.meminfo or "") for host, each in facts.items()}
        gpus = bool(fleet.site.gpus_per_node)
        hints = [
            (host, hint)
            for host, each in told.items()
            for hint in (*of_host(each, swapped[host]), *(of_gpus(each) if gpus else ()))
        ]
        pages = {host: huge_pages(each) for host, each in told.items()}
        hints += [
            (host, ("transparent huge pages", words, "set the same on all nodes"))
            for host, words in differing(pages).items()
        ]  #: finding tuning: a setting that is known to cost speed
        findings = [
            finding(host, what, "tuning", Severity.MONITOR, found, action) for host, (what, found, action) in hints
        ]
        blind = [host for host, each in told.items() if gpus and each.acs is None]
        notes = ("PCI ACS was not checked: only root can read it",) if blind else ()
        evidence = {host: {**each.model_dump(), "swap": swapped[host]} for host, each in told.items()}
        return Report(findings=tuple(findings), unjudged=unjudged, notes=notes, evidence={"tuning": evidence})


def of_host(told: KernelTuning, swapped: int) -> Iterator[Hint]:
    """Hints about a node whatever it computes on, by its settings and the bytes that are swapped out."""
    governors = {name: count for name, count in told.governors.items() if name not in _PERFORMANCE}
    if governors:
        found = ", ".join(f"{count} CPUs have {name}" for name, count in governors.items())
        yield "CPU governor", f"{found}, and not performance", "`cpupower frequency-set --governor performance`"
    if told.numa_nodes > 1 and told.numa_balancing not in {None, "0"}:
        found = f"the kernel moves memory between {told.numa_nodes} NUMA nodes while ranks use it"
        yield "NUMA balancing", found, "`sysctl kernel.numa_balancing=0`"
    if huge_pages(told) == "never":
        found = "never: large host buffers are made of 4 KiB pages"
        yield "transparent huge pages", found, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    if swapped > _SWAP_BYTES:
        found = f"{swapped / 2**30:.1f} GiB of memory are swapped out"
        yield "swap", found, "find out what needed so much memory; `swapoff -a && swapon -a`"


def of_gpus(told: KernelTuning) -> Iterator[Hint]:
    """Hints about what lies between GPUs and network cards."""
    translated = {kind: count for kind, count in told.iommu_groups.items() if kind != _IDENTITY}
    if translated:
        said = " ".join(told.iommu_options) or "no option about it"
        found = f"the IOMMU translates for {sum(translated.values())} groups (kernel started with {said})"
        yield "IOMMU", found, "start the kernel with iommu=pt, unless this is a virtual machine's host"
    if told.acs:
        found = f"{len(told.acs)} PCI bridges redirect traffic between devices to the root complex: "
        found += ", ".join(told.acs[:4])
        yield "PCI ACS", found, "switch ACS off in the firmware or by setpci, unless this is a virtual machine's host"


def huge_pages(told: KernelTuning) -> str:
    """The setting that is chosen of `always [madvise] never`."""
    chosen = (told.transparent_hugepage or "").partition("[")[2].partition("]")[0]
    return chosen or "unknown"


def swap(text: str) -> int:
    """Bytes that are swapped out, by the text of `/proc/meminfo`."""
    sizes = meminfo(text)
    return sizes.get("SwapTotal", 0) - sizes.get("SwapFree", 0)
