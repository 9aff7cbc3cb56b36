"""Selects the references that apply to a machine, and compares readings with their bounds."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from pytest_llmbench.core.quantity import counted
from pytest_llmbench.core.recipe.recipes import Scale
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.health import Finding, Reading, Severity

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


# Words behind a model's name that leave it the same GPU: its memory, and the form in which it is built.
_SAME = re.compile(r"\d+gb?|hbm\d\w*|sxm\d*|pcie|nvl|ac")
# The whole name that drivers give the SXM card, so that a further word names another one: H200 NVL is slower.
_WHOLE_NAMES = {"h200", "h800", "h20"}


def same_gpu(model: str, device: str) -> bool:
    """True if a device is that GPU model: of a model's name, what is written counts.

    `H100` is every H100, `H100 80GB HBM3` the one that the driver calls so, with or without its vendor in front. `H100`
    differs from `GH200`, `A10` from `A100`, and a MIG slice from its GPU.
    """
    (name, *wanted), (other, *have) = _words_of_gpu(model), _words_of_gpu(device)
    if not {"pcie", "nvl"} & {*have}:  # drivers leave the form out of H100 80GB HBM3
        wanted = [word for word in wanted if not word.startswith("sxm")]
    further = {*have} - {*wanted}
    return (
        name == other
        and {*wanted} <= {*have}
        and all(_SAME.fullmatch(word) for word in further)
        and not (further and not wanted and name in _WHOLE_NAMES)
    )


def may_be_gpu(model: str, declared: str) -> bool:
    """True if the GPU that a system's file declares may turn out to be that model: either name may say more."""
    return same_gpu(model, declared) or same_gpu(declared, model)


def _words_of_gpu(name: str) -> list[str]:
    """The words of a GPU's name from its model on, which is the first with a digit: the vendor is before it."""
    words = re.findall(r"[a-z0-9.+]+", name.lower())
    first = next((number for number, word in enumerate(words) if re.search(r"\d", word)), 0)
    return words[first:] or [name]


def why_not_applicable(reference: Reference, machine: Machine) -> str | None:
    """The reason why a reference is inapplicable to this machine and scale; None if it applies.

    A portable reference applies to every machine, an absolute one to the full recipe on the hardware that it names.
    """
    wanted = reference.applies_to
    if wanted is None:
        return None
    fits = [
        machine.scale == "full",
        wanted.gpu is None or (machine.gpus > 0 and same_gpu(wanted.gpu, machine.device)),
        wanted.gpus in (None, machine.gpus),
        wanted.nodes in (None, machine.nodes),
        wanted.system in (None, machine.system),
    ]
    if all(fits):
        return None
    return f"reference {reference.name} ({reference.asked}) is for {wanted} at scale full; this run: {machine}"


def missed(
    readings: Sequence[Reading], references: Sequence[Reference], *, system: str, device: str, action: str = ""
) -> Iterator[Finding]:
    """Yield a finding, with this action, for every reading that misses an applicable reference of its statistic.

    Args:
        readings: the measured values.
        references: bounds; those for other machines, or other numbers of nodes or GPUs, are skipped.
        system: name of the system file.
        device: the GPU model as the driver names it, or `cpu`.
        action: recommended action if a bound is missed.
    """
    #: finding above_reference: a number is above a bound of the system's file
    #: finding below_reference: a number is below a bound of the system's file
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
    return why_not_applicable(reference, machine) is None
