"""Answers of devices about their rates and numbers. Without PyTorch, which the login node may not have."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple, Self, get_args

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from pytest_llmbench.core.wire.answers import DeviceAnswer, ProbeAnswer
from pytest_llmbench.core.wire.machine import GpuPath

# The largest team: each rank gathers the gradients of all of its group.
_LARGEST_TEAM = 16
# The first seating, and two swaps.
TURNS = 3

GemmPrecision = Literal["bf16", "fp16", "fp32", "tf32", "fp8"]
# Products of the search for the best shape. In fp8, each factor has one scale, or each of its rows has one.
SweptProduct = Literal["bf16", "fp8", "fp8_rowwise"]


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


class ShapeRate(NamedTuple):
    """A product of an m × k by a k × n matrix; in JSON a list, as `TelemetrySample`.

    The error is the largest difference to an fp64 product on the same device, of 16 rows, in standard deviations of an
    entry (the square root of k); None for an infinite product or NaN.
    """

    m: PositiveInt
    n: PositiveInt
    k: PositiveInt
    rate: PositiveFloat  # FLOP/s, the median of the repetitions
    fastest: PositiveFloat  # the fastest one
    error: NonNegativeFloat | None


class ShapeSweep(ProbeAnswer):
    """Products of many shapes, each for a short time on a device that rests in between."""

    curve: Annotated[tuple[ShapeRate, ...], Field(min_length=1)]
    best: ShapeRate  # the best of them, measured again
    left_out: NonNegativeInt  # shapes for which no time was left


class ShapeSweeps(DeviceAnswer):
    """Searches for the best shape; every product has one, or a reason in `lacking`."""

    products: Mapping[SweptProduct, ShapeSweep]
    lacking: Mapping[SweptProduct, str]

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if absent := {*get_args(SweptProduct)} - {*self.products, *self.lacking}:
            raise ValueError(f"neither a rate nor a reason for {', '.join(sorted(absent))}")
        return self


class CopyRates(ProbeAnswer):
    """Copies between a GPU and pinned memory of the host, B/s: for this GPU alone, and for all of the node at once."""

    pinned: bool = True  # whether the memory of the host was, in the end
    path: GpuPath = GpuPath()  # under load
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


class TelemetrySample(NamedTuple):
    """One NVML sample of a GPU, `at_s` seconds after the load began; None for what the GPU lacks.

    In JSON it is a list: a session reads a hundred of each of its GPUs.
    """

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


class Seat(ProbeAnswer):
    """The place of a rank in a turn."""

    team: NonNegativeInt  # its ranks compare their numbers with each other
    group: Literal[0, 1]  # both groups of a team train the same
    shard: NonNegativeInt  # its share of the data; as many as a group has ranks


class StepDigests(NamedTuple):
    """The numbers of a step; in JSON a list, as `TelemetrySample`."""

    local: str  # of the loss and the gradients of this rank's share, before the exchange
    gathered: tuple[str, ...]  # of those received from each rank of its group, by shard
    weights: str  # after the update


class Turn(ProbeAnswer):
    """A whole training; `seat` is None, without steps, for a rank that was left over."""

    seat: Seat | None
    steps: tuple[StepDigests, ...]


class RankNumbers(DeviceAnswer):
    """The trainings of a rank, one before the first swap and one after each."""

    turns: tuple[Turn, ...]


def teams(ranks: Sequence[int]) -> list[list[int]]:
    """Split ranks that should compute the same into teams of nearly equal size."""
    count = -(-len(ranks) // _LARGEST_TEAM)
    ends = [len(ranks) * number // max(count, 1) for number in range(count + 1)]
    return [list(ranks[first:end]) for first, end in pairwise(ends)]


def groups(team: Sequence[int], turn: int) -> list[list[int]]:
    """The groups of a team in a turn, each in the order of its shards.

    With each turn, every second rank comes first, so that each share of the data and each group has other ranks. The
    last rank of an odd number is left over, and has a seat in the next turn. A rank alone is compared with itself.
    """
    order = list(team)
    for _ in range(turn):
        order = order[0::2] + order[1::2]
    half = len(order) // 2
    return [order[:half], order[half : 2 * half]] if half else [order]
