"""Whether what a check measured lies within the bounds that were set for this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.health import Finding, Reading, Severity
from pytest_llmbench.judging.references import Machine, why_not_applicable


def missed(
    readings: Sequence[Reading], references: Sequence[Reference], *, system: str, device: str, action: str = ""
) -> Iterator[Finding]:
    """Yield a finding for every reading that misses a reference of its statistic which is for this machine.

    Args:
        readings: the measured values.
        references: bounds; one that is for another machine, or another number of nodes or GPUs, does not count.
        system: name of the system file.
        device: the GPU model as the driver names it, or `cpu`.
        action: recommended action if a bound is missed.
    """
    for reference in references:
        for reading in readings:
            if reading.statistic != reference.statistic or not applies(reference, reading, system, device):
                continue
            bound = reference.missed_by(reading.quantity)
            if bound is not None:
                op, limit = bound
                yield Finding(
                    host=reading.host,  #: finding above_reference: a number is above a bound of the system's file
                    subject=reading.subject,  #: finding below_reference: a number is below a bound of the system's file
                    kind="below_reference" if op == ">=" else "above_reference",
                    severity=Severity.ISOLATE,
                    message=f"{reading.statistic} {reading.quantity} misses {op} {limit} "
                    f"({reference.name}: {reference.why} [{reference.source}, {reference.date}])",
                    action=action,
                    statistic=reading.statistic,
                    measured=str(reading.quantity),
                    threshold=reference.threshold,
                    reference=reference.name,
                )


def unbounded(readings: Sequence[Reading], references: Sequence[Reference], *, system: str, device: str) -> bool:
    """Whether something was measured, and no reference of its statistics is for this machine."""
    return bool(readings) and not any(
        reference.statistic == reading.statistic and applies(reference, reading, system, device)
        for reference in references
        for reading in readings
    )


def applies(reference: Reference, reading: Reading, system: str, device: str) -> bool:
    """Whether a reference is for the machine and the number of nodes and GPUs of a reading."""
    machine = Machine(system=system, device=device, gpus=reading.gpus, nodes=reading.nodes, scale="full")
    return why_not_applicable(reference, machine) is None
