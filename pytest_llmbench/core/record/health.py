"""Health records: what one check found out about the nodes, whole, as the evidence behind its verdicts."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

from pydantic import NonNegativeInt

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
        """Whether a node with such a finding is not fit."""
        return self is not Severity.MONITOR


class Finding(Strict):
    """One thing that is wrong, or worth watching.

    Attributes:
        host: the node; null where it is about none alone.
        subject: part of the node, such as `GPU 3` or `n1 - n2`.
        kind: kind.
        severity: severity.
        message: found and expected state.
        action: recommended action.
        statistic: the measured statistic, if the finding has a number.
        measured: that number, with unit.
        threshold: its bound, with unit.
        reference: name of the reference.
    """

    host: str | None = None
    subject: str = ""
    kind: str
    severity: Severity
    message: str
    action: str = ""
    statistic: str | None = None
    measured: str | None = None
    threshold: str | None = None
    reference: str | None = None

    def __str__(self) -> str:
        where = " ".join(part for part in (self.host, self.subject) if part)
        does = f" -> {self.action}" if self.action else ""
        return f"{f'{where}: ' if where else ''}{self.message} [{self.severity} {self.kind}]{does}"


class Reading(Strict):
    """One measured number.

    Attributes:
        host: the node; null for several nodes together.
        subject: part of the node, such as `GPU 3`; empty for the whole.
        statistic: statistic.
        value: the number.
        unit: its unit.
        nodes: nodes that took part.
        gpus: GPUs that took part.
    """

    host: str | None = None
    subject: str = ""
    statistic: str
    value: float
    unit: str
    nodes: NonNegativeInt = 1
    gpus: NonNegativeInt = 0

    @property
    def quantity(self) -> Quantity:
        """The number with its unit."""
        return Quantity(self.value, self.unit)


class Report(Strict):
    """The result of a check. A host that is in none of the three mappings was checked.

    Attributes:
        findings: faults and hints.
        readings: measured values.
        unjudged: nodes that gave no answer, or none that can be read, and why.
        skipped: nodes that were not checked, and why.
        problem: the reason why the whole check cannot be judged; null if it can.
        skip: the reason why the check has no meaning here; null if it has.
        unbounded: true if no bound applied to any measured value.
        notes: further remarks for people.
        evidence: plain data behind the findings: outputs of tools, curves, facts.
    """

    findings: tuple[Finding, ...] = ()
    readings: tuple[Reading, ...] = ()
    unjudged: Mapping[str, str] = {}
    skipped: Mapping[str, str] = {}
    problem: str | None = None
    skip: str | None = None
    unbounded: bool = False
    notes: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = {}


class HealthRecord(Record):
    """One check on the nodes of one session, whole.

    Attributes:
        check: name of the check.
        family: its family.
        scope: `node` or `cluster`.
        job_id: Slurm job that holds the nodes.
        hosts: the nodes by slot.
        gpus_per_node: GPUs of each, as asked for.
        options: the check's `options` in the system's file.
        timings: Unix times `started`, `ended`.
        report: the result of the check.
    """

    about = "check"
    title = "health record"
    check: Name
    family: str
    scope: Literal["node", "cluster"]
    gpus_per_node: NonNegativeInt = 0
    options: Mapping[str, Any] = {}
    report: Report

    @property
    def name(self) -> str:
        """The check's name."""
        return self.check

    @property
    def was_cut_short(self) -> bool:
        """Whether it was ended, or never begun, as the session ended."""
        return self.report.problem is not None and self.report.problem.startswith("session_ended:")

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
        """The verdict on a slot's node, or on the whole cluster, and what it rests on.

        A PASS is what is left when nothing else is true: the node was checked, answered, and nothing was found.
        """
        report = self.report
        if report.problem is not None:
            return Verdict.ERROR, report.problem
        if report.skip is not None:
            return Verdict.SKIP, report.skip
        hosts = None if slot is None else {self.hosts[slot]} if slot < len(self.hosts) else set()
        if hosts == set():
            return Verdict.ERROR, f"there is no node in slot {slot}"
        faults = [str(finding) for finding in self.findings(slot) if finding.severity.fails]
        for verdict, told in (
            (Verdict.FAIL, faults),
            (Verdict.ERROR, _of(hosts, report.unjudged)),
            (Verdict.SKIP, _of(hosts, report.skipped)),
        ):
            if told:
                return verdict, "\n".join(told)
        return Verdict.PASS, ""

    def bad(self) -> dict[str, str]:
        """Nodes with which something is wrong, and what in a few words."""
        return {
            finding.host: f"{self.check}: {finding.message} [{finding.severity}]"
            for finding in reversed(self.report.findings)
            if finding.host is not None and finding.severity.fails
        }

    def unfit(self) -> dict[str, str]:
        """Nodes that must not train according to this check, and why: bad ones, and those that could not be judged."""
        return {host: f"{self.check}: {why}" for host, why in self.report.unjudged.items()} | self.bad()


def _of(hosts: set[str] | None, told: Mapping[str, str]) -> list[str]:
    """Texts about these hosts, or about all."""
    return [f"{host}: {why}" for host, why in told.items() if hosts is None or host in hosts]
