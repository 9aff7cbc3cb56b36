"""Clocks, temperature, power and throttling of a rank's GPU under load, by NVML, about once a second."""

from pytest_llmbench.checks.compute.nodes.answer import TelemetrySample
from pytest_llmbench.core.unix_clock import UnixClock
from pytest_llmbench.core.wire.step_events import GpuEvent, TelemetryEvent

# The sampler is quicker; a load of an hour would fill its record.
_PERIOD_S = 0.9


class LoadTelemetry:
    """The samples that `workloads.rank.gpu_samples.sampled` writes, and its `trouble`, the reason for missing ones."""

    def __init__(self) -> None:
        self.samples: list[TelemetrySample] = []
        self.trouble: str | None = None
        self.clock = UnixClock()
        self._began = self.clock.now()

    def begin(self) -> None:
        """Count seconds from now on."""
        self._began = self.clock.now()

    def elapsed(self) -> float:
        """Seconds since the load began."""
        return self._seconds(self.clock.now())

    def telemetry(self, event: TelemetryEvent | GpuEvent) -> None:
        """Take a sample, or the reason for missing ones."""
        if isinstance(event, TelemetryEvent):
            self.trouble = self.trouble or event.trouble
        elif not self.samples or self._seconds(event.time) - self.samples[-1].at_s >= _PERIOD_S:
            self.samples.append(
                TelemetrySample(
                    at_s=self._seconds(event.time),
                    clock_mhz=event.sm_clock_mhz,
                    temperature_degc=event.temperature_degc,
                    power_w=event.power_w,
                    reasons=event.clocks_event_reasons,
                )
            )

    def _seconds(self, time: float) -> float:
        return round(max(0.0, time - self._began), 3)
