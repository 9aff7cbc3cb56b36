"""Telemetry of a GPU while its rank trained: samples in numbers, and the driver's reasons for lower clocks."""

from collections.abc import Mapping

from pytest_llmbench.core.schema import Strict

# Where more periods than these lie between two samples, nobody watched.
GAP_PERIODS = 3

# Bits of NVML's clocks event reasons, which drivers before 535 call throttle reasons, that a healthy GPU never shows
# under load.
SLOWDOWNS: Mapping[int, str] = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
# Not one of them: a GPU in good order reaches its power limit under full load.
POWER_CAP = 0x04
REASONS: Mapping[int, str] = {
    0x01: "idle",
    0x02: "application clocks",
    POWER_CAP: "power cap",
    0x10: "sync boost",
    0x100: "display clocks",
    **SLOWDOWNS,
}


def reasons_of(mask: int) -> list[str]:
    """Names of the reasons in a bit mask; a bit that has none is named by its number."""
    bits = [1 << place for place in range(mask.bit_length()) if mask >> place & 1]
    return [REASONS.get(bit, f"{bit:#x}") for bit in bits]


class GpuTelemetry(Strict):
    """Telemetry of one rank's GPU from the start of its first judged step to the end of its last.

    Attributes:
        rank: the rank.
        gpu: UUID of its GPU; null where it watched none.
        seconds: from the start of its first judged step to the end of its last, by its own clock.
        samples: number of samples within.
        unwatched_s: time between samples that are more than 3 periods apart, seconds.
        energy_j: by the GPU's own counter of energy, interpolated between two samples at either end, J.
        energy_error_j: the most that it can be wrong by for that, J; above 10 % of the energy there is none.
        power_w: mean of the samples, W. A sample is itself the mean of a second, from Ampere on but for GA100.
        sm_clock_mhz: mean of the samples, MHz.
        sm_clock_min_mhz: lowest of the samples, MHz.
        memory_clock_mhz: mean of the samples, MHz.
        temperature_max_degc: highest of the samples, °C.
        memory_used_max_bytes: highest of the samples: all on the GPU, what the driver keeps for itself included.
        throttled: samples that name a hardware slowdown, a hardware or software thermal slowdown, or a hardware power
            brake.
        power_capped: samples that name the power limit, which a healthy GPU reaches under full load.
        reasons: samples by each reason for lower clocks.
        gaps: the reasons for null values.
    """

    rank: int
    gpu: str | None = None
    seconds: float | None = None
    samples: int = 0
    unwatched_s: float = 0.0
    energy_j: float | None = None
    energy_error_j: float | None = None
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_min_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_max_degc: float | None = None
    memory_used_max_bytes: float | None = None
    throttled: int | None = None
    power_capped: int | None = None
    reasons: Mapping[str, int] = {}
    gaps: tuple[str, ...] = ()
