"""Finds the change points of a series: the runs at which its mean changed.

E-divisive means (Matteson and James, arXiv:1306.4933) over windows, with Student's t test, and weak points merged away,
as in Hunter (Fleming et al., ICPE 2023, doi:10.1145/3578244.3583719), which became Apache Otava. Four things differ:
the p of a point counts all places that it was chosen from; deviations are those of a sample; every part of a window is
split further; and each point is moved to the place that fits its neighbourhood best before its last test.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from pytest_llmbench.judging.interval.student import above

# Values that are looked at together; windows overlap by half.
_WINDOW = 50
P_VALUE = 0.001
# Candidates may be weaker by this factor: the points around them are still unsettled.
_WEAK = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangePoint:
    """A place in a series where its mean changed; `index` is that of the first value after the change.

    `before` and `after` are means of the values up to the neighbouring change points. `p` is an upper bound on the
    probability that values of one mean differ as much at any place between these, by Student's t test, two-sided.
    """

    index: int
    before: float
    after: float
    p: float

    @property
    def change(self) -> float | None:
        """The change as a share of the mean before; None where that is 0."""
        return self.after / self.before - 1.0 if self.before else None


def change_points(values: Sequence[float], *, p_value: float = P_VALUE) -> list[ChangePoint]:
    """Find the change points of a series, in order.

    Args:
        values: in order of time.
        p_value: highest p of a change point.

    Raises ValueError if a value is NaN or infinite, or `p_value` is not a probability.
    """
    if not 0.0 < p_value < 1.0:
        raise ValueError(f"0 < p_value {p_value} < 1 must hold")
    if not all(map(math.isfinite, values)):
        raise ValueError("a series has only finite values: leave out the others")
    kept = _keep_strong(values, _find_candidates(values, min(_WEAK * p_value, 0.5)), p_value)
    return _keep_strong(values, _fit_places(values, [point.index for point in kept]), p_value)


def _find_candidates(values: Sequence[float], p_value: float) -> list[int]:
    """The places of all windows that may be change points."""
    places: set[int] = set()
    start = 0
    while start < len(values):
        new = _divide(values, start, min(start + _WINDOW, len(values)), p_value)
        places.update(new)
        start = max(start + _WINDOW // 2, max(new, default=0))
    return sorted(places)


def _divide(values: Sequence[float], start: int, end: int, p_value: float) -> list[int]:
    """The change points of a part, each of which divides it further."""
    if end - start < 2:
        return []
    at = start + _most_different(values[start:end])
    if _p(values[start:at], values[at:end]) > p_value:
        return []
    return [*_divide(values, start, at, p_value), at, *_divide(values, at, end, p_value)]


def _most_different(values: Sequence[float]) -> int:
    """The place whose two parts have the largest energy distance; the second part may end anywhere."""
    # sums[k][t] adds the distances of value k from the first t values.
    sums = []
    for k, value in enumerate(values):
        row = [0.0]
        for i in range(k):
            row.append(row[-1] + abs(values[i] - value))
        sums.append(row)
    best, place, within_left = -math.inf, 1, 0.0
    for at in range(1, len(values)):
        within_left += sums[at - 1][at - 1]
        between = within_right = 0.0
        left_weight = within_left / (at - 1) if at > 1 else 0.0
        for last in range(at, len(values)):
            to_left = sums[last][at]
            between += to_left
            within_right += sums[last][last] - to_left
            right = last - at + 1
            distance = between - right * left_weight
            if right > 1:
                distance -= at * within_right / (right - 1)
            distance *= 2.0 / (at + right)
            if distance > best:
                best, place = distance, at
    return place


def _keep_strong(values: Sequence[float], places: Sequence[int], p_value: float) -> list[ChangePoint]:
    """Remove the weakest place until all others are strong: each removal changes the test of its neighbours."""
    left = [*places]
    points = [_point(values, left, number) for number in range(len(left))]
    while points:
        number = max(range(len(points)), key=lambda place: points[place].p)
        if points[number].p <= p_value:
            return points
        del left[number], points[number]
        for neighbour in (number - 1, number):
            if 0 <= neighbour < len(left):
                points[neighbour] = _point(values, left, neighbour)
    return []


def _point(values: Sequence[float], places: Sequence[int], number: int) -> ChangePoint:
    start = places[number - 1] if number else 0
    end = places[number + 1] if number + 1 < len(places) else len(values)
    before, after = values[start : places[number]], values[places[number] : end]
    # Bonferroni: the place was chosen from this many.
    p = min(1.0, (end - start - 1) * _p(before, after))
    return ChangePoint(index=places[number], before=fmean(before), after=fmean(after), p=p)


def _fit_places(values: Sequence[float], places: Sequence[int]) -> list[int]:
    """Move each place to where two means fit the values between its neighbours best, by least squares."""
    moved = [*places]
    for number in range(len(moved)):
        start = moved[number - 1] if number else 0
        end = moved[number + 1] if number + 1 < len(moved) else len(values)
        part = values[start:end]
        middle = fmean(part)
        left, best = 0.0, -math.inf
        # Sums about the middle keep all digits of large values with small differences.
        total = math.fsum(value - middle for value in part)
        for at in range(1, len(part)):
            left += part[at - 1] - middle
            gain = left * left / at + (total - left) ** 2 / (len(part) - at)
            if gain > best:
                best, moved[number] = gain, start + at
    return moved


def _p(left: Sequence[float], right: Sequence[float]) -> float:
    """Two-sided p of Student's t test for two samples with one variance; 1 for fewer than three values."""
    freedom = len(left) + len(right) - 2
    if freedom < 1:
        return 1.0
    means = fmean(left), fmean(right)
    difference = abs(means[0] - means[1])
    squares = math.fsum((value - mean) ** 2 for part, mean in zip((left, right), means, strict=True) for value in part)
    error = math.sqrt(squares / freedom * (1 / len(left) + 1 / len(right)))
    # The scatter of values that agree to the last digits is that of rounding.
    least = 1e-12 * max(map(abs, means))
    if error <= least:
        return 0.0 if difference > least else 1.0
    return 2.0 * above(difference / error, float(freedom))
