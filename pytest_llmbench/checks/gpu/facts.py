"""GPUs, as nvidia-smi describes them: PCIe links, clocks, memory errors, and what runs on them."""

from collections.abc import Iterator

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from pytest_llmbench.checks.gpu.base import Nodes, PerGpu, fault, subject, unlike
from pytest_llmbench.checks.gpu.kinds import GpuKind
from pytest_llmbench.checks.gpu.nvidia_smi import SmiGpu
from pytest_llmbench.core.record.health import Finding, Severity
from pytest_llmbench.core.schema import NoOptions, Strict

# A GPU with nothing to do may lower its link's generation with its clocks; it does so beyond these.
_AWAKE = {"P0", "P1", "P2"}


class PcieOptions(Strict):
    """Requirements for the PCIe link of every GPU."""

    width: PositiveInt | None = None
    """Lanes; absent, as many as GPU and slot can have."""
    gen: PositiveInt | None = None
    """Generation that GPU and slot must be able to have."""
    judge_idle_gen: bool = False
    """Also judge the link generation of idle GPUs."""
    replays: NonNegativeInt = 100
    """Packets sent again since the driver was loaded, above which there is a hint."""


class Pcie(PerGpu):
    """Links that trained at less than they can."""

    name = "gpu_pcie"
    summary = "PCIe width and generation of every GPU, and packets sent again"
    options: type[Strict] = PcieOptions
    needs = ("link_gen", "max_link_gen", "link_width", "max_link_width")
    shows = ("replays", "performance_state")

    def judge(self, gpu: SmiGpu, options: PcieOptions) -> Iterator[Finding]:
        """Width counts always; the generation of a GPU that is awake, or as its maximum."""
        action = "reboot the node; if it stays, reseat the GPU or replace its riser, cable or board"
        width = options.width or gpu.max_link_width
        if gpu.link_width is not None and width is not None and gpu.link_width < width:
            message = f"PCIe link has {gpu.link_width:g} of {width:g} lanes"
            #: finding pcie_width: a PCIe link has fewer lanes than it can have, or than asked for
            yield fault(gpu, "pcie_width", Severity.ISOLATE, message, action)
        if options.gen is not None and gpu.max_link_gen is not None and gpu.max_link_gen < options.gen:
            message = f"PCIe generation {gpu.max_link_gen:g} at most, {options.gen} expected"
            #: finding pcie_gen: a PCIe link has a lower generation than it can have, or than asked for
            yield fault(gpu, "pcie_gen", Severity.ISOLATE, message, action)
        elif _judges_gen(gpu, options) and (gpu.link_gen or 0) < (gpu.max_link_gen or 0):
            message = (
                f"PCIe link runs at generation {gpu.link_gen:g} of {gpu.max_link_gen:g} in {gpu.performance_state}"
            )
            yield fault(gpu, "pcie_gen", Severity.ISOLATE, message, action)
        if gpu.replays is not None and gpu.replays > options.replays:
            message = f"{gpu.replays:g} PCIe packets were sent again, more than {options.replays}"
            yield fault(  #: finding pcie_replays: many PCIe packets were sent again
                gpu, "pcie_replays", Severity.MONITOR, message, "watch whether it grows: the link loses packets"
            )

    def notes(self, nodes: Nodes, options: PcieOptions) -> Iterator[str]:
        """Say whose generation was not judged."""
        asleep = sum(not _judges_gen(gpu, options) for _, gpu in nodes.gpus())
        if asleep:
            yield f"the PCIe generation in use was not judged on {asleep} GPUs that save power, only what it can be"


def _judges_gen(gpu: SmiGpu, options: PcieOptions) -> bool:
    known = gpu.link_gen is not None and gpu.max_link_gen is not None
    return known and (options.judge_idle_gen or gpu.performance_state in _AWAKE)


class Throttle(PerGpu):
    """Clocks held down, and limits set below what the GPU is made for."""

    name = "gpu_throttle"
    summary = "reasons for low clocks before there is any load: heat, power supply, limits"
    options: type[Strict] = NoOptions
    needs = ("slowdowns", "power_limit_w", "default_power_limit_w", "max_sm_mhz")
    shows = ("application_mhz", "default_application_mhz", "performance_state")

    def judge(self, gpu: SmiGpu, options: NoOptions) -> Iterator[Finding]:  # noqa: ARG002 - it has none
        """Hardware that slows down without load has a fault; a limit is a setting."""
        for kind, (severity, why, action) in _SLOWDOWNS.items():
            if kind in (gpu.slowdowns or ()):
                yield fault(gpu, kind, severity, f"clocks are held down: {why}", action)
        limit, default = gpu.power_limit_w, gpu.default_power_limit_w
        if limit is not None and default is not None and limit < default:
            message = f"power limit {limit:g} W is below its default of {default:g} W"
            #: finding power_limit: the power limit is below its default
            yield fault(gpu, "power_limit", Severity.CONFIGURE, message, f"nvidia-smi -i {gpu.index} -pl {default:g}")
        clock, usual = gpu.application_mhz, gpu.default_application_mhz
        if clock is not None and usual is not None and clock < usual:
            message = f"application clock {clock:g} MHz is below its default of {usual:g} MHz"
            #: finding application_clock: the application clock is below its default
            yield fault(gpu, "application_clock", Severity.MONITOR, message, f"nvidia-smi -i {gpu.index} -rac")

    def compare(self, nodes: Nodes) -> Iterator[Finding]:
        """Power limits and highest clocks are the same on all GPUs."""
        for what, name, unit in (("power limit", "power_limit_w", "W"), ("highest SM clock", "max_sm_mhz", "MHz")):
            known = {(host, subject(gpu)): getattr(gpu, name) for host, gpu in nodes.gpus()}
            values = {key: f"{value:g} {unit}" for key, value in known.items() if value is not None}
            yield from unlike(what, values, action="compare driver, VBIOS and nvidia-smi settings with the other GPUs")


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
    #: finding sw_power_cap: the power limit is reached although nothing should run
    "sw_power_cap": (Severity.MONITOR, "the power limit is reached", "see whether something runs on the GPU"),
    "applications_clocks_setting": (Severity.MONITOR, "clocks were set by hand", "nvidia-smi -rac; nvidia-smi -rgc"),
}  #: finding applications_clocks_setting: clocks were set by hand


class ProcessesOptions(Strict):
    """Processes and memory that may be on a GPU before a run."""

    allowed: tuple[str, ...] = ()
    """Ends of program names that may have a GPU open, such as `nvidia-cuda-mps-server`."""
    memory_mib: NonNegativeFloat = 1024.0
    """MiB in use that no visible process explains."""


class Processes(PerGpu):
    """Leftovers of earlier jobs."""

    name = "gpu_processes"
    summary = "no other process computes on a GPU, and its memory is free"
    options: type[Strict] = ProcessesOptions
    needs = ("memory_used_mib", "processes")
    shows = ("memory_total_mib",)

    def judge(self, gpu: SmiGpu, options: ProcessesOptions) -> Iterator[Finding]:
        """A computing process takes time and memory from the run; graphics takes little."""
        for process in gpu.processes or ():
            if not process.name.endswith(options.allowed or ("\0",)):
                computes = "C" in process.kind
                yield fault(
                    gpu,
                    "stray_process",  #: finding stray_process: a foreign process uses a GPU
                    Severity.CONFIGURE if computes else Severity.MONITOR,
                    f"process {process.pid or 'with a hidden number'} ({process.name}, type {process.kind}) uses it",
                    "end it, and find out why its job left it" if computes else "run no display on a compute GPU",
                )
        used = gpu.memory_used_mib
        if used is not None and used > options.memory_mib and not gpu.processes:
            message = f"{used:g} MiB in use, but no process is visible"
            action = "look for a process of another container; if there is none, reset the GPU"
            yield fault(gpu, "memory_in_use", Severity.RESET, message, action)
