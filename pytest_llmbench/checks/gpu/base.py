"""Shared parts of the GPU checks: the facts of every node's GPUs, judging them one by one, and comparing them."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pytest_llmbench.checks.answers import dissenters, read_per_host
from pytest_llmbench.checks.base import CheckDefaults, CheckSettings, Fleet, Site, options_of
from pytest_llmbench.checks.findings import FindingMaker, SharedKind, make_finding
from pytest_llmbench.checks.gpu.nodes.facts import GpuFacts, ToolOutput
from pytest_llmbench.checks.gpu.nvidia_smi import Smi, SmiGpu, read_smi
from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.record.health import Finding, Report, Severity

GpuKind = Literal[
    "application_clock", "applications_clocks_setting", "driver_not_loaded", "ecc_correctable", "ecc_history",
    "ecc_off", "ecc_uncorrectable", "fabric", "fallen_off_the_bus", "gpu_lost", "gpu_memory", "gpu_model",
    "gpus_missing", "hw_power_brake_slowdown", "hw_slowdown", "hw_thermal_slowdown", "imex", "inforom_corrupted",
    "memory_unrepairable", "mig", "nvidia_smi_missing", "nvidia_smi_warns", "nvlink_inactive", "nvlink_slow",
    "pcie_gen", "pcie_replays", "pcie_width", "persistence", "power_limit", "recovery_action", "remap_failed",
    "remap_pending", "repair_pending", "retirement_pending", "sram_threshold", "stray_process", "sw_power_cap",
    "sw_thermal_slowdown", "sxid", "xid",
]  # fmt: skip
finding: FindingMaker[GpuKind | SharedKind] = make_finding

# A finding without its place: kind, severity, message, action.
Fault = tuple[GpuKind | SharedKind, Severity, str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuNodes:
    """The answers of the nodes, by host."""

    facts: Mapping[str, GpuFacts]
    smi: Mapping[str, Smi]
    failed: Mapping[str, str]  # reasons for nodes where nvidia-smi is missing, failed, or printed something unreadable
    silent: Mapping[str, str]  # reasons for nodes without an answer

    @property
    def unjudged(self) -> dict[str, str]:
        """Reasons for nodes with unknown GPUs."""
        return {**self.silent, **self.failed}

    def gpus(self) -> Iterator[tuple[str, SmiGpu]]:
        return ((host, gpu) for host, smi in self.smi.items() for gpu in smi.gpus)

    def values(self, of: Callable[[SmiGpu], str | None]) -> dict[tuple[str, str], str]:
        """A known value of each GPU, by host and subject."""
        values = {(host, subject(gpu)): of(gpu) for host, gpu in self.gpus()}
        return {key: value for key, value in values.items() if value is not None}


class GpuCheck(CheckDefaults):
    """A check of what a node's driver and kernel report about its GPUs; one probe collects it for all such checks."""

    family = "gpu"
    deadline_s = 240.0

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        options = options_of(self, settings, self.options)
        if not fleet.site.gpus_per_node:
            return Report(skip="this system has no GPUs")
        probe = self.probe(settings, "facts:facts", name="gpu-facts", gpus=True)
        facts, silent = read_per_host(fleet.once(probe), GpuFacts)
        return self.report(_read(facts, silent), fleet.site, options)

    @abstractmethod
    def report(self, nodes: GpuNodes, site: Site, options: Any) -> Report:
        """Judge the nodes."""


def _read(facts: Mapping[str, GpuFacts], silent: Mapping[str, str]) -> GpuNodes:
    smi: dict[str, Smi] = {}
    failed: dict[str, str] = {}
    for host, node in facts.items():
        try:
            require_output(node.smi)
            smi[host] = read_smi(Path(node.smi_file).read_text(encoding="utf-8", errors="replace"))
        except (RunError, OSError) as error:
            failed[host] = str(error)
    return GpuNodes(facts=facts, smi=smi, failed=failed, silent=silent)


def require_output(output: ToolOutput) -> None:
    """Refuse the output of a program that failed. Raises RunError `failed`, with the reason."""
    if output.error is not None:
        raise RunError("failed", f"{output.command}: {output.error}")  #: error failed: Check: a tool failed


def subject(gpu: SmiGpu) -> str:
    """A GPU's name in findings."""
    return f"GPU {gpu.index} ({gpu.bus})"


class PerGpu(GpuCheck):
    """A check that judges nvidia-smi's report on each GPU."""

    needs: ClassVar[tuple[str, ...]]  # attributes of `SmiGpu` without which a GPU cannot be judged
    shows: ClassVar[tuple[str, ...]] = ()  # further ones for the record

    @abstractmethod
    def judge(self, gpu: SmiGpu, options: Any) -> Iterator[Fault]:
        """Yield the faults of a GPU."""

    def missing(self, gpu: SmiGpu) -> list[str]:
        return [name for name in self.needs if getattr(gpu, name) is None]

    def compare(self, nodes: GpuNodes) -> Iterator[Finding]:
        """Yield differences between GPUs that should be alike."""
        yield from ()

    def notes(self, nodes: GpuNodes, options: Any) -> Iterator[str]:
        yield from ()

    def report(self, nodes: GpuNodes, site: Site, options: Any) -> Report:
        findings = [
            finding(host, subject(gpu), *fault) for host, gpu in nodes.gpus() for fault in self.judge(gpu, options)
        ]
        unknown = {host: "nvidia-smi lists no GPU" for host, smi in nodes.smi.items() if not smi.gpus}
        shown: dict[str, list[dict[str, Any]]] = {}
        for host, gpu in nodes.gpus():
            if missing := self.missing(gpu):
                unknown.setdefault(host, describe_missing(gpu, missing))
            known = asdict(gpu)
            shown.setdefault(host, []).append({name: known[name] for name in ("bus", *self.needs, *self.shows)})
        return Report(
            findings=(*findings, *self.compare(nodes)),
            unjudged={**nodes.unjudged, **unknown},
            notes=tuple(self.notes(nodes, options)),
            evidence={"gpus": shown, "nvidia_smi": {host: node.smi for host, node in nodes.facts.items()}},
        )


def describe_missing(gpu: SmiGpu, missing: list[str]) -> str:
    """The reason to leave a GPU with missing facts unjudged."""
    return f"{subject(gpu)}: nvidia-smi does not report {', '.join(missing)}"


def find_unlike(what: str, values: Mapping[tuple[str, str], str], *, action: str) -> Iterator[Finding]:
    """Yield a finding for everything that differs from the majority; for all, without a majority.

    Values, which `what` names, are by host and subject; leave unknown ones out.
    """
    odd = dissenters(values)
    counts = ", ".join(f"{count} × {value}" for value, count in Counter(values.values()).most_common())
    rest = f"others: {counts}" if odd is not None else f"the right value is unknown: {counts}"
    for host, part in values if odd is None else odd:
        message = f"{what} {values[host, part]}; {rest}"
        yield finding(host, part, "unlike_others", Severity.CONFIGURE, message, action)
