"""Health records: the whole result of one check of the nodes, the evidence behind its verdicts."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import NonNegativeFloat, NonNegativeInt

from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.record.records import Record, Verdict
from pytest_llmbench.core.schema import Name, Strict


class Severity(StrEnum):
    """Required action on the node before it may train; the worst comes first.

    ISOLATE: take it out, its hardware has to be replaced. REBOOT: the node needs a reboot. RESET: the GPU or the
    service has to. CONFIGURE: a setting is wrong, nothing is broken. MONITOR: it may train, with a hint.
    """

    ISOLATE = "ISOLATE"
    REBOOT = "REBOOT"
    RESET = "RESET"
    CONFIGURE = "CONFIGURE"
    MONITOR = "MONITOR"

    @property
    def fails(self) -> bool:
        """True if a node with such a finding is not fit."""
        return self is not Severity.MONITOR


class Finding(Strict):
    """One thing that is wrong, or worth watching."""

    host: str | None = None
    """Node with the fault; null for a finding about no single node."""
    subject: str = ""
    """Part of the node, such as `GPU 3` or `n1 - n2`."""
    kind: str
    """Kind of finding, a stable word."""
    severity: Severity
    """Severity, which decides whether the node may train."""
    message: str
    """Found and expected state."""
    action: str = ""
    """Recommended action."""
    statistic: str | None = None
    """Name of the measured statistic, if the finding has a number."""
    measured: str | None = None
    """Measured number with its unit, as text."""
    threshold: str | None = None
    """Bound with its unit, as text."""
    reference: str | None = None
    """Name of the reference that has the bound."""

    def __str__(self) -> str:
        where = " ".join(part for part in (self.host, self.subject) if part)
        does = f" -> {self.action}" if self.action else ""
        return f"{f'{where}: ' if where else ''}{self.message} [{self.severity} {self.kind}]{does}"


class Reading(Strict):
    """One measured number."""

    host: str | None = None
    """Node that was measured; null for several nodes together."""
    subject: str = ""
    """Part of the node, such as `GPU 3`; empty for the whole."""
    statistic: str
    """Name of the statistic."""
    value: float
    """Measured number, in `unit`."""
    unit: str
    """Unit of the number."""
    nodes: NonNegativeInt = 1
    """Number of nodes that took part."""
    gpus: NonNegativeInt = 0
    """Number of GPUs that took part."""

    @property
    def quantity(self) -> Quantity:
        """The number with its unit."""
        return Quantity(self.value, self.unit)


class Report(Strict):
    """The result of a check. A host that is in none of the three mappings was checked."""

    findings: tuple[Finding, ...] = ()
    """Faults and hints found on the nodes."""
    readings: tuple[Reading, ...] = ()
    """Measured values."""
    unjudged: Mapping[str, str] = {}
    """Reason for each node that gave no readable answer."""
    skipped: Mapping[str, str] = {}
    """Reason for each node that was not checked."""
    problem: str | None = None
    """Reason why the whole check cannot be judged; null if it can."""
    skip: str | None = None
    """Reason why the check has no meaning on this system; null if it has."""
    unbounded: bool = False
    """Whether no bound applied to any measured value."""
    bounds: tuple[str, ...] = ()
    """Bounds of the readings: by references, and by physics with how each was computed, or why it judges none."""
    notes: tuple[str, ...] = ()
    """Further remarks for people."""
    evidence: Mapping[str, Any] = {}
    """Plain data behind the findings: outputs of tools, curves, facts."""


class HealthRecord(Record):
    """One check on the nodes of one session, whole."""

    about = "check"
    title = "health record"
    check: Name
    """Name of the check."""
    family: str
    """Family of the check."""
    scope: Literal["node", "cluster"]
    """Subject of the check: each `node`, or the `cluster`."""
    gpus_per_node: NonNegativeInt = 0
    """Number of GPUs of each node, as asked for."""
    options: Mapping[str, Any] = {}
    """Options of the check in the system file."""
    shared_s: NonNegativeFloat = 0.0
    """Seconds of measurements that an earlier check of the session made for this one as well."""
    report: Report
    """The result of the check."""

    @property
    def name(self) -> str:
        """The check's name."""
        return self.check

    @property
    def was_cut_short(self) -> bool:
        """True if it was ended, or never begun, as the session ended."""
        return self.report.problem is not None and self.report.problem.startswith("session_ended:")

    @property
    def took_s(self) -> float:
        """Seconds that it took, with its shared probes; 0 if it did not begin, or end."""
        began, ended = self.timings.started, self.timings.ended
        return 0.0 if began is None or ended is None else ended - began + self.shared_s

    def without_evidence(self) -> Self:
        """The record for readers of its verdicts and numbers: evidence is the bulk of it."""
        return self.model_copy(update={"report": self.report.model_copy(update={"evidence": {}})})

    def host(self, slot: int | None) -> str | None:
        """The node of a slot; None for the whole cluster, and where the nodes never came."""
        return self.hosts[slot] if slot is not None and slot < len(self.hosts) else None

    def findings(self, slot: int | None) -> tuple[Finding, ...]:
        """Findings about a slot's node, or, without a slot, about everything."""
        if slot is None:
            return self.report.findings
        host = self.host(slot)
        return tuple(finding for finding in self.report.findings if finding.host == host)

    def state(self, slot: int | None) -> tuple[Verdict, str]:
        """The verdict on a slot's node, or on the whole cluster, and its reason.

        PASS comes last: the node was checked, it answered, and no fault was found.
        """
        report = self.report
        if report.problem is not None:
            return Verdict.ERROR, report.problem
        if report.skip is not None:
            return Verdict.SKIP, report.skip
        host = self.host(slot)
        if slot is not None and host is None:
            return Verdict.ERROR, f"there is no node in slot {slot}"
        if faults := [str(finding) for finding in self.findings(slot) if finding.severity.fails]:
            return Verdict.FAIL, "\n".join(faults)
        for verdict, reasons in ((Verdict.ERROR, report.unjudged), (Verdict.SKIP, report.skipped)):
            if lines := [f"{name}: {reason}" for name, reason in reasons.items() if host in {None, name}]:
                return verdict, "\n".join(lines)
        return Verdict.PASS, ""

    def bad(self) -> dict[str, str]:
        """The nodes with a fault, each with its first finding."""
        return {
            finding.host: f"{self.check}: {finding.message} [{finding.severity}]"
            for finding in reversed(self.report.findings)
            if finding.host is not None and finding.severity.fails
        }

    def unfit(self) -> dict[str, str]:
        """The nodes that must not train, each with the reason: those with a fault, and those that were not judged."""
        return {host: f"{self.check}: {reason}" for host, reason in self.report.unjudged.items()} | self.bad()
