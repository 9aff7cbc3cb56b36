"""Answers of a device about its rates. Without PyTorch, which the login node may not have."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from pytest_llmbench.core.wire.answers import DeviceAnswer, ProbeAnswer

GemmPrecision = Literal["bf16", "fp16", "fp32", "tf32", "fp8"]


class GemmRate(ProbeAnswer):
    """A matrix product in one precision."""

    rate: PositiveFloat
    """FLOP/s, the median of blocks of about 50 ms."""
    digest: str
    """SHA-256 of the first product."""
    repeated: PositiveInt
    """Later products, one per block, that were compared with the first."""
    changed: NonNegativeInt
    """Those of them that differed from it in any bit."""
    error: NonNegativeFloat | None
    """The largest difference to an fp64 product on the host, of 16 rows, in standard deviations of an entry (the square
    root of the side); None where the product is not finite.
    """


class GemmRates(ProbeAnswer):
    """Matrix products in all precisions."""

    side: PositiveInt
    """Of the matrices."""
    factors: str
    """SHA-256 of them."""
    precisions: Annotated[Mapping[GemmPrecision, GemmRate], Field(min_length=1)]
    lacking: Mapping[GemmPrecision, str]
    """Reasons for precisions without one."""


class CopyRates(ProbeAnswer):
    """Copies between a GPU and pinned memory of the host, B/s: for this GPU alone, and for all of the node at once."""

    host_to_device: PositiveFloat
    host_to_device_all: PositiveFloat
    device_to_host: PositiveFloat
    device_to_host_all: PositiveFloat


class DeviceRates(DeviceAnswer):
    """The rates of a device. A part that was not asked for is None."""

    setting: Mapping[str, str]
    """Properties that two devices must share for their products to be the same bit by bit."""
    gemm: GemmRates | None
    memory: PositiveFloat | None
    """The triad of STREAM, B/s."""
    host_device: CopyRates | None


class SustainedLoad(DeviceAnswer):
    """A device under load."""

    precision: GemmPrecision
    rates: tuple[tuple[float, PositiveFloat], ...]
    """Seconds since the start and FLOP/s, at the end of each block."""
    telemetry: tuple[tuple[float, str], ...]
    """Seconds since the start, and a raw line of telemetry."""
    trouble: str | None
    """The reason for a lack of telemetry; None if none is lacking."""
