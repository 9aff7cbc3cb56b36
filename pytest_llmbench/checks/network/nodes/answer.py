"""Measurements of groups of ranks, and their answers. Without PyTorch, which the login node may not have."""

from typing import Literal, Self

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from pytest_llmbench.core.schema import Strict
from pytest_llmbench.core.wire.answers import DeviceAnswer, NcclLines, ProbeAnswer

# The operation of a group: rings of all_gather take the same way between two nodes as between many; an all_reduce may
# go by trees, which on two nodes is up to twice as fast as the wire.
GroupCollective = Literal["all_gather", "all_reduce"]


class Sizes(Strict):
    """The measurement of each group."""

    bytes: int  # of the message for the bandwidth; less, if a rank's memory is smaller or the links are very slow
    small_bytes: int = 8  # of the all_reduce for the latency
    iterations: int  # measured calls of each size; fewer, if they take long
    warm_up: int  # calls before them
    timeout_s: float  # longest wait in a group
    patience_s: float  # longest wait for all ranks at the start


class MeasuredGame(ProbeAnswer):
    """A measurement of a group, by one of its ranks."""

    bytes: PositiveInt  # of the message
    seconds: PositiveFloat  # for one call
    busbw: PositiveFloat  # bus bandwidth, GB/s
    latency_s: PositiveFloat  # for a small one
    wrong: NonNegativeInt  # elements with a wrong value


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
    nccl: NcclLines | None = None  # NCCL's lines, where they were asked for
