"""The shares of the data that ranks train, in two groups, and after each swap. Without PyTorch."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from pydantic import NonNegativeInt

from pytest_llmbench.core.wire.answers import DeviceAnswer, ProbeAnswer

# The largest team: each rank gathers the gradients of all of its group.
_LARGEST_TEAM = 16
# The first seating, and two swaps.
TURNS = 3


class Seat(ProbeAnswer):
    """The place of a rank in a turn."""

    team: NonNegativeInt  # its ranks compare their numbers with each other
    group: Literal[0, 1]  # both groups of a team train the same
    shard: NonNegativeInt  # its share of the data; as many as a group has ranks


class StepDigests(ProbeAnswer):
    """The numbers of a step."""

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
