"""Pauses: the few steps during which the run did something else, such as an evaluation or a checkpoint."""

from collections.abc import Sequence
from itertools import groupby, pairwise

from pytest_llmbench.core.record.steady import Pauses

# A step stands out that differs from the median by more than this many standard deviations (of the median absolute
# deviation), and by more than this share of the median.
_DEVIATIONS = 6.0
_SHARE = 0.2
# Pauses are few up to these limits; more of them may be part of the speed.
_IN_A_ROW = 3
_OF_ALL = 0.05
# A slow start is at most this share of all.
_FIRST_OF_ALL = 0.25
_NORMAL_MAD = 1.4826


def find_pauses(seconds: Sequence[float], *, least_first: int = 1) -> Pauses:
    """Find the steps whose duration stands out.

    Args:
        seconds: duration of each step, at least one.
        least_first: least number of slow steps at the beginning that count as a slow start.
    """
    ordered = sorted(seconds)
    usual = _middle(ordered)
    nearer = _SHARE * usual
    if ordered[-1] - usual <= nearer and usual - ordered[0] <= nearer:
        return Pauses(usual=usual)
    # Distances of sorted values fall and then rise, which Python sorts in linear time.
    away = sorted([abs(duration - usual) for duration in ordered])
    limit = max(_DEVIATIONS * _NORMAL_MAD * _middle(away), nearer)
    if away[-1] <= limit:
        return Pauses(usual=usual)
    at = tuple([position for position, duration in enumerate(seconds) if abs(duration - usual) > limit])
    first = next((i for i, position in enumerate((*at, -1)) if position != i or seconds[i] < usual), 0)
    first = first if least_first <= first <= _FIRST_OF_ALL * len(seconds) else 0
    later = at[first:]
    few = len(later) <= _OF_ALL * len(seconds) and _longest(later) <= _IN_A_ROW
    period = _period(later)
    regular = (
        period is not None
        and later[0] < period + first
        and len(seconds) - later[-1] <= period
        and all(seconds[position] > usual for position in later)
    )
    share = sum(seconds[position] - usual for position in at) / sum(seconds)
    return Pauses(at=at, usual=usual, share=share, period=period, regular=regular, first=first, few=few)


def without_pauses(seconds: Sequence[float], pauses: Pauses) -> list[float]:
    """The durations with each pause replaced by the usual duration."""
    steady = list(seconds)
    for position in pauses.at:
        steady[position] = pauses.usual
    return steady


def _middle(ordered: Sequence[float]) -> float:
    """The median of sorted numbers."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _longest(at: Sequence[int]) -> int:
    """Length of the longest row of neighbours."""
    rows = groupby(enumerate(at), key=lambda pair: pair[1] - pair[0])
    return max((len(list(row)) for _, row in rows), default=0)


def _period(at: Sequence[int]) -> int | None:
    gaps = {later - earlier for earlier, later in pairwise(at)}
    return gaps.pop() if len(at) > 2 and len(gaps) == 1 else None
