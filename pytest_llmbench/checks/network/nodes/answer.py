"""Answers of ranks about groups that they measured in. Without PyTorch, which the login node may not have."""

from typing import Self

from pydantic import NonNegativeInt, PositiveFloat, model_validator

from pytest_llmbench.core.wire.answers import ProbeAnswer


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


class RankGames(ProbeAnswer):
    """The games of a rank.

    Attributes:
        device: the GPU model as the driver names it, or `cpu`.
        games: in the order played.
        stopped: the reason for an early end; None if all were played.
        nvlink: whether any GPU of the node has an active NVLink; None if the rank does not know.
    """

    device: str
    games: tuple[PlayedGame, ...]
    stopped: str | None
    nvlink: bool | None
