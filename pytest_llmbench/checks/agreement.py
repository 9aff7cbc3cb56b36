"""Find the values that differ from the majority, where all have to be the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

Key = TypeVar("Key")

NOT_COMPARED = "rates on CPUs and at scale smoke scatter too much to be compared, unless an option says by how much"


def dissenters(values: Mapping[Key, str]) -> list[Key] | None:
    """Those that differ from what more than half of all have; None where there is no such majority.

    One alone agrees with itself; of two that differ, either may be right.
    """
    if not values:
        return []
    common, votes = Counter(values.values()).most_common(1)[0]
    if 2 * votes <= len(values):
        return None
    return [key for key, value in values.items() if value != common]
