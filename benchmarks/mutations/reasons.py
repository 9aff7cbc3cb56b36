"""Damage that nothing in the log bears on: which, and why it cannot be found from the log alone."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """Attributes: readers, kinds of damage and statistics it is about, as regular expressions, and the reason."""

    readers: str
    kinds: str
    statistics: str
    why: str


_REASONS: tuple[Reason, ...] = ()


def reason(reader: str, kind: str, statistic: str) -> str | None:
    """Why this damage cannot be found; None where it can."""
    for each in _REASONS:
        wanted = ((each.readers, reader), (each.kinds, kind), (each.statistics, statistic))
        if all(re.fullmatch(pattern, text) for pattern, text in wanted):
            return each.why
    return None
