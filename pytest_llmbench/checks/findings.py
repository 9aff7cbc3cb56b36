"""Findings of checks: their makers, the kinds that several families have, and bounds on what checks measure.

A bound is a reference of the system's file, what physics expects of the machine, or what the same hardware reaches
elsewhere.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, TypeVar

from pytest_llmbench.checks.base import CheckSettings, Site
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.health import Finding, Reading, Severity
from pytest_llmbench.judging.outliers import outliers
from pytest_llmbench.judging.physics import NoLaw, PhysicsBound, PhysicsResult
from pytest_llmbench.judging.references import applies, missed, unbounded

BoundKind = Literal["below_physics", "outlier"]
SharedKind = Literal["memory_in_use", "unlike_others", "wrong_values"]

AnyKind = TypeVar("AnyKind", bound=str)
# `make_finding` for the kinds of one family: mypy refuses any other.
FindingMaker = Callable[[str | None, str, AnyKind, Severity, str, str], Finding]

NOT_COMPARED = "rates on CPUs and at scale smoke scatter too much to be compared, unless `tolerance` is set"


def make_finding(host: str | None, subject: str, kind: str, severity: Severity, message: str, action: str) -> Finding:
    """A finding in words alone."""
    return Finding(host=host, subject=subject, kind=kind, severity=severity, message=message, action=action)


def finding_of_reading(reading: Reading, *, kind: str, what: str, action: str) -> Finding:
    """A finding that isolates a node because of a reading; `what` describes the fault."""
    return Finding(
        host=reading.host, subject=reading.subject, kind=kind, severity=Severity.ISOLATE, action=action,
        message=f"{reading.statistic} {reading.quantity} is {what}", statistic=reading.statistic,
        measured=str(reading.quantity),
    )  # fmt: skip


def explain(finding: Finding, why: str, cure: str = "") -> Finding:
    """A finding about a rate with its cause, if it has one; the `cure` of a setting stands for an isolation."""
    if not why or finding.statistic is None:
        return finding
    set_wrong = finding.severity is Severity.ISOLATE and finding.kind in {"below_physics", "below_reference"}
    update = {"severity": Severity.CONFIGURE, "action": cure} if cure and set_wrong else {}
    return finding.model_copy(update={"message": f"{finding.message}; cause: {why}", **update})


# The expectation of physics for a reading; None for a number that no law is about, such as a latency.
ReadingLaw = Callable[[Reading], PhysicsResult | None]


class Bounds:
    """The references that count for a check on this system, and what physics expects of its machines.

    A reference replaces the bound by physics, but for a floor, such as a vendor's threshold: of these two the stricter
    decides. Devices are named as their driver does; None stands for the model of the system's file.
    """

    def __init__(
        self, site: Site, settings: CheckSettings, *, any_scale: bool = False, law: ReadingLaw | None = None
    ) -> None:
        """Take a check's references: at scale smoke none, as they are for the full size, unless `any_scale` is set."""
        self.references = settings.references if any_scale or site.scale == "full" else ()
        self._system, self._device = site.system, site.gpu_model or "cpu"
        self.law: ReadingLaw = law or (lambda _: None)

    def judge(self, readings: Sequence[Reading], *, device: str | None = None, action: str = "") -> Iterator[Finding]:
        """Yield a finding for each reading that misses a reference, or that physics fails or warns of."""
        device = device or self._device
        yield from missed(readings, self.references, system=self._system, device=device, action=action)
        for reading in readings:
            expected = self.law(reading)
            if isinstance(expected, PhysicsBound) and self._replaced_by(reading, device) is None:
                yield from judge_by_physics(reading, expected, action)

    def covers(self, readings: Sequence[Reading], device: str | None = None) -> bool:
        """True if a reference or a law is for any of these readings; true without readings."""
        bounded = not unbounded(readings, self.references, system=self._system, device=device or self._device)
        return bounded or any(isinstance(self.law(reading), PhysicsBound) for reading in readings)

    def lines(self, readings: Sequence[Reading], device: str | None = None) -> Iterator[str]:
        """Yield each bound once: those by references, and those by physics with how they were computed."""
        device, seen = device or self._device, set()
        for reading in readings:
            expected, replacing = self.law(reading), self._replaced_by(reading, device)
            texts = [f"{bound.asked} by reference {bound.name}" for bound in self._of(reading, device)]
            if expected is not None:
                by = f"{expected}" if isinstance(expected, NoLaw) else f"physics expects {expected}"
                texts.append(by if replacing is None else f"{by}; reference {replacing.name} replaces it")
            for line in (f"{reading.statistic}: {text}" for text in texts):
                if line not in seen:
                    seen.add(line)
                    yield line

    def _of(self, reading: Reading, device: str) -> Iterator[Reference]:
        for bound in self.references:
            if bound.statistic == reading.statistic and applies(bound, reading, self._system, device):
                yield bound

    def is_by_physics(self, reading: Reading, device: str | None = None) -> bool:
        """True if physics decides about a reading, instead of a reference."""
        return self._replaced_by(reading, device or self._device) is None

    def _replaced_by(self, reading: Reading, device: str) -> Reference | None:
        """The reference that counts instead of physics: of the same statistic, or of the peak of a curve."""
        peak = (
            reading.model_copy(update={"statistic": "busbw_peak"}) if reading.statistic.startswith("busbw_") else None
        )
        bounds = [bound for one in (reading, peak) if one is not None for bound in self._of(one, device)]
        return next((bound for bound in bounds if not bound.floor and bound.at_least), None)

    def applicable(self, device: str | None, nodes: int, gpus: int) -> tuple[Reference, ...]:
        """The references that are for a measurement on these nodes and GPUs."""
        whole = Reading(statistic="", value=0.0, unit="GB/s", nodes=nodes, gpus=gpus)
        device = device or self._device
        return tuple(bound for bound in self.references if applies(bound, whole, self._system, device))

    def unmeasured(self, readings: Iterable[Reading], device: str | None, nodes: int, gpus: int) -> Iterator[str]:
        """Yield the references for these nodes and GPUs whose statistic is missing among the readings."""
        measured = {reading.statistic for reading in readings}
        for bound in self.applicable(device, nodes, gpus):
            if bound.statistic not in measured:
                yield f"reference {bound.name} asks for {bound.statistic}, which was not measured"

    def floor(self, statistic: str, device: str | None, nodes: int, gpus: int) -> float | None:
        """The highest lower bound on a rate, GB/s; None without one."""
        bounds = [bound.at_least for bound in self.applicable(device, nodes, gpus) if bound.statistic == statistic]
        return max((bound.to("GB/s").value for bound in bounds if bound is not None), default=None)


def judge_by_physics(reading: Reading, expected: PhysicsBound, action: str) -> Iterator[Finding]:
    """Yield a fault for a reading below the FAIL value of physics, and a hint for one below its WARN value."""
    fails = reading.value < expected.fail
    if not fails and reading.value >= expected.warn:
        return
    limit = expected.fail if fails else expected.warn
    where = "or the fabric is oversubscribed, which `network: oversubscription` of the system's file states"
    message = f"{reading.statistic} {reading.quantity} misses >= {limit:.4g} {reading.unit}: physics expects "
    message += f"{expected.expected:.4g} ({expected.how})"
    #: finding below_physics: a rate is far below what the node's hardware should reach; a hint (MONITOR) if it is
    #:  a little below
    yield Finding(
        host=reading.host, subject=reading.subject, kind="below_physics", message=message,
        severity=Severity.ISOLATE if fails else Severity.MONITOR,
        action="; ".join(part for part in (action, where if reading.nodes > 1 else "") if part),
        statistic=reading.statistic, measured=str(reading.quantity), threshold=f">= {limit:.6g} {reading.unit}",
        reference="physics",
    )  # fmt: skip


def find_outliers(readings: Sequence[Reading], *, tolerance: float, action: str) -> Iterator[Finding]:
    """Yield a finding for each node's or device's reading that is far below the others of its statistic."""
    for statistic in dict.fromkeys(reading.statistic for reading in readings):
        of_parts = (reading for reading in readings if reading.statistic == statistic and reading.host is not None)
        alike = {f"{reading.host} {reading.subject}": reading for reading in of_parts}
        slow = outliers({name: reading.value for name, reading in alike.items()}, tolerance=tolerance)
        for name, outlier in slow.items():
            #: finding outlier: a rate is far below those of its like
            yield finding_of_reading(alike[name], kind="outlier", what=outlier.text, action=action)
