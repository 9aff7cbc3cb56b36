"""Selects the references that apply to a machine, and compares readings with their bounds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from pytest_llmbench.core.gpus import published, same_gpu
from pytest_llmbench.core.quantity import counted
from pytest_llmbench.core.recipe.recipes import Scale
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.health import Finding, Reading, Severity
from pytest_llmbench.judging.statistics import Statistic

ReferenceKind = Literal["above_reference", "below_reference"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """The machine that a run really used.

    `device` is what the ranks reported, such as `NVIDIA A100-SXM4-80GB` or `cpu`; `gpus` and `nodes` are totals.
    """

    system: str
    device: str
    gpus: int
    nodes: int
    scale: Scale

    def __str__(self) -> str:
        what = f"{self.gpus} × {self.device}" if self.gpus else self.device
        scale = "" if self.scale == "full" else f", scale {self.scale}"
        return f"{what}, {counted(self.nodes, 'node')}, system {self.system}{scale}"


def applied(
    reference: Reference, machine: Machine, statistic: Statistic | None = None, precision: str = ""
) -> Reference | str:
    """The reference as it counts on a machine at its scale, or the reason why it is left out.

    A portable reference counts on every machine, an absolute one for the full recipe on the hardware that it names. A
    bound that a slow run misses counts on as many better GPUs as well, as a floor: a run below it is broken. Published
    peaks at the `precision` of the run tell which GPU is better; without the reference's `statistic` there is no floor.
    """
    wanted = reference.applies_to
    if wanted is None:
        return reference
    fits = [
        machine.scale == "full",
        wanted.gpus in (None, machine.gpus),
        wanted.nodes in (None, machine.nodes),
        wanted.system in (None, machine.system),
    ]
    reason = f"reference {reference.name} ({reference.asked}) is for {wanted} at scale full; this run: {machine}"
    if not all(fits):
        return reason
    if wanted.gpu is None or (machine.gpus > 0 and same_gpu(wanted.gpu, machine.device)):
        return reference
    if machine.gpus == 0 or statistic is None:
        return reason
    floor = _as_floor(reference, wanted.gpu, machine.device, statistic, precision)
    return f"{reason}. As a floor it does not count: {floor}" if isinstance(floor, str) else floor


def _as_floor(reference: Reference, gpu: str, device: str, statistic: Statistic, precision: str) -> Reference | str:
    """The reference for a better GPU than its own, without a bound that such a GPU may miss; or why it is not one."""
    demand = "at_least" if statistic.is_rate else "at_most"
    bound = getattr(reference, demand)
    if statistic.speed in {None, "share_of_peak"}:
        return f"{reference.statistic} need not be better on a faster GPU"
    if bound is None:
        return "it is a bound that slow runs meet"
    if reference.applies_to is None or reference.applies_to.gpus is None:
        return "it names no number of GPUs"
    if (own := published(gpu)) is None or (its := published(device)) is None:
        return f"no data sheet of {gpu if own is None else device} is in llmbench"
    if less := its.weaker_in(own, precision):
        return "; ".join(less)
    return reference.model_copy(update={"at_least": None, "at_most": None, demand: bound, "floor": True})


def missed(
    readings: Sequence[Reading], references: Sequence[Reference], *, system: str, device: str, action: str = ""
) -> Iterator[Finding]:
    """Yield a finding, with this action, for every reading that misses a reference of its statistic.

    References for another system, device (the GPU model as the driver names it, or `cpu`), or number of nodes or GPUs
    are skipped.
    """
    #: finding above_reference: above a bound of the system's file
    #: finding below_reference: below a bound of the system's file
    for reference, reading in product(references, readings):
        if reading.statistic != reference.statistic or not applies(reference, reading, system, device):
            continue
        bound = reference.missed_by(reading.quantity)
        if bound is not None:
            op, limit = bound
            kind: ReferenceKind = "below_reference" if op == ">=" else "above_reference"
            source = f"{reference.name}: {reference.why} [{reference.source}, {reference.date}]"
            yield Finding(
                host=reading.host, subject=reading.subject, kind=kind, severity=Severity.ISOLATE, action=action,
                message=f"{reading.statistic} {reading.quantity} misses {op} {limit} ({source})",
                statistic=reading.statistic, measured=str(reading.quantity), threshold=reference.threshold,
                reference=reference.name,
            )  # fmt: skip


def unbounded(readings: Sequence[Reading], references: Sequence[Reference], *, system: str, device: str) -> bool:
    """True if there are readings, and all references of their statistics are for other machines."""
    return bool(readings) and not any(
        reference.statistic == reading.statistic and applies(reference, reading, system, device)
        for reference in references
        for reading in readings
    )


def applies(reference: Reference, reading: Reading, system: str, device: str) -> bool:
    """True if a reference applies to the machine and the number of nodes and GPUs of a reading."""
    machine = Machine(system=system, device=device, gpus=reading.gpus, nodes=reading.nodes, scale="full")
    return isinstance(applied(reference, machine), Reference)
