"""Several runs of one system: what would decide, and bounds from good ones."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_llmbench.core.record.steady import Steady
from pytest_llmbench.judging.interval.calibration import calibrate
from pytest_llmbench.judging.interval.repeats import pool, runs_to_decide, steps_to_decide
from pytest_llmbench.judging.interval.steady import steady_state


def run(level: float = 1.0, *, steps: int = 200, cv: float = 0.002, seed: int = 1, system: bool = False) -> Steady:
    rng = random.Random(seed)
    seconds = [level * (1 + cv * rng.gauss(0, 1)) for _ in range(steps)]
    state = steady_state(seconds[5:])
    return pool([state]) if system else state


def test_a_pool_of_one_is_the_claim_of_the_system() -> None:
    """Wider by 0.3 % with four degrees of freedom, whatever was in it before, and by more if no run has shown that."""
    for state, known, t in ((run(), True, 3.7469), (run(), False, 1.13 * 3.7469), (run(system=True), True, 3.7469)):
        pooled = pool([state], known=known)
        alone = run().widened(t * 0.003 * state.mean)
        assert (pooled.low, pooled.high) == pytest.approx((alone.low, alone.high))
        assert pooled.between == pytest.approx(alone.between, rel=1e-4)


def test_more_runs_are_surer() -> None:
    one, three = pool([run()]), pool([run(seed=seed) for seed in (1, 2, 3)])
    assert three.half_width < one.half_width / 2
    assert one.decide(1.008) == "within_noise"
    assert three.decide(1.008) == "fast_enough"


def test_runs_that_differ_count() -> None:
    """One per cent between runs is more than was known before, so the interval is wider than that of one run."""
    apart = pool([run(level, seed=i) for i, level in enumerate((0.99, 1.01))])
    assert apart.between > pool([run(), run(seed=2)]).between * 1.5
    assert apart.decide(1.01) == "within_noise"


@given(st.permutations([0.99, 1.0, 1.004, 1.02]))
def test_the_order_of_runs_says_nothing(levels: list[float]) -> None:
    one, other = (pool([run(level, steps=30) for level in some]) for some in (levels, sorted(levels)))
    assert (one.low, one.high) == pytest.approx((other.low, other.high))


def test_a_run_that_was_not_judged_leaves_all_open() -> None:
    """A short run, or one that has not settled, is not made up for by others."""
    assert pool([run(), run(steps=20)]).decide(2.0) == "too_short"
    falling = steady_state([1.2 - 0.001 * i for i in range(5, 200)])
    assert pool([run(), falling]).decide(0.9) == "not_settled"


def test_no_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        pool([])


def test_the_steps_that_would_decide_decide() -> None:
    short = run(steps=50, cv=0.02)
    bound = short.mean * 1.004
    steps = steps_to_decide(short, bound)
    assert short.decide(bound) == "within_noise"
    assert steps is not None
    assert 100 < steps < 1000
    again = run(steps=2 * steps, cv=0.02, seed=4)
    assert again.decide(again.mean * 1.004) == "fast_enough"


@example(0.02, 0.005, 0.03, -0.045)
@given(st.floats(0.0, 0.05), st.floats(0.0, 0.05), st.floats(0.0, 0.05), st.floats(-0.2, 0.2))
def test_more_steps_are_more_than_there_are(hidden: float, within: float, between: float, away: float) -> None:
    width = math.hypot(within, between)
    state = replace(
        run(), mean=1.0, mean_with_pauses=1.0, half_width=width, between=between, low=1.0 - hidden - width,
        high=1.0 + width,
    )  # fmt: skip
    steps = steps_to_decide(state, 1.0 + away)
    assert steps is None or steps > state.judged + state.left_out


def test_a_short_run_is_told_how_many_steps_it_takes() -> None:
    assert steps_to_decide(run(steps=12), 1.0) == 20


def test_more_runs_help_where_steps_do_not_and_neither_on_the_bound_itself() -> None:
    state = run(system=True)
    bound = state.mean * 1.008
    assert steps_to_decide(state, bound) is None
    assert runs_to_decide(state, bound) == 2
    assert pool([run(), run(seed=2)]).decide(bound) == "fast_enough"
    assert steps_to_decide(state, state.mean) is None
    assert runs_to_decide(state, state.mean) is None


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
