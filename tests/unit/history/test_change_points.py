"""Change points: found where they are, and not where there is noise alone."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pytest_llmbench.history.change_points import change_points


def noise(seed: int, levels: dict[int, float], spread: float = 0.5) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(level, spread) for count, level in levels.items() for _ in range(count)]


def test_two_changes_are_found_with_their_means() -> None:
    right = 0
    for seed in range(40):
        found = change_points(noise(seed, {40: 100.0, 35: 98.0, 30: 101.0}))
        right += [round(point.before) for point in found] == [100, 98] and all(
            abs(point.index - at) <= 1 for point, at in zip(found, (40, 75), strict=True)
        )
    assert right >= 38


def test_noise_alone_is_seldom_a_change() -> None:
    """In 200 series of 100 values at most two: each change has a p of at most 0.001, however many places there are."""
    assert sum(bool(change_points(noise(seed, {100: 100.0}))) for seed in range(200)) <= 2


def test_the_p_is_that_of_a_t_test_for_all_places() -> None:
    values = noise(7, {12: 100.0, 9: 102.0})
    (point,) = change_points(values)
    one = stats.ttest_ind(values[: point.index], values[point.index :]).pvalue
    assert point.p == pytest.approx(20 * one, rel=1e-6)
    assert point.change == pytest.approx(0.02, abs=0.005)


def test_exact_values_change_without_noise() -> None:
    assert [point.index for point in change_points([5.0] * 20 + [6.0] * 20)] == [20]
    assert change_points([5.0] * 40) == []


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [1.0, 2.0, 3.0]])
def test_too_few_values_have_no_change(values: list[float]) -> None:
    assert change_points(values) == []


@given(st.lists(st.floats(-1e6, 1e6), max_size=60), st.floats(0.1, 10.0))
@settings(max_examples=40, deadline=None)
def test_a_unit_changes_nothing(values: list[float], factor: float) -> None:
    """Points are in order, inside of the series, and surely enough; means are those of their parts."""
    found = change_points(values)
    places = [point.index for point in found]
    assert places == sorted(set(places))
    assert all(0 < place < len(values) for place in places)
    assert all(0.0 <= point.p <= 0.001 for point in found)
    ends = [0, *places, len(values)]
    for number, point in enumerate(found):
        part = values[ends[number] : ends[number + 1]]
        assert math.isclose(point.before, math.fsum(part) / len(part), rel_tol=1e-9, abs_tol=1e-6)


def test_a_value_that_is_not_finite_is_an_error() -> None:
    with pytest.raises(ValueError, match="finite"):
        change_points([1.0, float("nan")])
