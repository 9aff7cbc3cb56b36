"""Shared parts of the GPU checks: the facts of every node's GPUs, judging them one by one, and comparing them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from pytest_llmbench.checks.answers import dissenters, read_per_host
from pytest_llmbench.checks.base import CheckSettings, Fleet, NodeCheck, Probe, Site, deadline_of, options_of
from pytest_llmbench.checks.gpu.kinds import GpuKind, finding
from pytest_llmbench.checks.gpu.nodes.facts import GpuFacts, SmiOutput
from pytest_llmbench.checks.gpu.nvidia_smi import Smi, SmiGpu, read_smi
from pytest_llmbench.checks.kinds import SharedKind
from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.record.health import Finding, Report, Severity

_FACTS = "pytest_llmbench.checks.gpu.nodes.facts:facts"


@dataclass(frozen=True, kw_only=True, slots=True)
class Nodes:
    """The answers of the nodes, by host.

    Attributes:
        failed: nodes where nvidia-smi is missing, failed, or cannot be read, and why.
        silent: nodes without an answer, and why.
    """

    told: Mapping[str, GpuFacts]
    smi: Mapping[str, Smi]
    failed: Mapping[str, str]
    silent: Mapping[str, str]

    @property
    def unjudged(self) -> dict[str, str]:
        """Nodes of whose GPUs nothing is known."""
        return {**self.silent, **self.failed}

    def gpus(self) -> Iterator[tuple[str, SmiGpu]]:
        """Every GPU with its host."""
        for host, smi in self.smi.items():
            for gpu in smi.gpus:
                yield host, gpu


class GpuCheck(NodeCheck):
    """A check of what a node's driver and kernel say of its GPUs, which every node is asked once for all of them."""

    name: str
    summary: str
    family = "gpu"
    deadline_s = 240.0

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        """Ask every node, and judge."""
        options = options_of(self, settings, self.options)
        if not fleet.site.gpus_per_node:
            return Report(skip="this system has no GPUs")
        probe = Probe(name="gpu-facts", entry=_FACTS, deadline_s=deadline_of(self, settings), gpus=True)
        return self.report(_read(*read_per_host(fleet.once(probe), GpuFacts)), fleet.site, options)

    def report(self, nodes: Nodes, site: Site, options: Any) -> Report:
        """Judge the answers of all nodes."""
        raise NotImplementedError


def _read(told: Mapping[str, GpuFacts], silent: Mapping[str, str]) -> Nodes:
    smi: dict[str, Smi] = {}
    failed: dict[str, str] = {}
    for host, answer in told.items():
        try:
            smi[host] = _smi(answer.smi)
        except (RunError, OSError) as error:
            failed[host] = str(error)
    return Nodes(told=told, smi=smi, failed=failed, silent=silent)


def _smi(told: SmiOutput) -> Smi:
    if told.error is not None:
        raise RunError("failed", f"{told.command}: {told.error}")  #: error failed: Check: a tool failed
    return read_smi(Path(told.path).read_text(encoding="utf-8", errors="replace"))


def subject(gpu: SmiGpu) -> str:
    """How a GPU is named in findings."""
    return f"GPU {gpu.index} ({gpu.bus})"


def fault(gpu: SmiGpu, kind: GpuKind | SharedKind, severity: Severity, message: str, action: str) -> Finding:
    """A finding about a GPU, still without its host."""
    return Finding(subject=subject(gpu), kind=kind, severity=severity, message=message, action=action)


class PerGpu(GpuCheck):
    """A check that judges what nvidia-smi says of each GPU.

    Attributes:
        needs: attributes of `SmiGpu` without which a GPU cannot be judged.
        shows: further ones that belong in the record.
    """

    needs: ClassVar[tuple[str, ...]]
    shows: ClassVar[tuple[str, ...]] = ()

    def judge(self, gpu: SmiGpu, options: Any) -> Iterator[Finding]:
        """Yield what is wrong with one GPU."""
        raise NotImplementedError

    def missing(self, gpu: SmiGpu) -> list[str]:
        """Missing facts that are necessary to judge a GPU."""
        return [name for name in self.needs if getattr(gpu, name) is None]

    def compare(self, nodes: Nodes) -> Iterator[Finding]:  # noqa: ARG002 - most have nothing to compare
        """Yield what differs between GPUs that should be alike."""
        yield from ()

    def notes(self, nodes: Nodes, options: Any) -> Iterator[str]:  # noqa: ARG002 - most have none
        """Yield further remarks for people."""
        yield from ()

    def report(self, nodes: Nodes, site: Site, options: Any) -> Report:  # noqa: ARG002 - each GPU by itself
        """Judge GPU by GPU."""
        findings = [
            found.model_copy(update={"host": host}) for host, gpu in nodes.gpus() for found in self.judge(gpu, options)
        ]
        return Report(
            findings=(*findings, *self.compare(nodes)),
            unjudged={**nodes.unjudged, **self._unknown(nodes)},
            notes=tuple(self.notes(nodes, options)),
            evidence={
                "gpus": self._shown(nodes),
                "nvidia_smi": {host: facts.smi for host, facts in nodes.told.items()},
            },
        )

    def _unknown(self, nodes: Nodes) -> dict[str, str]:
        """Nodes with a GPU of which something is not known, and nodes that list none."""
        told = {host: "nvidia-smi lists no GPU" for host, smi in nodes.smi.items() if not smi.gpus}
        for host, gpu in nodes.gpus():
            missing = self.missing(gpu)
            if missing:
                told.setdefault(host, f"{subject(gpu)}: nvidia-smi does not say {', '.join(missing)}")
        return told

    def _shown(self, nodes: Nodes) -> dict[str, list[dict[str, Any]]]:
        shown: dict[str, list[dict[str, Any]]] = {}
        for host, gpu in nodes.gpus():
            known = asdict(gpu)
            facts = {name: known[name] for name in ("bus", *self.needs, *self.shows)}
            shown.setdefault(host, []).append(facts)
        return shown


def unlike(what: str, values: Mapping[tuple[str, str], str], *, action: str) -> Iterator[Finding]:
    """Yield a finding for everything that differs from the majority; for all, where no value has the majority.

    Values, which `what` names, are by host and subject; leave out what is not known.
    """
    wrong = dissenters(values)
    counts = ", ".join(f"{count} × {value}" for value, count in Counter(values.values()).most_common())
    rest = f"others: {counts}" if wrong is not None else f"the right value is unknown: {counts}"
    for host, subject in values if wrong is None else wrong:
        yield finding(
            host, subject, "unlike_others", Severity.CONFIGURE, f"{what} {values[host, subject]}; {rest}", action
        )
