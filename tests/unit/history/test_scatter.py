"""How widely the runs of a system differ, and where their level changes."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from pytest_llmbench.core.quantity import USUAL_BETWEEN_RUNS
from pytest_llmbench.history import scatter
from pytest_llmbench.history.change_points import change_points
from pytest_llmbench.history.compare import Compared, measure_change
from pytest_llmbench.history.rows import MetricRow
from pytest_llmbench.history.scatter import Scatter, current_level, scatter_of_runs, shared_scatter, without_outliers
from tests.conftest import known

series_lists = st.lists(
    st.builds(lambda variance, freedom: Scatter(variance * freedom, freedom), st.floats(1e-8, 1e-2), st.floats(1, 50)),
    min_size=2, max_size=30,
)  # fmt: skip


def drawn(seed: int, deviations: list[float], runs: int = 10) -> list[Scatter]:
    rng = random.Random(seed)
    return [scatter_of_runs([rng.gauss(100, 100 * each) for _ in range(runs)], [], [100.0]) for each in deviations]


def row(value: float) -> MetricRow:
    return MetricRow(name="x", value=value, unit="words/s", low=0.999 * value, high=1.001 * value, better="higher")


def test_alike_series_share_what_they_show() -> None:
    """Twenty series that scatter by 0.25 % tell so, and make the interval of each narrower than other systems do."""
    shared = shared_scatter(drawn(1, 20 * [0.0025]))
    assert shared is not None
    assert shared.deviation == pytest.approx(0.0025, rel=0.2)
    assert shared.freedom > USUAL_BETWEEN_RUNS.freedom
    past = [100.2, 99.8, 100.1, 99.9, 100.3, 99.7]
    pair = Compared(name="x", before=[row(100)], after=[row(99)], past=[*map(row, past)], usual=USUAL_BETWEEN_RUNS)
    narrow, wide = (measure_change(pair, shared=which) for which in (shared, None))
    assert narrow.loss is not None
    assert wide.loss is not None
    assert narrow.loss[1] < wide.loss[1]


def test_series_that_differ_share_nothing() -> None:
    assert shared_scatter(drawn(1, [0.001 * 10 ** (number / 20) for number in range(20)])) is None
    assert shared_scatter(drawn(1, [*(10 * [0.002]), *(2 * [0.02])])) is None


def test_few_series_are_worth_little() -> None:
    """Four that are alike may be so by chance: they are worth far less than all of their runs."""
    few, many = (known(shared_scatter(drawn(1, count * [0.0025]))) for count in (4, 40))
    assert few.freedom < 18.0 < many.freedom


def test_one_series_and_series_without_scatter_tell_nothing() -> None:
    (one,) = drawn(1, [0.002])
    assert shared_scatter([one]) is None
    assert shared_scatter([one, Scatter(0.0, 9.0), Scatter(0.0, 0.0)]) is None
    assert scatter_of_runs([0.0, 0.0, 0.0], [], [1.0]) == Scatter(0.0, 0.0)


def test_the_runs_of_a_noisy_series_count_against_the_others() -> None:
    """A change within a recipe's own scatter is not a regression, however quiet the other recipes are."""
    shared = shared_scatter(drawn(1, 20 * [0.0025]))
    past = [100 + way * 3 for way in (1, -1, 0.6, -0.6, 1, -1, 0.8, -0.8, 1, -1, 0.9, -0.9)]
    pair = Compared(name="x", before=[row(100)], after=[row(97)], past=[*map(row, past)], usual=USUAL_BETWEEN_RUNS)
    assert measure_change(pair, shared=shared).verdict != "FAIL"


@given(series_lists, st.sampled_from([1.0, 4.0, 30.0]))
def test_the_fit_is_the_likeliest(series: list[Scatter], freedom: float) -> None:
    variance, likelihood = scatter._fit(series, freedom)

    def log_density(log_variance: float, freedom: float) -> float:
        scale = math.exp(log_variance)
        ratios = ((each.deviation**2 / scale, each.freedom) for each in series)
        return float(sum(stats.f.logpdf(ratio, own, freedom) - log_variance for ratio, own in ratios))

    best = optimize.minimize_scalar(
        lambda log_variance: -log_density(log_variance, freedom), bounds=(-25.0, 0.0), method="bounded"
    )
    assert log_density(math.log(variance), freedom) >= -best.fun - 1e-6 * (1 + abs(best.fun))
    # Other degrees of freedom are more or less likely by as much as SciPy says.
    other, theirs = scatter._fit(series, 2 * freedom)
    expected = log_density(math.log(other), 2 * freedom) - log_density(math.log(variance), freedom)
    assert theirs - likelihood == pytest.approx(expected, abs=1e-6 * (1 + abs(best.fun)))


DAYS = [100.0 + 0.2 * math.sin(7.0 * day) for day in range(20)]


@pytest.mark.parametrize(("values", "counted"), [
    (DAYS, range(20)),
    ([*DAYS[:10], 90.0, *DAYS[11:]], [*range(10), *range(11, 20)]),  # a bad day
    ([*DAYS[:19], 90.0], range(19)),  # yesterday was one
    ([*DAYS[:18], 90.0, 90.1], range(18)),
    ([*DAYS[:15], *(day + 5.0 for day in DAYS[15:])], range(15, 20)),  # better for five days
    ([*DAYS[:15], *(day - 5.0 for day in DAYS[15:])], range(15, 20)),
    ([*DAYS[:19], 105.0], [19]),
    ([*DAYS[:6], 90.0], range(6)),
    (DAYS[:2], range(2)),
    ([], []),
])  # fmt: skip
def test_the_current_level_begins_at_the_last_change(values: list[float], counted: list[int]) -> None:
    assert current_level(values, higher=True) == [*counted]
    assert current_level([-value for value in values], higher=False) == [*counted]


@pytest.mark.parametrize("count", [4, 6, 10, 50])
def test_values_alike_have_few_outliers(count: int) -> None:
    rng, dropped = random.Random(count), 0
    for _ in range(300):
        dropped += count - len(without_outliers([rng.gauss(100, 1) for _ in range(count)]))
    assert dropped <= 3


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
