"""Answers of a device about its rates. Without PyTorch, which the login node may not have."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from pytest_llmbench.core.wire.answers import DeviceAnswer, ProbeAnswer

GemmPrecision = Literal["bf16", "fp16", "fp32", "tf32", "fp8"]


class GemmRate(ProbeAnswer):
    """A matrix product in one precision.

    The error is the largest difference to an fp64 product on the host, of 16 rows, in standard deviations of an entry
    (the square root of the side); None for an infinite product or NaN.
    """

    rate: PositiveFloat  # FLOP/s, the median of blocks of about 50 ms
    digest: str  # SHA-256 of the first product
    repeated: PositiveInt  # later products, one per block, that were compared with the first
    changed: NonNegativeInt  # those of them that differed from it in any bit
    error: NonNegativeFloat | None


class GemmRates(ProbeAnswer):
    """Matrix products in all precisions."""

    side: PositiveInt  # of the matrices
    factors: str  # SHA-256 of them
    precisions: Annotated[Mapping[GemmPrecision, GemmRate], Field(min_length=1)]
    lacking: Mapping[GemmPrecision, str]  # reasons for precisions without one


class CopyRates(ProbeAnswer):
    """Copies between a GPU and pinned memory of the host, B/s: for this GPU alone, and for all of the node at once."""

    host_to_device: PositiveFloat
    host_to_device_all: PositiveFloat
    device_to_host: PositiveFloat
    device_to_host_all: PositiveFloat


class DeviceRates(DeviceAnswer):
    """The rates of a device. A part is None unless the probe asked for it."""

    setting: Mapping[str, str]  # properties that two devices must share for bitwise equal products
    gemm: GemmRates | None
    memory: PositiveFloat | None  # the triad of STREAM, B/s
    host_device: CopyRates | None


class TelemetrySample(ProbeAnswer):
    """One NVML sample of a GPU, `at_s` seconds after the load began; None for what the GPU lacks."""

    at_s: NonNegativeFloat
    clock_mhz: NonNegativeInt | None  # of the SMs
    temperature_degc: NonNegativeInt | None
    power_w: NonNegativeFloat | None
    reasons: NonNegativeInt | None  # for lower clocks, as NVML's bits


class SustainedLoad(DeviceAnswer):
    """A device under load."""

    precision: GemmPrecision
    rates: tuple[tuple[float, PositiveFloat], ...]  # seconds since the start and FLOP/s, at the end of each block
    telemetry: tuple[TelemetrySample, ...]  # of a GPU, about once a second
    trouble: str | None  # the reason for missing telemetry
