"""Long series with few points: what stands out stays in sight."""

import math
from collections.abc import Sequence


def thinned(values: Sequence[float | None], most: int) -> list[int]:
    """Positions of the values to draw: the lowest and the highest of each stretch, and both ends.

    Args:
        values: in order; one that is None or not finite is never drawn, unless all are few enough.
        most: the number of points, at least 4.

    Returns:
        All positions, in order, if there are no more than `most`.
    """
    count = len(values)
    if count <= most:
        return list(range(count))
    stretches = max(1, (most - 2) // 2)
    kept = {0, count - 1}
    for number in range(stretches):
        first, last = count * number // stretches, count * (number + 1) // stretches
        finite = [
            (value, at) for at in range(first, last) if (value := values[at]) is not None and math.isfinite(value)
        ]
        if finite:
            kept |= {min(finite)[1], max(finite)[1]}
    return sorted(kept)


def rounded(value: float | None, digits: int = 5) -> float | None:
    """A number with few digits for a drawing; None for one that cannot be drawn."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() else short
