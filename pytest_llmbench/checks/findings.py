"""Findings of checks: their makers, the kinds that several families have, and bounds on what checks measure.

A bound is a reference of the system's file, or what the same hardware reaches elsewhere.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, Protocol, TypeVar

from pytest_llmbench.checks.base import CheckSettings, Site
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.health import Finding, Reading, Severity
from pytest_llmbench.judging.outliers import outliers
from pytest_llmbench.judging.references import applies, missed, unbounded

BoundKind = Literal["outlier"]
SharedKind = Literal["memory_in_use", "unlike_others", "wrong_values"]

KindOf_contra = TypeVar("KindOf_contra", contravariant=True)

NOT_COMPARED = "rates on CPUs and at scale smoke scatter too much to be compared, unless `tolerance` is set"


class FindingMaker(Protocol[KindOf_contra]):
    """`make_finding` for the kinds of one family: mypy refuses any other."""

    def __call__(
        self, host: str | None, subject: str, kind: KindOf_contra, severity: Severity, message: str, action: str
    ) -> Finding:
        """Make a finding without a number."""


def make_finding(host: str | None, subject: str, kind: str, severity: Severity, message: str, action: str) -> Finding:
    """A finding without a number."""
    return Finding(host=host, subject=subject, kind=kind, severity=severity, message=message, action=action)


def finding_of_reading(reading: Reading, *, kind: str, what: str, action: str) -> Finding:
    """A finding that takes a node out because of a number; `what` states what is wrong with it."""
    return Finding(
        host=reading.host, subject=reading.subject, kind=kind, severity=Severity.ISOLATE, action=action,
        message=f"{reading.statistic} {reading.quantity} is {what}", statistic=reading.statistic,
        measured=str(reading.quantity),
    )  # fmt: skip


class Bounds:
    """The references that count for a check on this system.

    Devices are named as their driver does; None stands for the model of the system's file.
    """

    def __init__(self, site: Site, settings: CheckSettings, *, any_scale: bool = False) -> None:
        """Take a check's references: at scale smoke none, as they are for the full size, unless `any_scale` is set."""
        self.references = settings.references if any_scale or site.scale == "full" else ()
        self._system, self._device = site.system, site.gpu_model or "cpu"

    def judge(self, readings: Sequence[Reading], *, device: str | None = None, action: str = "") -> Iterator[Finding]:
        """Yield a finding for each reading that misses a reference."""
        return missed(readings, self.references, system=self._system, device=device or self._device, action=action)

    def covers(self, readings: Sequence[Reading], device: str | None = None) -> bool:
        """True if a reference is for any of these readings; true without readings."""
        return not unbounded(readings, self.references, system=self._system, device=device or self._device)

    def applicable(self, device: str | None, nodes: int, gpus: int) -> tuple[Reference, ...]:
        """The references that are for a measurement on these nodes and GPUs."""
        whole = Reading(statistic="", value=0.0, unit="GB/s", nodes=nodes, gpus=gpus)
        device = device or self._device
        return tuple(bound for bound in self.references if applies(bound, whole, self._system, device))

    def floor(self, statistic: str, device: str | None, nodes: int, gpus: int) -> float | None:
        """The highest lower bound on a rate, GB/s; None without one."""
        bounds = [bound.at_least for bound in self.applicable(device, nodes, gpus) if bound.statistic == statistic]
        return max((bound.to("GB/s").value for bound in bounds if bound is not None), default=None)


def find_outliers(readings: Sequence[Reading], *, tolerance: float, action: str) -> Iterator[Finding]:
    """Yield a finding for each node's or device's reading that is far below the others of its statistic."""
    for statistic in dict.fromkeys(reading.statistic for reading in readings):
        of_parts = (reading for reading in readings if reading.statistic == statistic and reading.host is not None)
        alike = {f"{reading.host} {reading.subject}": reading for reading in of_parts}
        slow = outliers({name: reading.value for name, reading in alike.items()}, tolerance=tolerance)
        for name, outlier in slow.items():
            #: finding outlier: a rate is far below those of its like, by median and MAD
            yield finding_of_reading(alike[name], kind="outlier", what=outlier.text, action=action)
