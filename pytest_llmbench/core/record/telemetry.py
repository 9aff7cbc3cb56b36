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
    """Telemetry of one rank's GPU from the start of its first judged step to the end of its last."""

    rank: int
    """The rank."""
    gpu: str | None = None
    """UUID of its GPU; null where it watched none."""
    seconds: float | None = None
    """From the start of its first judged step to the end of its last, by its own clock."""
    samples: int = 0
    """Number of samples within."""
    unwatched_s: float = 0.0
    """Time between samples that are more than 3 periods apart, seconds."""
    energy_j: float | None = None
    """By the GPU's own counter of energy, interpolated between two samples at either end, J."""
    energy_error_j: float | None = None
    """The most that it can be wrong by for that, J; above 10 % of the energy there is none."""
    power_w: float | None = None
    """Mean of the samples, W. A sample is itself the mean of a second, from Ampere on but for GA100."""
    sm_clock_mhz: float | None = None
    """Mean of the samples, MHz."""
    sm_clock_min_mhz: float | None = None
    """Lowest of the samples, MHz."""
    memory_clock_mhz: float | None = None
    """Mean of the samples, MHz."""
    temperature_max_degc: float | None = None
    """Highest of the samples, °C."""
    memory_used_max_bytes: float | None = None
    """Highest of the samples: all on the GPU, what the driver keeps for itself included."""
    throttled: int | None = None
    """Samples that name a hardware slowdown, a hardware or software thermal slowdown, or a hardware power brake."""
    power_capped: int | None = None
    """Samples that name the power limit, which a healthy GPU reaches under full load."""
    reasons: Mapping[str, int] = {}
    """Samples by each reason for lower clocks."""
    gaps: tuple[str, ...] = ()
    """The reasons for null values."""
