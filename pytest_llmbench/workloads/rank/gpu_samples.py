"""Telemetry of a rank's GPU while it trains, twice a second by NVML, in the rank's step log.

It avoids CUDA, and its errors are logged while the training goes on. NVML and CUDA number GPUs differently, and
`CUDA_VISIBLE_DEVICES` may renumber them, so a GPU is identified by its UUID.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread
from types import ModuleType
from typing import Any, Protocol

from pytest_llmbench.core.unix_clock import UnixClock
from pytest_llmbench.core.wire.step_events import GPU_PERIOD_S, GpuEvent, TelemetryEvent
from pytest_llmbench.workloads.node.machine import gpu_identity
from pytest_llmbench.workloads.rank.context import RankContext

# Longest wait for the sampler at the end, as a call of NVML on a lost GPU may hang.
_END_S = 5.0
_LONGEST_ERROR = 500


class TelemetryLog(Protocol):
    """The log of samples: a rank's step log, or a list in memory; `clock` stamps them."""

    clock: UnixClock

    def telemetry(self, event: TelemetryEvent | GpuEvent) -> None:
        """Take a sample, or the reason for missing ones, from any thread."""


@contextmanager
def sampled(context: RankContext, log: TelemetryLog) -> Iterator[None]:
    """Sample the rank's GPU within this block, if it has one from NVIDIA."""
    gpu = gpu_uuid(context)
    if gpu is None:
        yield
        return
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        log.telemetry(_telemetry_event(gpu, "nvidia-ml-py is not installed: pip install 'pytest-llmbench[torch]'"))
        yield
        return
    # Before the first step, so that a reader sees at the beginning of a log whether it has samples.
    log.telemetry(_telemetry_event(gpu, None))
    sampler = _Sampler(gpu, log, nvml)
    try:
        yield
    finally:
        sampler.stop()


def gpu_uuid(context: RankContext) -> str | None:
    """Return the UUID of the rank's GPU in NVML's form; None for a CPU or a GPU of another vendor."""
    if context.device == "cpu":
        return None
    import torch  # noqa: PLC0415 - a rank of the CPU may have none

    return None if torch.version.cuda is None else gpu_identity(context)


def _telemetry_event(gpu: str, trouble: str | None) -> TelemetryEvent:
    return TelemetryEvent(gpu=gpu, period_s=GPU_PERIOD_S, trouble=trouble)


class _Sampler:
    """A thread that samples one GPU until `stop`."""

    def __init__(self, gpu: str, log: TelemetryLog, nvml: ModuleType) -> None:
        self._gpu = gpu
        self._log = log
        self._nvml = nvml
        self._over = Event()
        self._open = True
        self._writing = Lock()
        self._complained = False
        self._thread = Thread(target=self._run, name="llmbench-telemetry", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take a last sample, after the last step, and end all writing to the log."""
        self._over.set()
        self._thread.join(_END_S)
        # A thread that still hangs in NVML must be kept from writing later, as the log's descriptor may then be reused.
        with self._writing:
            self._open = False

    def _run(self) -> None:
        try:
            self._nvml.nvmlInit()
            self._watch(self._nvml.nvmlDeviceGetHandleByUUID(self._gpu))
        except Exception as error:  # noqa: BLE001 - a border: a rank without samples trains on
            self._complain(error)
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _watch(self, handle: Any) -> None:
        over = False
        while True:
            try:
                self._write(self._sample(handle))
            except self._nvml.NVMLError as error:
                self._complain(error)  # and try again: it may pass, and the reader sees the gap
            if over:
                return
            over = self._over.wait(GPU_PERIOD_S)

    def _sample(self, handle: Any) -> GpuEvent:
        nvml = self._nvml
        at = self._log.clock.now()
        energy = self._ask("nvmlDeviceGetTotalEnergyConsumption", handle)
        milliwatts = self._ask("nvmlDeviceGetPowerUsage", handle)
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:  # as drivers before 535 have it
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return GpuEvent(
            time=at,
            energy_mj=energy,
            power_w=None if milliwatts is None else milliwatts / 1000,
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_MEM),
            temperature_degc=self._ask("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
            memory_used_bytes=None if memory is None else memory.used,
            clocks_event_reasons=reasons,
        )

    def _ask(self, name: str, handle: Any, *args: int) -> Any:
        """Query one value; None if the GPU or the driver lacks it, or the permission is missing."""
        nvml = self._nvml
        try:
            return getattr(nvml, name)(handle, *args)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission):
            return None

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            self._complained = True
            what = "NVML" if isinstance(error, self._nvml.NVMLError) else type(error).__name__
            trouble = " ".join(f"{what}: {error}".split())[:_LONGEST_ERROR]
            with suppress(OSError):  # a full disk will end the rank at its next event
                self._write(_telemetry_event(self._gpu, trouble))

    def _write(self, event: TelemetryEvent | GpuEvent) -> None:
        with self._writing:
            if self._open:
                self._log.telemetry(event)
