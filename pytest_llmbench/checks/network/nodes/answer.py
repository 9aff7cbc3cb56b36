"""Measurements of groups of ranks, and their answers. Without PyTorch, which the login node may not have."""

from typing import Self

from pydantic import NonNegativeInt, PositiveFloat, model_validator

from pytest_llmbench.core.schema import Strict
from pytest_llmbench.core.wire.answers import DeviceAnswer, ProbeAnswer


class Sizes(Strict):
    """The measurement of each group.

    Attributes:
        bytes, small_bytes: sizes of the all_reduce for the bandwidth and for the latency.
        iterations, warm_up: measured calls of each size, and calls before them.
        timeout_s: longest wait in a group.
        patience_s: longest wait for all ranks to be there at the start.
    """

    bytes: int
    small_bytes: int = 8
    iterations: int
    warm_up: int
    timeout_s: float
    patience_s: float


class MeasuredGame(ProbeAnswer):
    """A measurement of a group, by one of its ranks.

    Attributes:
        seconds: for one all_reduce.
        busbw: bus bandwidth, GB/s.
        latency_s: for a small one.
        wrong: elements of the sums with a wrong value.
    """

    seconds: PositiveFloat
    busbw: PositiveFloat
    latency_s: PositiveFloat
    wrong: NonNegativeInt


class PlayedGame(ProbeAnswer):
    """The outcome of a group of a round, each by its number: a measurement, missing ranks, or an error."""

    round: NonNegativeInt
    group: NonNegativeInt
    missing: tuple[int, ...] = ()
    error: str | None = None
    measured: MeasuredGame | None = None

    @model_validator(mode="after")
    def _one_outcome(self) -> Self:
        if bool(self.missing) + (self.error is not None) + (self.measured is not None) != 1:
            raise ValueError("one of `missing`, `error` and `measured` has to be there")
        return self


class RankGames(DeviceAnswer):
    """The games of a rank.

    Attributes:
        games: in the order played.
        stopped: the reason for an early end; None if all were played.
        nvlink: whether any GPU of the node has an active NVLink; None if the rank does not know.
    """

    games: tuple[PlayedGame, ...]
    stopped: str | None
    nvlink: bool | None
