"""Measurements of groups of ranks, and their answers. Without PyTorch, which the login node may not have."""

from typing import Self

from pydantic import NonNegativeInt, PositiveFloat, model_validator

from pytest_llmbench.core.schema import Strict
from pytest_llmbench.core.wire.answers import DeviceAnswer, ProbeAnswer


class Sizes(Strict):
    """The measurement of each group."""

    bytes: int  # of the all_reduce for the bandwidth
    small_bytes: int = 8  # of that for the latency
    iterations: int  # measured calls of each size
    warm_up: int  # calls before them
    timeout_s: float  # longest wait in a group
    patience_s: float  # longest wait for all ranks at the start


class MeasuredGame(ProbeAnswer):
    """A measurement of a group, by one of its ranks."""

    seconds: PositiveFloat  # for one all_reduce
    busbw: PositiveFloat  # bus bandwidth, GB/s
    latency_s: PositiveFloat  # for a small one
    wrong: NonNegativeInt  # elements of the sums with a wrong value


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
    """The games of a rank."""

    games: tuple[PlayedGame, ...]  # in the order played
    stopped: str | None  # the reason for an early end; None if all were played
    nvlink: bool | None  # whether any GPU of the node has an active NVLink, from one rank of each node
