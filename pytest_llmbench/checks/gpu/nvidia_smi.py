"""Reader of `nvidia-smi -q -x` of a node, for every driver of the last years.

Some GPUs lack some counters. A missing, unsupported or unreadable value is None, which stands for unknown.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any
from xml.etree import ElementTree as ET

from pytest_llmbench.core.errors import RunError
from pytest_llmbench.readers.pci import pci_address

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)(?:x|\s.*)?", re.ASCII | re.DOTALL)
_YES = {"yes", "enabled", "active", "true", "pending"}
_NO = {"no", "disabled", "not active", "false"}
_UNKNOWN = {"", "N/A", "Unknown", "Not Supported", "Not Available", "Not Applicable", "Insufficient Permissions"}
_GONE = "Requested functionality has been deprecated"
# Printed instead of a value if the driver has lost the GPU.
LOST = re.compile(r"\[?(GPU is lost|GPU requires reset|Unknown Error|ERR!)\]?", re.IGNORECASE)


def text(element: ET.Element, path: str) -> str | None:
    """The text of a tag; None for a missing tag, and for one of the words for unknown."""
    value = (element.findtext(path) or "").strip().strip("[]")
    return None if value in _UNKNOWN or value.startswith(_GONE) or LOST.fullmatch(value) else value


def number(element: ET.Element, *paths: str) -> float | None:
    """The number of the first of some tags that has one, whatever its unit."""
    matches = (_NUMBER.fullmatch(text(element, path) or "") for path in paths)
    return next((float(match[1]) for match in matches if match), None)


def flag(element: ET.Element, path: str) -> bool | None:
    """True if a tag is a yes; None for any other word."""
    word = (text(element, path) or "").lower()
    return True if word in _YES else False if word in _NO else None


def either(*flags: bool | None) -> bool | None:
    """True if one of them is true; None if unknown."""
    known = [flag for flag in flags if flag is not None]
    return any(known) if known else None


def anywhere(gpu: ET.Element, *tags: str) -> bool | None:
    """True if one of these tags, anywhere below, is a yes: drivers differ in its place. None if unknown."""
    return either(*(flag(element, ".") for tag in tags for element in gpu.iter(tag)))


def errors(gpu: ET.Element, path: str, word: str, old: str) -> float | None:
    """Add up the ECC errors of a kind over all memories; None without a counter, or if one of them is unknown.

    Since Turing there is a counter for each kind of memory; before, `double_bit` and `single_bit` have a total.
    """
    total = number(gpu, f"{path}/{old}/total")
    if total is not None:
        return total
    tags = [element.tag for element in gpu.iterfind(f"{path}/*") if re.search(rf"(^|_){word}", element.tag)]
    counts = [number(gpu, f"{path}/{tag}") for tag in tags]
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


_ROOT = "nvidia_smi_log"
# Slowdowns by faults of the hardware.
_FAULTS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")

# Each GPU has at most one of these; the first would hide the second.
_ONCE = frozenset({
    "clocks_event_reasons", "clocks_throttle_reasons", "ecc_errors", "ecc_mode", "fabric", "fb_memory_usage", "pci",
    "processes", "remapped_rows", "retired_pages", "uuid",
})  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """A process on a GPU."""

    pid: int | None  # None where it is hidden
    kind: str  # `C` for compute, `G` for graphics, or several such as `M+C`
    name: str
    memory_mib: float | None  # None where the driver hides it, as in containers


def _read(what: Callable[..., Any], *where: str) -> Any:
    """A field of `SmiGpu`, by its reader and the tags to read."""
    return field(metadata={"read": lambda gpu: what(gpu, *where)})


_POWER = ("gpu_power_readings", "power_readings")


@dataclass(frozen=True, kw_only=True, slots=True)
class SmiGpu:
    """One GPU; None is unknown. ECC errors and PCIe replays are counted since the driver was loaded."""

    index: int  # its number on the node
    bus: str  # PCI address, `0000:1b:00.0`
    name: str | None = _read(text, "product_name")
    uuid: str | None = _read(text, "uuid")
    vbios: str | None = _read(text, "vbios_version")
    lost: str  # the driver's text in place of lost values; empty for a GPU that answers
    # The action that the driver requests, such as `None` or `GPU Reset Required`.
    recovery_action: str | None = _read(text, "gpu_recovery_action")
    persistence: bool | None = _read(flag, "persistence_mode")
    mig: bool | None
    memory_total_mib: float | None = _read(number, "fb_memory_usage/total")
    memory_used_mib: float | None = _read(number, "fb_memory_usage/used")
    performance_state: str | None = _read(text, "performance_state")
    link_gen: float | None = _read(number, "pci/pci_gpu_link_info/pcie_gen/current_link_gen")
    max_link_gen: float | None = _read(number, "pci/pci_gpu_link_info/pcie_gen/max_link_gen")
    link_width: float | None = _read(number, "pci/pci_gpu_link_info/link_widths/current_link_width")
    max_link_width: float | None = _read(number, "pci/pci_gpu_link_info/link_widths/max_link_width")
    replays: float | None = _read(number, "pci/replay_counter")
    ecc: bool | None = _read(flag, "ecc_mode/current_ecc")
    uncorrectable: float | None = _read(errors, "ecc_errors/volatile", "uncorrectable", "double_bit")
    correctable: float | None = _read(errors, "ecc_errors/volatile", "correctable", "single_bit")
    # In the GPU's life.
    total_uncorrectable: float | None = _read(errors, "ecc_errors/aggregate", "uncorrectable", "double_bit")
    total_correctable: float | None = _read(errors, "ecc_errors/aggregate", "correctable", "single_bit")
    sram_threshold_exceeded: bool | None = _read(flag, "ecc_errors/aggregate/sram_threshold_exceeded")
    # Pages (before Ampere) and rows that wait for a reset to be replaced; rows without a spare.
    retirement_pending: bool | None = _read(flag, "retired_pages/pending_retirement")
    remap_pending: bool | None = _read(flag, "remapped_rows/remapped_row_pending")
    remap_failed: bool | None = _read(flag, "remapped_rows/remapped_row_failure")
    # Since driver 575: channels of memory and processing clusters that wait for a reset to be repaired.
    repair_pending: bool | None = _read(anywhere, "channel_repair_pending", "tpc_repair_pending")
    unrepairable: bool | None = _read(anywhere, "unrepairable_memory")
    # Of drivers without `gpu_recovery_action`.
    reset_required: bool | None = _read(anywhere, "reset_required")
    slowdowns: tuple[str, ...] | None  # reasons for low clocks now, such as `hw_thermal_slowdown`
    power_limit_w: float | None = _read(
        number, *(f"{tag}/{name}_power_limit" for name in ("current", "enforced") for tag in _POWER)
    )
    default_power_limit_w: float | None = _read(number, *(f"{tag}/default_power_limit" for tag in _POWER))
    application_mhz: float | None = _read(number, "applications_clocks/graphics_clock")
    default_application_mhz: float | None = _read(number, "default_applications_clocks/graphics_clock")
    max_sm_mhz: float | None = _read(number, "max_clocks/sm_clock")
    # State of its registration with the NVLink fabric, such as `Completed`.
    fabric: str | None = _read(text, "fabric/state")
    # Its outcome, such as `Success`, which may be bad although the state is `Completed`.
    fabric_status: str | None = _read(text, "fabric/status")
    fabric_health: str | None = _read(text, "fabric/health/summary")
    fabric_bandwidth: str | None = _read(text, "fabric/health/bandwidth")
    # The NVLink domain that several nodes share; zeros on a node alone, and a partition of it.
    cluster_uuid: str | None = _read(text, "fabric/clusterUuid")
    clique: str | None = _read(text, "fabric/cliqueId")
    processes: tuple[Process, ...] | None

    @property
    def domain(self) -> str | None:
        """Domain and partition of GPUs that NVLink joins over several nodes; None for a node alone."""
        known = self.cluster_uuid is not None and self.cluster_uuid.strip("0-")
        return f"{self.cluster_uuid}, clique {self.clique}" if known else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Smi:
    """All GPUs of a node, in the driver's order; `warnings` is the text around the XML."""

    driver: str | None
    gpus: tuple[SmiGpu, ...]
    warnings: str


def read_smi(printed: str) -> Smi:
    """Read what `nvidia-smi -q -x` printed.

    Raises RunError `unreadable` if it is not a whole document, or lacks a GPU that it announces.
    """
    before, start, rest = printed.partition(f"<{_ROOT}>")
    body, end, after = rest.rpartition(f"</{_ROOT}>")
    if not start or not end:  #: error unreadable: Check: the output of a tool or a file cannot be read
        raise RunError("unreadable", f"nvidia-smi -q -x printed no whole <{_ROOT}>; it ends with {printed[-120:]!r}")
    try:
        root = ET.fromstring(start + body + end)  # noqa: S314 - the driver's own, and without its DOCTYPE no entities
    except ET.ParseError as error:
        raise RunError("unreadable", f"the output of nvidia-smi -q -x is not XML: {error}") from error
    for gpu in root.findall("gpu"):
        twice = _ONCE & {child.tag for place, child in enumerate(gpu) if gpu.find(child.tag) is not gpu[place]}
        if twice:
            name = gpu.get("id")
            raise RunError("unreadable", f"nvidia-smi -q -x lists {min(twice)} twice for GPU {name}")
    gpus = tuple(_read_gpu(index, element) for index, element in enumerate(root.findall("gpu")))
    if number(root, "attached_gpus") != len(gpus):
        count = text(root, "attached_gpus")
        raise RunError("unreadable", f"nvidia-smi -q -x reports attached_gpus {count}, and lists {len(gpus)}")
    around = (line for line in (before + after).splitlines() if not line.lstrip().startswith(("<?xml", "<!DOCTYPE")))
    return Smi(driver=text(root, "driver_version"), gpus=gpus, warnings="\n".join(around).strip())


def _read_gpu(index: int, gpu: ET.Element) -> SmiGpu:
    lost = next((value for element in gpu.iter() if LOST.fullmatch(value := (element.text or "").strip())), "")
    return SmiGpu(
        index=index, bus=pci_address(text(gpu, "pci/pci_bus_id") or (gpu.get("id") or "")), lost=lost,
        mig=either(flag(gpu, "mig_mode/current_mig"), flag(gpu, "mig_mode/pending_mig")),
        slowdowns=_read_slowdowns(gpu), processes=_read_processes(gpu),
        **{field.name: field.metadata["read"](gpu) for field in fields(SmiGpu) if field.metadata},
    )  # fmt: skip


def _read_slowdowns(gpu: ET.Element) -> tuple[str, ...] | None:
    """Active reasons, under their names since driver 535; None where one of a fault's is unknown."""
    reasons: dict[str, bool | None] = {}
    for word in ("event", "throttle"):
        for reason in gpu.iterfind(f"clocks_{word}_reasons/*"):
            name = reason.tag.removeprefix(f"clocks_{word}_reason_")
            reasons[name] = flag(gpu, f"clocks_{word}_reasons/{reason.tag}")
    known = all(reasons.get(name) is not None for name in _FAULTS)
    return tuple(name for name, active in reasons.items() if active) if known else None


def _read_processes(gpu: ET.Element) -> tuple[Process, ...] | None:
    listed = gpu.find("processes")
    if listed is None or (len(listed) == 0 and (listed.text or "").strip() not in {"", "None"}):
        return None
    processes = []
    for info in listed.findall("process_info"):
        pid, name = number(info, "pid"), text(info, "process_name") or "unknown program"
        kind, memory = text(info, "type") or "unknown", number(info, "used_memory")
        processes.append(Process(pid=None if pid is None else int(pid), kind=kind, name=name, memory_mib=memory))
    return tuple(processes)
