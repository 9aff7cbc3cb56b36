"""Several runs of one system, and what would decide."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_llmbench.core.record.steady import Steady
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
