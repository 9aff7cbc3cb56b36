"""Measurements of groups of ranks, and their answers. Without PyTorch, which the login node may not have."""

from typing import Self

from pydantic import NonNegativeInt, PositiveFloat, model_validator

from pytest_llmbench.core.schema import Strict
from pytest_llmbench.core.wire.answers import DeviceAnswer, ProbeAnswer


class Sizes(Strict):
    """The measurement of each group."""

    bytes: int
    """Size of the all_reduce that gives the bandwidth, in bytes."""
    small_bytes: int = 8
    """Size of the all_reduce that gives the latency, in bytes."""
    iterations: int
    """Number of measured calls of each size."""
    warm_up: int
    """Number of calls before the measured ones."""
    timeout_s: float
    """Longest wait in a group."""
    patience_s: float
    """Longest wait for all ranks to be there at the start."""


class MeasuredGame(ProbeAnswer):
    """A measurement of a group, by one of its ranks."""

    seconds: PositiveFloat
    """Seconds of one all_reduce."""
    busbw: PositiveFloat
    """Bus bandwidth, GB/s."""
    latency_s: PositiveFloat
    """Seconds of one small all_reduce."""
    wrong: NonNegativeInt
    """Elements of the sums with a wrong value."""


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

    games: tuple[PlayedGame, ...]
    """Measurements, in the order played."""
    stopped: str | None
    """Reason for an early end; None if all games were played."""
    nvlink: bool | None
    """Whether any GPU of the node has an active NVLink; None if unknown."""
