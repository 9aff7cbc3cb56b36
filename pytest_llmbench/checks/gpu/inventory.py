"""GPU inventory: the number and model of the system file, all alike, set up for training, and all answering."""

from collections.abc import Iterator

from pydantic import Field

from pytest_llmbench.checks.base import Site
from pytest_llmbench.checks.gpu.base import Fault, GpuCheck, GpuNodes, describe_missing, find_unlike, finding, subject
from pytest_llmbench.checks.gpu.nodes.facts import ToolOutput
from pytest_llmbench.checks.gpu.nvidia_smi import Smi, SmiGpu
from pytest_llmbench.core.gpus import same_gpu
from pytest_llmbench.core.record.health import Finding, Report, Severity
from pytest_llmbench.core.schema import Strict

# Exit statuses of nvidia-smi.
_NO_GPUS, _NO_DRIVER, _CORRUPTED, _FALLEN = 6, 9, 14, 15
_FALLEN_WORDS = ("unable to determine the device handle", "gpu is lost", "fallen off the bus", "gpu requires reset")
_NO_GPUS_WORDS = "no devices were found"
_REBOOT = "reboot the node (a cold start, where it can be); if it comes again, replace the GPU"
_MISSING = "see whether lspci lists the others; if so, reboot, else reseat or replace. Slurm may hide GPUs, too"
# Answers to the driver's own advice, which it gives since version 550, by the words in it.
_ADVICE = {
    "reboot": (Severity.REBOOT, "reboot the node"),
    "reset": (Severity.RESET, "drain the node and reset the GPU"),
    "drain": (Severity.RESET, "drain the node: links to other GPUs are no longer to be used"),
}
_UNKNOWN_ADVICE = (Severity.RESET, "see NVIDIA's documentation of the driver; reset the GPU")


class InventoryOptions(Strict):
    """Requirements for the GPUs of a node."""

    persistence: bool = True
    """The driver must stay loaded while no process uses a GPU."""
    memory_tolerance: float = Field(default=0.05, ge=0, lt=1)
    """Allowed shortfall of a GPU's memory from the system file (fraction)."""


class Inventory(GpuCheck):
    """Compare the GPUs of a node with the system's file."""

    name = "gpu_inventory"
    summary = "number, model and memory of the GPUs, all alike and all answering; MIG off, persistence on"
    options: type[Strict] = InventoryOptions

    def report(self, nodes: GpuNodes, site: Site, options: InventoryOptions) -> Report:
        causes = {host: _explain_failure(nodes.facts[host].smi, reason) for host, reason in nodes.failed.items()}
        findings = [finding(host, "", *fault) for host, fault in causes.items() if fault is not None]
        for host, smi in nodes.smi.items():
            # It answers for the GPUs that it reaches, and names the others on its error output alone.
            output = nodes.facts[host].smi
            fault = _explain_failure(output, output.complaint) if output.complaint else None
            faults = [fault] if fault else [*_check_warnings(output.complaint)]
            faults += [*_check_count(smi, site.gpus_per_node), *_check_warnings(smi.warnings)]
            findings += [finding(host, "", *each) for each in faults]
        unknown: dict[str, str] = {}
        for host, gpu in nodes.gpus():
            findings += [finding(host, subject(gpu), *fault) for fault in _check_gpu(gpu, site, options)]
            needed = {
                "name": gpu.name,
                "memory": 0.0 if site.gpu_memory_gib is None else gpu.memory_total_mib,
                "persistence mode": gpu.persistence if options.persistence else False,
            }
            if missing := [name for name, value in needed.items() if value is None]:
                unknown.setdefault(host, describe_missing(gpu, missing))
        unexplained = {host: reason for host, reason in nodes.unjudged.items() if causes.get(host) is None}
        promised = {"model": site.gpu_model, "memory": site.gpu_memory_gib}
        gpus = {host: [f"{gpu.name} {gpu.bus} {gpu.uuid}" for gpu in smi.gpus] for host, smi in nodes.smi.items()}
        return Report(
            findings=(*findings, *_compare(nodes)),
            unjudged={**unexplained, **unknown},
            notes=tuple(f"the system's file has no GPU {name}" for name, value in promised.items() if value is None),
            evidence={"gpus": gpus, "nvidia_smi": {host: node.smi for host, node in nodes.facts.items()}},
        )


def _explain_failure(output: ToolOutput, reason: str) -> Fault | None:
    """The cause of a failure of nvidia-smi; None if it may have any."""
    code, error = output.code, output.error or ""
    words = f"{error} {output.complaint} {reason}".lower()
    reason = f"{reason}; it says: {output.complaint}" if output.complaint not in reason else reason
    if code is None and error.startswith("No such file"):  #: finding nvidia_smi_missing: there is no nvidia-smi
        action = "install NVIDIA's driver, or make nvidia-smi visible where ranks run"
        return "nvidia_smi_missing", Severity.CONFIGURE, reason, action
    if code == _FALLEN or any(fallen in words for fallen in _FALLEN_WORDS):
        #: finding fallen_off_the_bus: a GPU no longer answers on PCIe
        return "fallen_off_the_bus", Severity.REBOOT, reason, _REBOOT
    if code == _NO_GPUS or _NO_GPUS_WORDS in words:
        return "gpus_missing", Severity.ISOLATE, reason, _MISSING
    if code == _NO_DRIVER:  #: finding driver_not_loaded: NVIDIA's driver is not loaded
        action = "read the kernel log for NVRM; load the driver or reboot the node"
        return "driver_not_loaded", Severity.REBOOT, reason, action
    if code == _CORRUPTED:
        #: finding inforom_corrupted: the GPU's own configuration memory is corrupted
        return "inforom_corrupted", Severity.ISOLATE, reason, "replace the GPU that it names"
    return None


def _check_count(smi: Smi, needed: int) -> Iterator[Fault]:
    if len(smi.gpus) < needed:  #: finding gpus_missing: fewer GPUs than the system file lists
        yield "gpus_missing", Severity.ISOLATE, f"{len(smi.gpus)} GPUs, {needed} expected", _MISSING


def _check_warnings(words: str) -> Iterator[Fault]:
    if words:  #: finding nvidia_smi_warns: nvidia-smi prints a warning
        severity = Severity.ISOLATE if "corrupt" in words.lower() else Severity.MONITOR
        yield "nvidia_smi_warns", severity, f"nvidia-smi warns: {words[:300]}", ""


def _check_gpu(gpu: SmiGpu, site: Site, options: InventoryOptions) -> Iterator[Fault]:
    if gpu.lost:  #: finding gpu_lost: the driver does not reach a GPU any more
        yield "gpu_lost", Severity.REBOOT, f"the driver does not reach it any more: {gpu.lost}", _REBOOT
    advice = gpu.recovery_action
    if advice in {None, "None"} and gpu.reset_required:
        advice = "GPU Reset Required"
    if advice not in {None, "None"}:
        severity, action = next((_ADVICE[word] for word in _ADVICE if word in str(advice).lower()), _UNKNOWN_ADVICE)
        #: finding recovery_action: the driver asks for a reset, a reboot or a drain
        yield "recovery_action", severity, f"the driver requests: {advice}", action
    if gpu.name is not None and site.gpu_model is not None and not same_gpu(site.gpu_model, gpu.name):
        message = f"is a {gpu.name}; the system's file has {site.gpu_model}"
        action = "name the right model in the system's file, or take the node out"
        #: finding gpu_model: a GPU of another model than in the system file
        yield "gpu_model", Severity.CONFIGURE, message, action
    if gpu.memory_total_mib is not None and site.gpu_memory_gib is not None:
        memory = gpu.memory_total_mib / 1024
        if memory < site.gpu_memory_gib * (1 - options.memory_tolerance):
            message = f"has {memory:.1f} GiB of memory; the system's file has {site.gpu_memory_gib:g} GiB"
            #: finding gpu_memory: a GPU has less memory than in the system file
            yield "gpu_memory", Severity.ISOLATE, message, "reset the GPU; if it stays, replace it"
    if gpu.mig:  #: finding mig: MIG is on
        action = f"nvidia-smi -i {gpu.index} -mig 0, then reset the GPU"
        yield "mig", Severity.CONFIGURE, "MIG is on: the GPU is cut into slices", action
    if options.persistence and gpu.persistence is False:  #: finding persistence: the driver unloads between processes
        message = "persistence mode is off: the driver unloads, and forgets settings, between processes"
        yield "persistence", Severity.CONFIGURE, message, "systemctl enable --now nvidia-persistenced"


def _compare(nodes: GpuNodes) -> Iterator[Finding]:
    action = "GPUs of one system must be alike: exchange it, or flash the same VBIOS"
    yield from find_unlike("GPU model", nodes.values(lambda gpu: gpu.name), action=action)
    yield from find_unlike("VBIOS", nodes.values(lambda gpu: gpu.vbios), action=action)
    drivers = {(host, "driver"): smi.driver for host, smi in nodes.smi.items() if smi.driver is not None}
    yield from find_unlike("version", drivers, action="install the same driver on all nodes")
