"""Pauses: the few steps during which the run did something else, such as an evaluation or a checkpoint."""

from __future__ import annotations

import statistics as stats
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

# A pause differs from the median by more than this many standard deviations (of the median absolute deviation), and by
# more than this share of the median.
_DEVIATIONS = 6.0
_SHARE = 0.2
# More pauses than these are another way of running, which is part of the speed.
_IN_A_ROW = 3
_OF_ALL = 0.05
_NORMAL_MAD = 1.4826


@dataclass(frozen=True, kw_only=True, slots=True)
class Pauses:
    """Pauses of a run.

    Attributes:
        at: positions of the steps, from 0.
        usual: median of all steps, in seconds: what a step would have taken without the pause.
        share: what the pauses take beyond that, as a share of the wall clock of all steps.
        period: steps from one pause to the next, where that is always the same and there are at least three.
    """

    at: tuple[int, ...] = ()
    usual: float
    share: float = 0.0
    period: int | None = None


def find_pauses(seconds: Sequence[float]) -> Pauses:
    """Find the pauses among the steps of a run.

    Args:
        seconds: of each step, at least one.
    """
    usual = stats.median(seconds)
    away = [abs(each - usual) for each in seconds]
    limit = max(_DEVIATIONS * _NORMAL_MAD * stats.median(away), _SHARE * usual)
    at = tuple(position for position, distance in enumerate(away) if distance > limit)
    if not at or len(at) > _OF_ALL * len(seconds) or _longest(at) > _IN_A_ROW:
        return Pauses(usual=usual)
    lost = sum(seconds[position] - usual for position in at)
    return Pauses(at=at, usual=usual, share=lost / sum(seconds), period=_period(at))


def without_pauses(seconds: Sequence[float], pauses: Pauses) -> list[float]:
    """The same steps, as if the run had not paused."""
    steady = list(seconds)
    for position in pauses.at:
        steady[position] = pauses.usual
    return steady


def _longest(at: Sequence[int]) -> int:
    """Length of the longest row of neighbours."""
    rows = groupby(enumerate(at), key=lambda pair: pair[1] - pair[0])
    return max(len(list(row)) for _, row in rows)


def _period(at: Sequence[int]) -> int | None:
    gaps = {later - earlier for earlier, later in zip(at, at[1:], strict=False)}
    return gaps.pop() if len(at) > 2 and len(gaps) == 1 else None
