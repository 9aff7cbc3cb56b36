"""Whether a reference is for this run at all."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_llmbench.core.recipe.recipes import Scale
from pytest_llmbench.core.recipe.reference import Reference


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """The machine that a run really used.

    Attributes:
        system: name of the system file.
        device: the device that the ranks reported, such as `NVIDIA A100-SXM4-80GB` or `cpu`.
        gpus: GPUs in all; 0 on the CPU.
        nodes: nodes in all.
        scale: whether the full recipe ran or its tiny variant.
    """

    system: str
    device: str
    gpus: int
    nodes: int
    scale: Scale

    def __str__(self) -> str:
        what = f"{self.gpus} × {self.device}" if self.gpus else self.device
        scale = "" if self.scale == "full" else f", scale {self.scale}"
        return f"{what}, {self.nodes} node{'s' if self.nodes > 1 else ''}, system {self.system}{scale}"


def same_gpu(model: str, device: str) -> bool:
    """Whether a device is that GPU model, named with or without its vendor in front.

    An `A100-SXM4-80GB` is not an `A10`, an `H200 NVL` not an `H200`, and a MIG slice of a GPU is not the GPU.
    """
    return device == model or device.endswith(f" {model}")


def why_not_applicable(reference: Reference, machine: Machine) -> str | None:
    """Say why an absolute reference is not for this machine and scale; None when it is.

    A portable reference is for every machine. An absolute one is for the full recipe on the hardware
    it names, whatever the smoke variant would measure.
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
