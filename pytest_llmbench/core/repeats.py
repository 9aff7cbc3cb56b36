"""Finds stretches of measurements that occur twice in a log, as copies do."""

from collections.abc import Hashable, Sequence


def repeated(rows: Sequence[tuple[Hashable, ...]], length: int, different: int) -> tuple[int, int] | None:
    """Find a stretch of rows of this length that occurs again later; return where both begin.

    So many of its rows have to be `different` from one another: a value that stands still repeats itself.
    """
    seen: dict[tuple[tuple[Hashable, ...], ...], int] = {}
    for begin in range(len(rows) - length + 1):
        stretch = tuple(rows[begin : begin + length])
        if len(set(stretch)) >= different:
            first = seen.setdefault(stretch, begin)
            if begin >= first + length:
                return first, begin
    return None
