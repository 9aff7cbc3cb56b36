"""Check of settings that are known to cost speed. Its findings are hints."""

from collections.abc import Iterator

from pytest_llmbench.checks.base import CheckSettings, Fleet
from pytest_llmbench.checks.host.base import HostCheck, find_differing, finding
from pytest_llmbench.checks.host.nodes.facts import KernelTuning
from pytest_llmbench.core.record.health import Report, Severity

# The swap of an idle node may hold less than this.
_SWAP_BYTES = 256 * 2**20

Hint = tuple[str, str, str]  # subject, message, action


class Tuning(HostCheck):
    """Settings of the kernel, the CPUs and the PCI bus."""

    name = "tuning"
    summary = "hints: huge pages, IOMMU, PCI ACS, CPU governor, NUMA balancing, swap"

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        facts, unjudged = self.ask(fleet, settings)
        gpus = bool(fleet.site.gpus_per_node)
        hints: list[tuple[str, Hint]] = []
        evidence = {}
        for host, node in facts.items():
            hints += [(host, hint) for hint in node_hints(node.tuning, node.memory.swapped)]
            hints += [(host, hint) for hint in gpu_hints(node.tuning) if gpus]
            evidence[host] = {**node.tuning.model_dump(), "swap": node.memory.swapped}
        pages = {host: huge_pages(node.tuning) for host, node in facts.items()}
        action = "set the same on all nodes"
        hints += [(host, ("transparent huge pages", words, action)) for host, words in find_differing(pages).items()]
        findings = [  #: finding tuning: a setting that is known to cost speed
            finding(host, subject, "tuning", Severity.MONITOR, message, action)
            for host, (subject, message, action) in hints
        ]
        blind = gpus and any(node.tuning.acs is None for node in facts.values())
        notes = ("PCI ACS was not checked: only root can read it",) if blind else ()
        return Report(findings=tuple(findings), unjudged=unjudged, notes=notes, evidence={"tuning": evidence})


def node_hints(tuning: KernelTuning, swapped: int) -> Iterator[Hint]:
    """Hints about a node with or without GPUs, by its settings and the bytes that are swapped out."""
    governors = {name: count for name, count in tuning.governors.items() if name != "performance"}
    if governors:
        message = ", ".join(f"{count} CPUs have {name}" for name, count in governors.items())
        yield "CPU governor", f"{message}, and not performance", "`cpupower frequency-set --governor performance`"
    if tuning.numa_nodes > 1 and tuning.numa_balancing not in {None, "0"}:
        message = f"the kernel moves memory between {tuning.numa_nodes} NUMA nodes while ranks use it"
        yield "NUMA balancing", message, "`sysctl kernel.numa_balancing=0`"
    if huge_pages(tuning) == "never":
        message = "never: large host buffers are made of 4 KiB pages"
        yield "transparent huge pages", message, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    if swapped > _SWAP_BYTES:
        message = f"{swapped / 2**30:.1f} GiB of memory are swapped out"
        yield "swap", message, "find out what needed so much memory; `swapoff -a && swapon -a`"


def gpu_hints(tuning: KernelTuning) -> Iterator[Hint]:
    """Hints about the way between GPUs and network cards."""
    translated = {kind: count for kind, count in tuning.iommu_groups.items() if kind != "identity"}
    if translated:
        options = " ".join(tuning.iommu_options) or "no option about it"
        message = f"the IOMMU translates for {sum(translated.values())} groups (kernel started with {options})"
        yield "IOMMU", message, "start the kernel with iommu=pt, unless this is a virtual machine's host"
    if tuning.acs:
        message = f"{len(tuning.acs)} PCI bridges redirect traffic between devices to the root complex: "
        message += ", ".join(tuning.acs[:4])
        yield "PCI ACS", message, "switch ACS off in the firmware or by setpci, unless this is a virtual machine's host"


def huge_pages(tuning: KernelTuning) -> str:
    """The chosen setting, in brackets, of `always [madvise] never`."""
    return (tuning.transparent_hugepage or "").partition("[")[2].partition("]")[0] or "unknown"
