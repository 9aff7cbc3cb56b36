"""Makers of findings, and the kinds that several families of checks have. Each family declares its own in its base."""

from typing import Literal, Protocol, TypeVar

from pytest_llmbench.core.record.health import Finding, Reading, Severity

SharedKind = Literal["memory_in_use", "unlike_others", "wrong_values"]

KindOf_contra = TypeVar("KindOf_contra", contravariant=True)


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
