"""Telemetry of a GPU while its rank trained: samples in numbers, and the driver's reasons for lower clocks."""

from collections.abc import Mapping

from pytest_llmbench.core.schema import Strict

# A gap between two samples of more periods than these counts as unwatched.
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
    """Number of the rank."""
    gpu: str | None = None
    """UUID of the rank's GPU; null where none was watched."""
    seconds: float | None = None
    """Seconds from the start of the first judged step to the end of the last, by the rank's own clock."""
    samples: int = 0
    """Number of samples in the judged steps."""
    unwatched_s: float = 0.0
    """Time between samples that are more than 3 periods apart, in seconds."""
    energy_j: float | None = None
    """Energy in J by the GPU's own counter, interpolated between two samples at either end."""
    energy_error_j: float | None = None
    """Largest error of `energy_j` from the interpolation, in J; above 10 % of the energy, `energy_j` is null."""
    power_w: float | None = None
    """Mean power of the samples in W. A sample is itself the mean of a second, from Ampere on but for GA100."""
    sm_clock_mhz: float | None = None
    """Mean SM clock of the samples, in MHz."""
    sm_clock_min_mhz: float | None = None
    """Lowest SM clock of the samples, in MHz."""
    memory_clock_mhz: float | None = None
    """Mean memory clock of the samples, in MHz."""
    temperature_max_degc: float | None = None
    """Highest temperature of the samples, in °C."""
    memory_used_max_bytes: float | None = None
    """Highest memory use of the samples in bytes: everything on the GPU, the driver's own memory included."""
    throttled: int | None = None
    """Number of samples with a hardware slowdown, a hardware or software thermal slowdown, or a hardware power brake.
    """
    power_capped: int | None = None
    """Number of samples at the power limit, which a healthy GPU reaches under full load."""
    reasons: Mapping[str, int] = {}
    """Number of samples with each reason for lower clocks."""
    gaps: tuple[str, ...] = ()
    """Reason for each null value."""
