"""Who differs from the rest: nodes by one number, groups by their runs, and how surely."""

import math
import random
from collections.abc import Mapping
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.record.steady import Steady
from pytest_llmbench.judging.groups import Lag, lags, share_of_alpha
from pytest_llmbench.judging.interval.steady import steady_state
from pytest_llmbench.judging.outliers import outliers

TOLERANCE = 0.03


def group(level: float, seed: int, groups: int, *, cv: float = 0.004, between: float = 0.003) -> list[Steady]:
    """One run of a group, of steps that vary, on nodes that differ a little."""
    rng = random.Random(seed)
    level *= 1 + between * rng.gauss(0, 1)
    steps = [level * max(0.1, 1 + cv * rng.gauss(0, 1)) for _ in range(40)]
    return [steady_state(steps, alpha=share_of_alpha(groups))]


def compared(levels: Mapping[str, float], seed: int = 0) -> dict[str, Lag]:
    return lags({name: group(level, 100 * seed + i, len(levels)) for i, (name, level) in enumerate(levels.items())})


@given(st.integers(3, 12), st.floats(0.5, 2.0), st.floats(1.1, 5.0), st.integers(0, 1000))
def test_the_slow_group_alone_is_named(groups: int, level: float, factor: float, seed: int) -> None:
    levels = {f"g{i}": level * (factor if i == seed % groups else 1.0) for i in range(groups)}
    found = compared(levels, seed)
    assert {name for name, lag in found.items() if lag.within(TOLERANCE) is False} == {f"g{seed % groups}"}
    slow = found[f"g{seed % groups}"]
    assert slow.low < slow.share < slow.high
    assert slow.share == pytest.approx(factor - 1, rel=0.4)


@given(st.integers(2, 12), st.integers(0, 10_000))
def test_healthy_groups_are_never_too_slow(groups: int, seed: int) -> None:
    found = compared({f"g{i}": 1.0 for i in range(groups)}, seed)
    assert len(found) == groups
    assert all(lag.within(TOLERANCE) is not False for lag in found.values())


def test_healthy_groups_pass_as_a_rule_and_a_group_beyond_the_tolerance_never() -> None:
    verdicts = [
        lag.within(TOLERANCE) for seed in range(50) for lag in compared({f"g{i}": 1.0 for i in range(4)}, seed).values()
    ]
    assert verdicts.count(True) >= 0.95 * len(verdicts)
    verdicts = [compared({"a": 1.031, "b": 1.0, "c": 1.0}, seed)["a"].within(TOLERANCE) for seed in range(200)]
    assert verdicts.count(True) <= 2


def test_a_group_is_compared_with_the_others_alone() -> None:
    assert compared({"a": 1.0}) == {}
    assert lags({}) == {}
    found = compared({"a": 1.0, "b": 1.1})
    assert (found["a"].within(TOLERANCE), found["b"].within(TOLERANCE)) == (True, False)
    assert found["b"].others == 1


def test_a_group_that_stalls_is_not_as_fast_as_the_others() -> None:
    """One step in 20 takes ten times as long on its nodes, and all others as long as elsewhere."""
    groups = {name: group(1.0, seed, 4) for seed, name in enumerate("abcd")}
    rng = random.Random(1)
    stalling = [(10.0 if i % 20 == 7 else 1.0) * (1 + 0.004 * rng.gauss(0, 1)) for i in range(200)]
    groups["a"] = [steady_state(stalling, alpha=share_of_alpha(4))]
    found = lags(groups)
    assert found["a"].within(TOLERANCE) is None
    assert found["a"].share == pytest.approx(0.45, abs=0.02)
    assert all(found[name].within(TOLERANCE) is True for name in "bcd")


def test_more_runs_of_each_group_are_surer() -> None:
    once = {name: group(1.0, seed, 3) for seed, name in enumerate("abc")}
    often = {name: runs * 4 for name, runs in once.items()}
    one, four = lags(once)["a"], lags(often)["a"]
    assert four.high - four.low < one.high - one.low


def test_steps_of_which_nothing_is_known_still_take_time() -> None:
    """A group is not more than 100 % faster than the others, and noise like this decides nothing."""
    found = lags({name: group(1.0, seed, 3, cv=0.9) for seed, name in enumerate("abc", start=1)})
    assert all(lag.low >= -1.0 for lag in found.values())
    assert min(lag.low for lag in found.values()) < -0.8
    assert {lag.within(TOLERANCE) for lag in found.values()} == {None}


def test_groups_that_scatter_widely_name_none() -> None:
    found = compared({f"g{i}": level for i, level in enumerate([1.0, 1.06, 1.13, 1.2, 1.26, 1.33])})
    assert not [lag for lag in found.values() if lag.within(TOLERANCE) is False]


Side = Literal["low", "high", "both"]

_RATES = st.floats(min_value=1e-6, max_value=1e9)
_FLEETS = st.lists(_RATES, max_size=20).map(lambda rates: {f"n{i}": rate for i, rate in enumerate(rates)})
_SIDES: st.SearchStrategy[Side] = st.sampled_from(("low", "high", "both"))


@pytest.mark.parametrize("tolerance", [0.0, 0.05])
def test_a_slow_one_is_named_with_its_distance(tolerance: float) -> None:
    found = outliers({**{f"n{i}": 600.0 + i for i in range(7)}, "bad": 401.0}, tolerance=tolerance)
    assert list(found) == ["bad"]
    assert found["bad"].text == "33.4% below the median 602.5 of 8"


@pytest.mark.parametrize(("side", "named"), [("low", ["slow"]), ("high", ["fast"]), ("both", ["slow", "fast"])])
def test_only_the_bad_side_counts(side: Side, named: list[str]) -> None:
    fleet = {"slow": 5.0, "a": 10.0, "b": 10.0, "c": 10.0, "fast": 20.0}
    assert list(outliers(fleet, tolerance=0.05, side=side)) == named


def test_what_is_within_the_tolerance_or_the_scatter_or_beside_a_median_of_zero_is_no_outlier() -> None:
    """A fleet that agrees to 0.1 % accuses nobody for 0.3 %, though that is many MADs."""
    fleet = {"a": 100.0, "b": 100.01, "c": 99.99, "d": 100.0, "e": 99.7}
    assert not outliers(fleet, tolerance=0.05)
    assert list(outliers(fleet, tolerance=0.001)) == ["e"]
    assert not outliers({"a": 100.0, "b": 80.0, "c": 120.0, "d": 60.0}, tolerance=0.05)
    assert not outliers({"a": 0.0, "b": 0.0, "c": 1.0}, tolerance=0.0, side="both")


@pytest.mark.parametrize("fleet", [{}, {"a": 1.0}, {"a": 1.0, "b": 100.0}])
def test_of_fewer_than_three_none_is_named(fleet: Mapping[str, float]) -> None:
    assert not outliers(fleet, tolerance=0.0, side="both")


@pytest.mark.parametrize(("value", "kind"), [(math.nan, "not_finite"), (math.inf, "not_finite"), (-1.0, "negative")])
def test_what_is_no_measured_number_is_refused(value: float, kind: str) -> None:
    with pytest.raises(RunError, match=r"\Aworst: ") as caught:
        outliers({"a": 1.0, "worst": value}, tolerance=0.05)
    assert caught.value.kind == kind


@given(_FLEETS, _SIDES, st.integers(min_value=-40, max_value=40))
def test_the_unit_does_not_matter(fleet: Mapping[str, float], side: Side, exponent: int) -> None:
    """Scale invariance, by powers of two, which floats multiply by exactly."""
    scaled = {name: value * 2.0**exponent for name, value in fleet.items()}
    assert list(outliers(scaled, tolerance=0.05, side=side)) == list(outliers(fleet, tolerance=0.05, side=side))


@given(st.data(), _RATES, st.integers(min_value=3, max_value=50))
def test_bad_ones_that_are_fewer_than_half_are_all_found(data: st.DataObject, rate: float, count: int) -> None:
    bad = data.draw(st.integers(min_value=1, max_value=(count - 1) // 2))
    fleet = {f"n{i}": rate / 2 if i < bad else rate for i in range(count)}
    found = outliers(fleet, tolerance=0.05)
    assert list(found) == [f"n{i}" for i in range(bad)]
    assert {each.deviation for each in found.values()} == {-0.5}


@given(_FLEETS, _SIDES, st.floats(min_value=0.0, max_value=1.0))
def test_every_outlier_is_as_far_off_as_it_must_be(fleet: Mapping[str, float], side: Side, tolerance: float) -> None:
    found = outliers(fleet, tolerance=tolerance, side=side)
    assert len(found) <= len(fleet) / 2
    for outlier in found.values():
        assert abs(outlier.value - outlier.median) >= tolerance * outlier.median
        assert side == "both" or (outlier.deviation < 0) == (side == "low")


def test_one_that_is_many_times_too_slow_is_found_among_rates_that_scatter() -> None:
    """As on eight nodes that share two cores: by differences, the MAD alone would reach below 0."""
    best = {"n1": 0.83, "n2": 0.80, "n3": 1.2, "n4": 0.26, "n5": 0.005, "n6": 0.57, "n7": 1.25, "n8": 1.25}
    assert list(outliers(best, tolerance=0.5, factor=2.0)) == ["n5"]
    assert list(outliers({**best, "n5": 0.0}, tolerance=0.5, factor=2.0)) == ["n5"]
