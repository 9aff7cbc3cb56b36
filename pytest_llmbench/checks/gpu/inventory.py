"""GPU inventory: the number and model of the system file, all alike, set up for training, and all answering."""

from collections.abc import Iterator

from pydantic import Field

from pytest_llmbench.checks.base import Site
from pytest_llmbench.checks.gpu.base import GpuCheck, Nodes, fault, subject, unlike
from pytest_llmbench.checks.gpu.kinds import GpuKind
from pytest_llmbench.checks.gpu.nodes.facts import SmiOutput
from pytest_llmbench.checks.gpu.nvidia_smi import Smi, SmiGpu
from pytest_llmbench.core.record.health import Finding, Report, Severity
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.judging.references import same_gpu

# How nvidia-smi ends, and what that means for the node.
_NO_DRIVER, _CORRUPTED, _FALLEN = 9, 14, 15
_FALLEN_WORDS = ("unable to determine the device handle", "gpu is lost", "fallen off the bus")
_REBOOT = "reboot the node (a cold start, where it can be); if it comes again, replace the GPU"


class InventoryOptions(Strict):
    """Requirements for the GPUs of a node."""

    persistence: bool = True
    """Require that the driver stays loaded while no process uses a GPU."""
    memory_tolerance: float = Field(default=0.05, ge=0, lt=1)
    """Allowed shortfall of a GPU's memory from the system file (fraction)."""


class Inventory(GpuCheck):
    """Compare the GPUs of a node with the system's file."""

    name = "gpu_inventory"
    summary = "number, model and memory of the GPUs, all alike and all answering; MIG off, persistence on"
    options: type[Strict] = InventoryOptions

    def report(self, nodes: Nodes, site: Site, options: InventoryOptions) -> Report:
        """Judge every GPU, and compare them."""
        findings = [found.model_copy(update={"host": host}) for host, found in _all(nodes, site, options)]
        promised = {"model": site.gpu_model, "memory": site.gpu_memory_gib}
        gpus = {host: [f"{gpu.name} {gpu.bus} {gpu.uuid}" for gpu in smi.gpus] for host, smi in nodes.smi.items()}
        broken = {found.host for found in findings if found.kind in _WHY_FAILED}
        return Report(
            findings=(*findings, *_alike(nodes)),
            unjudged={
                **{host: why for host, why in nodes.unjudged.items() if host not in broken},
                **_unknown(nodes, site, options),
            },
            notes=tuple(f"the system's file has no GPU {what}" for what, of in promised.items() if of is None),
            evidence={"gpus": gpus, "nvidia_smi": {host: answer.smi for host, answer in nodes.told.items()}},
        )


def _all(nodes: Nodes, site: Site, options: InventoryOptions) -> Iterator[tuple[str, Finding]]:
    for host in nodes.failed:
        for found in _why_failed(nodes.told[host].smi, nodes.failed[host]):
            yield host, found
    for host, smi in nodes.smi.items():
        for found in _count(smi, site.gpus_per_node):
            yield host, found
    for host, gpu in nodes.gpus():
        for found in (*_answers(gpu), *_promised(gpu, site, options), *_set_up(gpu, options)):
            yield host, found


#: finding nvidia_smi_missing: there is no nvidia-smi
#: finding driver_not_loaded: NVIDIA's driver is not loaded
#: finding fallen_off_the_bus: a GPU no longer answers on PCIe
#: finding inforom_corrupted: nvidia-smi reports that the GPU's own configuration memory is corrupted
_WHY_FAILED: tuple[GpuKind, GpuKind, GpuKind, GpuKind] = (
    "nvidia_smi_missing", "driver_not_loaded", "fallen_off_the_bus", "inforom_corrupted"
)  # fmt: skip


def _why_failed(told: SmiOutput, why: str) -> Iterator[Finding]:
    """The meaning of a failure of nvidia-smi for the node; None if it may have any cause."""
    missing, no_driver, fallen, corrupted = _WHY_FAILED
    code, error = told.code, told.error or ""
    if code is None and error.startswith("No such file"):
        action = "install NVIDIA's driver, or make nvidia-smi visible where ranks run"
        yield Finding(kind=missing, severity=Severity.CONFIGURE, message=why, action=action)
    elif code == _FALLEN or any(words in error.lower() for words in _FALLEN_WORDS):
        yield Finding(kind=fallen, severity=Severity.REBOOT, message=why, action=_REBOOT)
    elif code == _NO_DRIVER:
        action = "read the kernel log for NVRM; load the driver or reboot the node"
        yield Finding(kind=no_driver, severity=Severity.REBOOT, message=why, action=action)
    elif code == _CORRUPTED:
        yield Finding(kind=corrupted, severity=Severity.ISOLATE, message=why, action="replace the GPU that it names")


def _count(smi: Smi, wanted: int) -> Iterator[Finding]:
    if len(smi.gpus) < wanted:  #: finding gpus_missing: fewer GPUs than the system file lists
        message = f"{len(smi.gpus)} GPUs, {wanted} expected"
        action = "see whether lspci lists the others; if so, reboot, else reseat or replace. Slurm may hide GPUs, too"
        yield Finding(kind="gpus_missing", severity=Severity.ISOLATE, message=message, action=action)
    if smi.warnings:
        message = f"nvidia-smi warns: {smi.warnings[:300]}"
        corrupted = "corrupt" in smi.warnings.lower()  #: finding nvidia_smi_warns: nvidia-smi prints a warning
        severity = Severity.ISOLATE if corrupted else Severity.MONITOR
        yield Finding(kind="nvidia_smi_warns", severity=severity, message=message)


# The driver's own advice, since version 550, by the words in it.
_ADVICE = {
    "reboot": (Severity.REBOOT, "reboot the node"),
    "reset": (Severity.RESET, "drain the node and reset the GPU"),
    "drain": (Severity.RESET, "drain the node: links to other GPUs are no longer to be used"),
}


def _answers(gpu: SmiGpu) -> Iterator[Finding]:
    """Whether the driver still reaches a GPU, and what it wants done to it."""
    if gpu.lost:  #: finding gpu_lost: the driver does not reach a GPU any more
        message = f"the driver does not reach it any more: {gpu.lost}"
        yield fault(gpu, "gpu_lost", Severity.REBOOT, message, _REBOOT)
    wanted = gpu.recovery_action
    if wanted not in {None, "None"}:
        unknown = (Severity.RESET, "see NVIDIA's documentation of the driver; reset the GPU")
        severity, action = next((_ADVICE[word] for word in _ADVICE if word in str(wanted).lower()), unknown)
        #: finding recovery_action: the driver itself asks for a reset, a reboot or a drain
        yield fault(gpu, "recovery_action", severity, f"the driver requests: {wanted}", action)


def _promised(gpu: SmiGpu, site: Site, options: InventoryOptions) -> Iterator[Finding]:
    if gpu.name is not None and site.gpu_model is not None and not same_gpu(site.gpu_model, gpu.name):
        message = f"is a {gpu.name}; the system's file has {site.gpu_model}"
        action = "name the right model in the system's file, or take the node out"
        #: finding gpu_model: a GPU of another model than in the system file
        yield fault(gpu, "gpu_model", Severity.CONFIGURE, message, action)
    if gpu.memory_total_mib is not None and site.gpu_memory_gib is not None:
        has = gpu.memory_total_mib / 1024
        if has < site.gpu_memory_gib * (1 - options.memory_tolerance):
            message = f"has {has:.1f} GiB of memory; the system's file has {site.gpu_memory_gib:g} GiB"
            #: finding gpu_memory: a GPU has less memory than in the system file
            yield fault(gpu, "gpu_memory", Severity.ISOLATE, message, "reset the GPU; if it stays, replace it")


def _set_up(gpu: SmiGpu, options: InventoryOptions) -> Iterator[Finding]:
    if gpu.mig:
        action = f"nvidia-smi -i {gpu.index} -mig 0, then reset the GPU"  #: finding mig: a GPU is cut into slices
        yield fault(gpu, "mig", Severity.CONFIGURE, "MIG is on: the GPU is cut into slices", action)
    if options.persistence and gpu.persistence is False:  #: finding persistence: the driver unloads between processes
        message = "persistence mode is off: the driver unloads, and forgets settings, between processes"
        yield fault(gpu, "persistence", Severity.CONFIGURE, message, "systemctl enable --now nvidia-persistenced")


def _alike(nodes: Nodes) -> Iterator[Finding]:
    gpus = {(host, subject(gpu)): gpu for host, gpu in nodes.gpus()}
    for what, name in (("GPU model", "name"), ("VBIOS", "vbios")):
        values = {key: str(value) for key, gpu in gpus.items() if (value := getattr(gpu, name)) is not None}
        yield from unlike(what, values, action="GPUs of one system must be alike: exchange it, or flash the same VBIOS")
    drivers = {(host, "driver"): smi.driver for host, smi in nodes.smi.items() if smi.driver is not None}
    yield from unlike("version", drivers, action="install the same driver on all nodes")


def _unknown(nodes: Nodes, site: Site, options: InventoryOptions) -> dict[str, str]:
    """Nodes with a GPU of which nvidia-smi does not say what is to be judged."""
    told: dict[str, str] = {}
    for host, gpu in nodes.gpus():
        asked = {
            "name": gpu.name,
            "memory": 0.0 if site.gpu_memory_gib is None else gpu.memory_total_mib,
            "persistence mode": gpu.persistence if options.persistence else False,
        }
        missing = [what for what, value in asked.items() if value is None]
        if missing:
            told.setdefault(host, f"{subject(gpu)}: nvidia-smi does not say {', '.join(missing)}")
    return told
