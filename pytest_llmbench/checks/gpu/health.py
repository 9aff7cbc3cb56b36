"""GPUs, as nvidia-smi describes them: PCIe links, clocks, memory errors, and the programs that use them."""

from collections.abc import Iterator

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from pytest_llmbench.checks.gpu.base import Fault, GpuKind, GpuNodes, PerGpu, find_unlike
from pytest_llmbench.checks.gpu.nvidia_smi import SmiGpu
from pytest_llmbench.core.record.health import Finding, Severity
from pytest_llmbench.core.schema import NoOptions, Strict

# In other states a GPU may save power by a lower generation of its link.
_AWAKE = {"P0", "P1", "P2"}
_COOLING = "check fans, air or liquid flow, heat sink and inlet temperature"
_SLOWDOWNS: dict[GpuKind, tuple[Severity, str, str]] = {
    #: finding hw_slowdown: the hardware's own protection holds clocks down
    "hw_slowdown": (Severity.ISOLATE, "the hardware's own protection", _COOLING + ", and the power supply"),
    #: finding hw_thermal_slowdown: heat holds clocks down, by hardware
    "hw_thermal_slowdown": (Severity.ISOLATE, "the GPU is too hot", _COOLING),
    #: finding hw_power_brake_slowdown: the power supply holds clocks down
    "hw_power_brake_slowdown": (Severity.ISOLATE, "the power supply requests it", "check power supplies and cables"),
    #: finding sw_thermal_slowdown: heat holds clocks down, by the driver
    "sw_thermal_slowdown": (Severity.ISOLATE, "the GPU or its memory is near its highest temperature", _COOLING),
    #: finding sw_power_cap: the power limit is reached without load
    "sw_power_cap": (Severity.MONITOR, "the power limit is reached", "see whether something runs on the GPU"),
    "applications_clocks_setting": (Severity.MONITOR, "clocks were set by hand", "nvidia-smi -rac; nvidia-smi -rgc"),
}  #: finding applications_clocks_setting: clocks were set by hand


class PcieOptions(Strict):
    """Requirements for the PCIe link of every GPU."""

    width: PositiveInt | None = None
    """Number of lanes; absent, as many as GPU and slot support."""
    gen: PositiveInt | None = None
    """PCIe generation that GPU and slot must support."""
    replays: NonNegativeInt = 100
    """Number of packets sent again since the driver was loaded, above which there is a hint."""


class Pcie(PerGpu):
    """Finds PCIe links below their width or generation."""

    name = "gpu_pcie"
    summary = "PCIe width and generation of every GPU, and packets sent again"
    options: type[Strict] = PcieOptions
    needs = ("link_gen", "max_link_gen", "link_width", "max_link_width")
    shows = ("replays", "performance_state")

    def judge(self, gpu: SmiGpu, options: PcieOptions) -> Iterator[Fault]:
        action = "reboot the node; if it stays, reseat the GPU or replace its riser, cable or board"
        width = options.width or gpu.max_link_width
        if gpu.link_width is not None and width is not None and gpu.link_width < width:
            #: finding pcie_width: a PCIe link has too few lanes
            message = f"PCIe link has {gpu.link_width:g} of {width:g} lanes"
            yield "pcie_width", Severity.ISOLATE, message, action
        #: finding pcie_gen: a PCIe link has too low a generation
        if options.gen is not None and gpu.max_link_gen is not None and gpu.max_link_gen < options.gen:
            message = f"PCIe generation {gpu.max_link_gen:g} at most, {options.gen} expected"
            yield "pcie_gen", Severity.ISOLATE, message, action
        elif _judges_gen(gpu) and (gpu.link_gen or 0) < (gpu.max_link_gen or 0):
            link = f"PCIe link runs at generation {gpu.link_gen:g} of {gpu.max_link_gen:g}"
            yield "pcie_gen", Severity.ISOLATE, f"{link} in {gpu.performance_state}", action
        if gpu.replays is not None and gpu.replays > options.replays:
            message = f"{gpu.replays:g} PCIe packets were sent again, more than {options.replays}"
            #: finding pcie_replays: many PCIe packets were sent again
            yield "pcie_replays", Severity.MONITOR, message, "watch whether it grows: the link loses packets"

    def notes(self, nodes: GpuNodes, options: PcieOptions) -> Iterator[str]:
        asleep = sum(not _judges_gen(gpu) for _, gpu in nodes.gpus())
        if asleep:
            yield f"the PCIe generation in use was not judged on {asleep} GPUs that save power, only what it can be"


def _judges_gen(gpu: SmiGpu) -> bool:
    known = gpu.link_gen is not None and gpu.max_link_gen is not None
    return known and gpu.performance_state in _AWAKE


class Throttle(PerGpu):
    """Finds slowed clocks, and limits below the GPU's defaults."""

    name = "gpu_throttle"
    summary = "reasons for low clocks before there is any load: heat, power supply, limits"
    options: type[Strict] = NoOptions
    needs = ("slowdowns", "power_limit_w", "default_power_limit_w", "max_sm_mhz")
    shows = ("application_mhz", "default_application_mhz", "performance_state")

    def judge(self, gpu: SmiGpu, options: NoOptions) -> Iterator[Fault]:
        for kind, (severity, reason, action) in _SLOWDOWNS.items():
            if kind in (gpu.slowdowns or ()):
                yield kind, severity, f"clocks are held down: {reason}", action
        limit, default = gpu.power_limit_w, gpu.default_power_limit_w
        if limit is not None and default is not None and limit < default:
            message = f"power limit {limit:g} W is below its default of {default:g} W"
            #: finding power_limit: the power limit is below its default
            yield "power_limit", Severity.CONFIGURE, message, f"nvidia-smi -i {gpu.index} -pl {default:g}"
        clock, usual = gpu.application_mhz, gpu.default_application_mhz
        if clock is not None and usual is not None and clock < usual:
            message = f"application clock {clock:g} MHz is below its default of {usual:g} MHz"
            #: finding application_clock: the application clock is below its default
            yield "application_clock", Severity.MONITOR, message, f"nvidia-smi -i {gpu.index} -rac"

    def compare(self, nodes: GpuNodes) -> Iterator[Finding]:
        action = "compare driver, VBIOS and nvidia-smi settings with the other GPUs"
        limits = nodes.values(lambda gpu: None if gpu.power_limit_w is None else f"{gpu.power_limit_w:g} W")
        clocks = nodes.values(lambda gpu: None if gpu.max_sm_mhz is None else f"{gpu.max_sm_mhz:g} MHz")
        yield from find_unlike("power limit", limits, action=action)
        yield from find_unlike("highest SM clock", clocks, action=action)


class ProcessesOptions(Strict):
    """Processes and memory that may be on a GPU before a run."""

    allowed: tuple[str, ...] = ()
    """Ends of program names that may have a GPU open, such as `nvidia-cuda-mps-server`."""
    memory_mib: NonNegativeFloat = 1024.0
    """Memory in MiB that may be in use beyond that of visible processes."""


class Processes(PerGpu):
    """Processes and memory that earlier jobs left."""

    name = "gpu_processes"
    summary = "no other process computes on a GPU, and its memory is free"
    options: type[Strict] = ProcessesOptions
    needs = ("memory_used_mib", "processes")
    shows = ("memory_total_mib",)

    def judge(self, gpu: SmiGpu, options: ProcessesOptions) -> Iterator[Fault]:
        processes, explained_mib = gpu.processes or (), 0.0
        for process in processes:
            if options.allowed and process.name.endswith(options.allowed):
                explained_mib += float("inf") if process.memory_mib is None else process.memory_mib
                continue
            explained_mib = float("inf")
            who = f"process {process.pid or 'with a hidden number'} ({process.name}, type {process.kind}) uses it"
            #: finding stray_process: a foreign process uses a GPU
            if process.kind == "G":
                yield "stray_process", Severity.MONITOR, who, "run no display on a compute GPU"
            else:
                yield "stray_process", Severity.CONFIGURE, who, "end it, and find out why its job left it"
        used = gpu.memory_used_mib
        if used is not None and used - explained_mib > options.memory_mib:
            rest = f" beyond {explained_mib:g} MiB of allowed ones" if processes else ""
            message = f"{used:g} MiB in use, but no process is visible{rest}"
            action = "look for a process of another container; if there is none, reset the GPU"
            yield "memory_in_use", Severity.RESET, message, action


class EccOptions(Strict):
    """Error counts that a GPU may have."""

    correctable: NonNegativeInt = 1000
    """Number of corrected errors since the driver was loaded, above which there is a hint."""
    total_uncorrectable: NonNegativeInt = 0
    """Number of uncorrected errors in the GPU's life, above which there is a hint."""


class Ecc(PerGpu):
    """ECC counters, retired pages and remapped rows."""

    name = "gpu_ecc"
    summary = "uncorrected memory errors, repairs that wait for a reset, spares that ran out"
    options: type[Strict] = EccOptions
    needs = ("ecc", "uncorrectable", "total_uncorrectable")
    shows = (
        "correctable", "total_correctable", "sram_threshold_exceeded", "retirement_pending", "remap_pending",
        "remap_failed", "repair_pending", "unrepairable",
    )  # fmt: skip

    def missing(self, gpu: SmiGpu) -> list[str]:
        """Missing facts; ECC that is off is a finding of its own."""
        if gpu.ecc is False:
            return []
        repairs = (gpu.remap_pending, gpu.remap_failed) if gpu.retirement_pending is None else ()
        return [*super().missing(gpu), *(["remapped rows or retired pages"] if None in repairs else [])]

    def judge(self, gpu: SmiGpu, options: EccOptions) -> Iterator[Fault]:
        reset = f"drain the node and reset the GPU: nvidia-smi -r -i {gpu.index}"
        replace = "take the node out; run dcgmi diag -r 3 and replace the GPU"
        seen: tuple[tuple[GpuKind, Severity, str, float | None], ...] = (
            #: finding remap_failed: a bad row of GPU memory could not be replaced
            ("remap_failed", Severity.ISOLATE, "a memory row could not be replaced", gpu.remap_failed),
            #: finding memory_unrepairable: the driver has given up the repair of GPU memory
            ("memory_unrepairable", Severity.ISOLATE, "its memory cannot be repaired any more", gpu.unrepairable),
            #: finding sram_threshold: more uncorrected errors in SRAM than NVIDIA allows
            ("sram_threshold", Severity.ISOLATE, "its SRAM had more uncorrected errors than NVIDIA allows",
             gpu.sram_threshold_exceeded),
            #: finding ecc_uncorrectable: uncorrected memory errors since the driver was loaded
            ("ecc_uncorrectable", Severity.RESET,
             f"{gpu.uncorrectable or 0:g} uncorrected ECC errors since the driver was loaded", gpu.uncorrectable),
            #: finding remap_pending: a bad row of memory waits for a reset to be replaced
            ("remap_pending", Severity.RESET, "a memory row waits to be replaced", gpu.remap_pending),
            #: finding repair_pending: a memory channel or a processing cluster waits for a reset to be repaired
            ("repair_pending", Severity.RESET, "a part of it waits to be repaired", gpu.repair_pending),
            #: finding retirement_pending: a bad page of memory waits for a reset to be retired
            ("retirement_pending", Severity.RESET, "a memory page waits to be retired", gpu.retirement_pending),
        )  # fmt: skip
        for kind, severity, message, is_seen in seen:
            if is_seen:
                yield kind, severity, message, replace if severity is Severity.ISOLATE else reset
        if gpu.ecc is False:  #: finding ecc_off: ECC is off
            action = f"nvidia-smi -i {gpu.index} -e 1, then reset the GPU"
            yield "ecc_off", Severity.CONFIGURE, "ECC is off: memory errors are not noticed", action
        if gpu.total_uncorrectable is not None and gpu.total_uncorrectable > options.total_uncorrectable:
            message = f"{gpu.total_uncorrectable:g} uncorrected ECC errors in its life"
            #: finding ecc_history: uncorrected memory errors in the GPU's life
            yield "ecc_history", Severity.MONITOR, message, "replace the GPU if more come soon"
        if gpu.correctable is not None and gpu.correctable > options.correctable:
            message = f"{gpu.correctable:g} corrected ECC errors since the driver was loaded"
            #: finding ecc_correctable: many corrected memory errors
            yield "ecc_correctable", Severity.MONITOR, message, "watch whether they become more"
