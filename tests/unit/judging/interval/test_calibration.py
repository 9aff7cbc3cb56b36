"""Bounds from good runs."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.judging.interval.calibration import calibrate


def test_one_run_has_what_is_known_of_others() -> None:
    """0.3 % with four degrees of freedom, for the run itself and for the next one."""
    found = calibrate([1000.0])
    assert found.spread == pytest.approx(0.003)
    assert found.false_alarm == pytest.approx(0.01)
    assert found.bound == pytest.approx(1000 * (1 - 3.7469 * 0.003 * 2**0.5), rel=1e-5)
    assert found.method == "99 % prediction limit of 1 run"


def test_more_runs_that_agree_are_a_tighter_bound() -> None:
    margins = [calibrate([1000.0, 1001.0, 999.0, 1000.5] * n).margin for n in (1, 2, 5)]
    assert margins == sorted(margins, reverse=True)
    assert margins[-1] < 0.006


def test_an_outlier_is_left_out_and_named() -> None:
    found = calibrate([1000.0, 1001.0, 999.0, 950.0, 1000.5])
    assert (*found.left_out, found.n) == (3, 4)
    assert found.bound > 985


def test_runs_that_differ_widely_have_a_wide_bound() -> None:
    """If half of the runs are slow, they are not outliers of the other half."""
    found = calibrate([1000, 1001, 900, 901])
    assert found.left_out == ()
    assert found.spread > 0.03
    assert found.bound < 850


def test_runs_that_differ_too_much_make_no_bound() -> None:
    with pytest.raises(ValueError, match=r"differ by 18 %.* 64% away from their mean, and finds no slow system"):
        calibrate([100.0, 150.0, 190.0])
    assert calibrate([100.0, 150.0, 190.0], less=0.1).false_alarm > 0.25


@pytest.mark.parametrize(("values", "less", "words"), [
    *((values, None, "above 0") for values in ([], [0.0], [1.0, float("nan")], [float("inf")], [-1.0])),
    *(([1000.0], less, "margin") for less in (0.0, 0.5, 1.0, -0.05, float("nan"))),
    ([1000, 1001, 1000, 999, 1002, 900, 901], None, "one system in one state"),
    ([1000.0] * 3, None, "all 3 runs have the number 1000 to the last digit: they are copies of one"),
])  # fmt: skip
def test_what_gives_no_bound_is_refused(values: list[float], less: float | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        calibrate(values, less=less)


def test_a_plain_margin_says_what_would_be_enough() -> None:
    found = calibrate([1000.0, 1001.0, 999.0], less=0.005)
    assert found.bound == pytest.approx(995.0)
    assert found.least_margin > found.margin
    assert 0.01 < found.false_alarm < 0.1
    assert found.method == "margin of 0.5 % on the mean of 3 runs"


@given(st.lists(st.floats(0.999, 1.001), min_size=1, max_size=9, unique=True), st.sampled_from([1e-3, 1.0, 1e6]))
def test_the_unit_changes_nothing(values: list[float], unit: float) -> None:
    """Times have their bound above, rates below; both by the same share."""
    rate, slow = calibrate([unit * each for each in values]), calibrate(values, lower_is_better=True)
    assert rate.margin == pytest.approx(slow.margin)
    assert rate.bound == pytest.approx(unit * rate.mean / unit * (1 - rate.margin))
    assert slow.bound == pytest.approx(slow.mean * (1 + slow.margin))


def test_a_healthy_run_seldom_misses_and_a_slower_one_nearly_always() -> None:
    """Runs that differ by 0.2 %: at most one in a hundred misses, 99 % of those 2 % slower do."""
    rng = random.Random(5)
    missed = found = 0
    for _ in range(1500):
        bound = calibrate([1 + 0.002 * rng.gauss(0, 1) for _ in range(5)]).bound
        run = 1 + 0.002 * rng.gauss(0, 1)
        missed += run < bound
        found += run - 0.02 < bound
    assert missed <= 15
    assert found >= 1485
