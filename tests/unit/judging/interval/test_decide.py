"""Numbers and thresholds: met, missed, or not decided, and then why and what to do; looks at a run that goes on."""

import math
import random
from collections.abc import Callable
from typing import Literal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_llmbench.core.quantity import USUAL_BETWEEN_RUNS, BetweenRuns, Quantity
from pytest_llmbench.core.record.records import Metric
from pytest_llmbench.judging.interval.decide import Op, compare_metrics, decide, span, with_own_rule
from pytest_llmbench.judging.interval.early import at_a_look, looks
from pytest_llmbench.judging.interval.steady import steady_state, unseen_between

TOKENS = 1000.0


def steps(count: int = 50, scatter: float = 0.004, seed: int = 1) -> list[float]:
    chance = random.Random(seed)
    return [1.0 + scatter * chance.gauss(0.0, 1.0) for _ in range(count)]


def rate(seconds: list[float]) -> Metric:
    value, (low, high) = TOKENS * len(seconds) / sum(seconds), span("rate", TOKENS, steady_state(seconds))
    return Metric(value=value, unit="words/s", rule="x", sense="rate", amount=TOKENS, low=low, high=high)


def time(seconds: list[float]) -> Metric:
    value, (low, high) = 100.0 * sum(seconds) / len(seconds), span("time", 100.0, steady_state(seconds))
    return Metric(value=value, unit="s", rule="x", sense="time", amount=100.0, low=low, high=high)


@pytest.mark.parametrize(("op", "share", "holds"), [
    (">=", 0.94, True), (">=", 1.0, None), (">=", 1.06, False), (">", 0.94, True), (">", 1.06, False),
    ("<=", 0.94, False), ("<=", 1.0, None), ("<=", 1.06, True), ("<", 0.94, False), ("<", 1.06, True),
])  # fmt: skip
@pytest.mark.parametrize("sense", ["rate", "time"])
def test_only_what_is_certain_ends(op: Op, share: float, holds: bool | None, sense: Literal["rate", "time"]) -> None:
    seconds = steps()
    metric = rate(seconds) if sense == "rate" else time(seconds)
    bound = Quantity(metric.value * share, metric.unit)
    decision = decide(metric, [steady_state(seconds)], op, bound, USUAL_BETWEEN_RUNS)
    assert decision.holds is holds
    assert (decision.why != "") == (holds is None)
    assert decision.low is not None
    assert decision.high is not None
    assert decision.low < metric.value < decision.high
    assert decision.steady == pytest.approx(metric.value, rel=0.01)


DRIFTING = [1.0 + 0.0004 * i for i in range(400)]


@pytest.mark.parametrize(
    ("seconds", "value", "bound", "holds"),
    [(steps(), 1000.0, 900.0, True), (steps(), 1000.0, 1100.0, False), (steps(), 880.0, 900.0, None),
     (steps(), 1120.0, 1100.0, None), (steps(), 1001.0, 1000.0, None), (steps(), 999.0, 1000.0, None),
     (DRIFTING, 926.0, 925.9, None), (DRIFTING, 925.8, 925.9, None)],
)  # fmt: skip
def test_a_number_of_its_own_rule_decides_where_the_run_agrees(
    seconds: list[float], value: float, bound: float, holds: bool | None
) -> None:
    """A median, three of 200 steps or all lines: the number and the interval are on one side of the bound, or none."""
    metric = Metric(value=value, unit="words/s", rule="the source's", sense="rate", amount=TOKENS)
    steady = steady_state(seconds)
    directions: tuple[tuple[Op, bool | None], ...] = ((">=", holds), ("<=", None if holds is None else not holds))
    for op, ends in directions:
        limit = Quantity(bound, "words/s")
        decision = with_own_rule(decide(metric, [steady], op, limit, USUAL_BETWEEN_RUNS), metric, op, limit)
        assert (decision.holds, decision.why == "") == (ends, ends is not None)


def test_the_bound_may_have_another_unit() -> None:
    seconds = steps()
    steady = steady_state(seconds)
    assert decide(time(seconds), [steady], "<=", Quantity("2 min"), None).holds is True
    assert decide(time(seconds), [steady], "<=", Quantity("90000 ms"), None).holds is False


@pytest.mark.parametrize("share", [0.97, 1.03])
def test_few_steps_decide_a_near_bound_where_runs_have_shown_how_the_system_differs(share: float) -> None:
    """Two levels 8 % apart, each for some 20 steps, may show one of them only: 3 % away decide in more steps."""
    for between in (None, USUAL_BETWEEN_RUNS):
        metric, steady = rate(steps()), steady_state(steps())
        undecided = decide(metric, [steady], ">=", Quantity(metric.value * share, "words/s"), between)
        assert undecided.holds is None
        assert undecided.why.startswith("50 judged steps may not show levels between which the speed changes")
        needed = int(undecided.why.partition("train about ")[2].split()[0])
        seconds = steps(needed + 2)
        metric, steady = rate(seconds), steady_state(seconds)
        assert decide(metric, [steady], ">=", Quantity(metric.value * share, "words/s"), between).holds is (share < 1)
    metric, steady = rate(steps()), steady_state(steps())
    for spread, claim in ((0.003, "system"), (0.0, "run")):
        known = BetweenRuns(spread=spread, freedom=4.0)
        decision = decide(metric, [steady], ">=", Quantity(metric.value * share, "words/s"), known)
        assert (decision.holds, decision.claim) == (share < 1, claim)


def test_a_system_is_known_less_well_than_a_run() -> None:
    seconds = steps(200, 0.001)
    metric, steady = rate(seconds), steady_state(seconds)
    bound = Quantity(metric.value * 0.995, "words/s")
    assert decide(metric, [steady], ">=", bound, None).holds is True
    assert decide(metric, [steady], ">=", bound, USUAL_BETWEEN_RUNS).holds is None
    assert decide(metric, [steady], ">=", bound, BetweenRuns(spread=0.0005, freedom=20)).holds is True
    assert decide(metric, [steady], ">=", bound, None).claim == "run"
    assert decide(metric, [steady], ">=", bound, USUAL_BETWEEN_RUNS).claim == "system"


# A real run of 1.3 billion parameters on one H200, after its warm-up rule.
H200 = [
    17.694, 17.666, 17.667, 17.658, 17.653, 17.645, 17.634, 17.621, 17.619, 17.622, 17.6, 17.615, 17.597, 17.598,
    17.588, 17.591, 17.596, 17.581, 17.582, 17.572, 17.568,
]  # fmt: skip
NEAR, PAUSED = steps(200, 0.001), [*steps(48), 8.0, 8.0]


@pytest.mark.parametrize(("seconds", "share", "between", "told"), [
    (steps(12), 0.95, USUAL_BETWEEN_RUNS, "12 judged steps are too few: train at least 20 after the warm-up"),
    (H200, 0.97, None, "21 judged steps, 14 of them slow ones at the start, are too few: train at least 30"),
    (steps(50, 0.03), 0.99, None, "steps after the warm-up would decide: train longer"),
    (NEAR, 0.995, USUAL_BETWEEN_RUNS, "Runs of one system differ by more than that (0.3 % between runs)"),
    (steps(50), 1.0, None, "the speed is the threshold"),
    ([1.0 + 0.004 * i for i in range(50)], 1.0, None, "slower from the first to the last: find out why"),
    ([1.0 + 0.1 * i for i in range(50)], 1.0, None, "The steps became 145 % slower"),
    ([1.0 + 1.0 / (1 + 0.05 * i) for i in range(50)], 1.04, None, "The steps still became faster at the end"),
    (PAUSED, 0.9, None, "2 pauses took 22 % of the time, and decide whether the threshold is met"),
])  # fmt: skip
def test_reasons_say_what_decides(seconds: list[float], share: float, between: BetweenRuns | None, told: str) -> None:
    metric, steady = rate(seconds), steady_state(seconds)
    decision = decide(metric, [steady], ">=", Quantity(TOKENS / steady.mean * share, "words/s"), between)
    assert decision.holds is None
    assert told in decision.why


@pytest.mark.parametrize(("share", "holds"), [(0.09, True), (0.2, None), (5.0, None), (11.0, False)])
def test_few_steps_decide_what_is_far_away(share: float, holds: bool | None) -> None:
    """Nobody trains twenty steps to see that a day is not a second; their noise is unknown, so it has to be far."""
    seconds = steps(6)
    metric = rate(seconds)
    bound = Quantity(metric.value * share, "words/s")
    assert decide(metric, [steady_state(seconds)], ">=", bound, USUAL_BETWEEN_RUNS).holds is holds


@pytest.mark.parametrize("seed", range(5))
def test_noise_leaves_nothing_open_that_is_far_away(seed: int) -> None:
    """On a busy machine an interval may reach to 0; but no step of the run is near the threshold."""
    chance = random.Random(seed)
    seconds = [chance.lognormvariate(0.0, 1.0) for _ in range(30)]
    metric, steady = rate(seconds), steady_state(seconds[5:])
    assert decide(metric, [steady], ">=", Quantity(metric.value * 1000.0, "words/s"), USUAL_BETWEEN_RUNS).holds is False
    assert decide(metric, [steady], ">=", Quantity(metric.value / 1000.0, "words/s"), USUAL_BETWEEN_RUNS).holds is True
    assert decide(metric, [steady], ">=", Quantity(metric.value, "words/s"), USUAL_BETWEEN_RUNS).holds is None


def test_a_slow_step_among_few_decides_nothing() -> None:
    seconds = [1.0, 1.0, 12.0, 1.0, 1.0]
    steady = steady_state(seconds)
    assert decide(rate(seconds), [steady], ">=", Quantity(0.09 * TOKENS, "words/s"), None).holds is None


def test_without_steps_nothing_is_decided() -> None:
    decision = decide(rate(steps()), [None], ">=", Quantity("1 words/s"), USUAL_BETWEEN_RUNS)
    assert decision.holds is None
    assert "Fewer than 4" in decision.why


@pytest.mark.parametrize(("op", "holds"), [(">=", True), ("<=", False)])
@pytest.mark.parametrize("bound", [0.0, -5.0])
def test_a_bound_that_every_rate_reaches(bound: float, op: Op, holds: bool) -> None:
    """Zero words a second is a bound that everything meets, and no error."""
    seconds = steps()
    decision = decide(rate(seconds), [steady_state(seconds)], op, Quantity(bound, "words/s"), USUAL_BETWEEN_RUNS)
    assert decision.holds is holds


@pytest.mark.parametrize(("share", "holds"), [(0.9, True), (0.999, None), (1.1, False)])
def test_two_runs_are_compared_by_the_intervals_of_both(share: float, holds: bool | None) -> None:
    """Two numbers that cannot be told apart do not decide which run is faster."""
    one, other = rate(steps()), rate([each / share for each in steps(seed=2)])
    assert compare_metrics(one, ">=", other).holds is holds
    assert compare_metrics(other, "<=", one).holds is holds


@pytest.mark.parametrize(
    ("share", "counts", "holds"),
    [(0.95, (49, 49), None), (1.05, (49, 49), None), (0.85, (49, 49), True), (0.95, (49, 50), True),
     (0.95, (49, None), True)],
)  # fmt: skip
def test_two_runs_of_few_steps_differ_more(share: float, counts: tuple[int, int | None], holds: bool | None) -> None:
    one, other = rate(steps()), rate([each / share for each in steps(seed=2)])
    decision = compare_metrics(one, ">=", other, unseen_between(counts))
    assert decision.holds is holds
    assert holds is not None or "may be on two levels of speed, up to 8% apart: train both longer" in decision.why


@given(st.lists(st.floats(0.5, 2.0), min_size=4, max_size=60), st.floats(0.1, 10.0), st.floats(1.0, 3.0))
def test_a_looser_bound_is_met_where_a_tighter_one_is(seconds: list[float], share: float, looser: float) -> None:
    metric, steady = rate(seconds), steady_state(seconds)
    tight, loose = (Quantity(metric.value * part, "words/s") for part in (share, share / looser))
    for between in (None, USUAL_BETWEEN_RUNS):
        first, second = (decide(metric, [steady], ">=", bound, between).holds for bound in (tight, loose))
        assert not (first is True and second is False)


def test_pauses_count_between_two_runs() -> None:
    """Ten steps of 200 took ten times as long: that run is 45 % slower, although its other steps are faster."""
    paused = [(10.0 if i % 20 == 7 else 1.0) * seconds for i, seconds in enumerate(steps(200))]
    one, other = rate(paused), rate([1.03 * seconds for seconds in steps(200, seed=2)])
    assert compare_metrics(one, ">=", other).holds is None
    assert compare_metrics(other, ">=", one).holds is None


@given(st.lists(st.floats(0.01, 100.0), min_size=4, max_size=60))
def test_a_speed_is_in_its_own_interval(seconds: list[float]) -> None:
    """The interval leaves out a slow start, and the speed does not: a finding names it."""
    assume(not steady_state(seconds).left_out)
    for metric in (rate(seconds), time(seconds)):
        assert (metric.low or 0.0) <= metric.value * (1 + 1e-9)
        assert metric.value <= (metric.high or math.inf) * (1 + 1e-9)


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
