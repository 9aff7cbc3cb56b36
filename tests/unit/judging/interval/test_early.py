"""Looks at a run that goes on."""

import random
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.judging.interval.early import at_a_look, looks
from pytest_llmbench.judging.interval.steady import steady_state

PLAN, SKIP = 200, 5  # steps of the run, and those of its warm-up
JUDGED = PLAN - SKIP


def noisy(steps: int, shape: Callable[[int], float] = lambda _: 1.0) -> list[float]:
    """Seconds of independent steps around a curve, in noise of 0.5 %."""
    rng = random.Random(7)
    return [shape(i) * (1 + 0.005 * rng.gauss(0, 1)) for i in range(steps)]


def test_looks_begin_at_a_quarter_and_end_with_the_plan() -> None:
    assert looks(PLAN, SKIP) == (50, 70, 100, 140, 200)
    assert looks(40, SKIP) == (25, 28, 40)
    assert looks(20, SKIP) == (20,)


@given(st.integers(1, 5000), st.integers(0, 100))
def test_the_last_look_is_the_whole_plan(plan: int, skip: int) -> None:
    at = looks(plan, skip)
    assert at[-1] == plan
    assert list(at) == sorted(set(at))


def test_a_quiet_run_is_decided_at_a_quarter() -> None:
    """On the fast side where pauses, too seldom to be among so few steps, would not change it."""
    state = at_a_look(noisy(45), plan=JUDGED)
    assert state.decide(1.06) == "fast_enough"
    assert state.decide(1.02) == "pauses_decide"
    assert state.decide(0.94) == "too_slow"


def test_a_look_needs_more_than_the_end() -> None:
    early, alone = at_a_look(noisy(45), plan=JUDGED), steady_state(noisy(45))
    assert early.low < alone.low
    assert early.high > alone.high


def test_a_drift_goes_on() -> None:
    """A run that becomes 24 % slower over its plan does not pass by its first quarter."""
    seconds = noisy(PLAN, lambda i: 1 + 0.0012 * i)
    assert steady_state(seconds[SKIP:50]).decide(1.115) == "fast_enough"
    assert at_a_look(seconds[SKIP:50], plan=JUDGED).decide(1.115) not in {"fast_enough", "too_slow"}
