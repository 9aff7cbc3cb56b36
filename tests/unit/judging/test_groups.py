"""Groups of nodes compared with each other: which is slower than the others, and how surely."""

import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.record.steady import Steady
from pytest_llmbench.judging.groups import Lag, lags, share_of_alpha
from pytest_llmbench.judging.interval.steady import steady_state

TOLERANCE = 0.03


def group(level: float, seed: int, groups: int, *, cv: float = 0.004, between: float = 0.003) -> list[Steady]:
    """One run of a group, of steps that vary, on nodes that differ a little."""
    rng = random.Random(seed)
    level *= 1 + between * rng.gauss(0, 1)
    steps = [level * max(0.1, 1 + cv * rng.gauss(0, 1)) for _ in range(40)]
    return [steady_state(steps, skip=0, alpha=share_of_alpha(groups))]


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
