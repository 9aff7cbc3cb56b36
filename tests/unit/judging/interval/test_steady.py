"""The interval of a run: what it contains, what it takes out, and what never makes it pass; and Student's t."""

import math
import random
import statistics as stats
import time
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.record.steady import Steady
from pytest_llmbench.judging.interval.repeats import pool
from pytest_llmbench.judging.interval.slow_steps import find_pauses
from pytest_llmbench.judging.interval.steady import steady_state
from pytest_llmbench.judging.interval.student import quantile

NAN, INF = float("nan"), float("inf")
SKIP = 5
ANY_STEPS = st.lists(st.floats(0.01, 100), min_size=1, max_size=120)


def noisy(steps: int, seed: int = 1, cv: float = 0.01, shape: Callable[[int], float] = lambda _: 1.0) -> list[float]:
    rng = random.Random(seed)
    return [max(shape(i) * (1 + cv * rng.gauss(0, 1)), 0.01) for i in range(steps)]


def judged(seconds: Sequence[float], **how: float) -> Steady:
    """Steady state of a run whose recipe leaves out five steps."""
    return steady_state(seconds[SKIP:] or seconds, **how)  # type: ignore[arg-type]


@given(ANY_STEPS, st.sampled_from([0.125, 0.5, 2.0, 1024.0]), st.sampled_from([1, 10]))
def test_another_unit_gives_the_same_verdicts(seconds: list[float], unit: float, line: int) -> None:
    """Milliseconds in place of seconds scale the interval and change nothing else."""
    here = steady_state(seconds, steps_of_a_line=line)
    there = steady_state([unit * each for each in seconds], steps_of_a_line=line)
    assert (there.low, there.high, there.mean) == pytest.approx((unit * here.low, unit * here.high, unit * here.mean))
    assert (there.judged, there.left_out, there.enough) == (here.judged, here.left_out, here.enough)


@given(ANY_STEPS, st.lists(st.floats(0.001, 200), min_size=2, max_size=8), st.booleans())
def test_a_looser_bound_makes_no_fail_of_a_pass(seconds: list[float], bounds: list[float], system: bool) -> None:
    """Verdicts go from too slow over open to fast enough as the bound rises; a run that is not judged is open."""
    state = judged(seconds)
    state = pool([state]) if system else state
    order = {"too_slow": 0, "fast_enough": 2}
    found = [order.get(state.decide(bound), 1) for bound in sorted(bounds)]
    assert found == sorted(found)
    assert 0.0 <= state.low <= state.mean <= state.high


@given(ANY_STEPS, st.floats(0.0001, 0.01))
def test_less_risk_is_a_wider_interval(seconds: list[float], alpha: float) -> None:
    sure, surer = judged(seconds, alpha=alpha), judged(seconds, alpha=alpha / 2)
    assert surer.low <= sure.low
    assert surer.high >= sure.high


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 19])
def test_too_few_steps_decide_only_what_is_far_away(steps: int) -> None:
    state = steady_state([1.0] * steps)
    far = ["too_slow", "too_short", "fast_enough"] if steps >= 4 else ["too_short"] * 3
    assert [state.decide(bound) for bound in (0.01, 1.0, 100.0)] == far
    assert [state.decide(bound) for bound in (0.2, 5.0)] == ["too_short"] * 2
    assert state.least == 20


def test_five_lines_decide_if_they_are_means_of_steps() -> None:
    """Five lines of ten steps are as many as 50 steps, five lines of one step are five."""
    lines = [1.0, 1.01, 0.99, 1.0, 1.005]
    assert steady_state(lines, steps_of_a_line=10).decide(1.2) == "fast_enough"
    assert steady_state(lines[1:], steps_of_a_line=10).decide(1.2) == "too_short"
    assert steady_state(lines).decide(1.2) == "too_short"


def test_steps_that_are_all_alike_have_no_width() -> None:
    state = judged([0.5] * 25)
    assert (state.low, state.mean, state.high) == (0.5, 0.5, 0.5)
    assert [state.decide(0.5 * share) for share in (1.03, 0.97, 1.05, 0.95)] == [
        "unseen_levels", "unseen_levels", "fast_enough", "too_slow",
    ]  # fmt: skip
    state = judged([0.5] * 400)
    assert (state.decide(0.50001), state.decide(0.49999)) == ("fast_enough", "too_slow")


@pytest.mark.parametrize("impossible", [0.0, -1.0, NAN, INF])
def test_what_is_not_a_time_is_refused(impossible: float) -> None:
    for seconds in ([], [impossible], [*[1.0] * 15, impossible, *[1.0] * 15]):
        with pytest.raises(ValueError, match="above 0"):
            judged(seconds)


LONGER, PARTLY = [1.0] * 95, [1.0] * 91 + [1.08] * 4


@pytest.mark.parametrize(
    ("seconds", "least", "most"),
    [([1.0] * 75, 0.04, 0.04), (LONGER, 0.005, 0.006), (PARTLY, 0.017, 0.019), (noisy(95, cv=0.005), 0.005, 0.006),
     (noisy(95, cv=0.06), 0.017, 0.019), ([1.0] * 200, 0.0, 1e-6), (noisy(20, cv=0.004), 0.04, 0.04),
     (noisy(20, cv=0.02), 0.08, 0.08)],
)  # fmt: skip
def test_levels_that_few_steps_do_not_show(seconds: list[float], least: float, most: float) -> None:
    """Steps that are alike are on one level; a few on another, or noise that may hide some, leave room for more."""
    state = steady_state(seconds)
    assert least <= state.unseen / state.mean <= most + 1e-9


@given(ANY_STEPS)
def test_the_usual_step_is_the_median(seconds: list[float]) -> None:
    pauses = find_pauses(seconds)
    usual = stats.median(seconds)
    away = [abs(each - usual) for each in seconds]
    limit = max(6.0 * 1.4826 * stats.median(away), 0.2 * usual)
    assert pauses.usual == usual
    assert pauses.at == tuple(i for i, each in enumerate(away) if each > limit)


def test_pauses_are_taken_out_and_told() -> None:
    """A step of 10 s among steps of 1 s; a bound between the run with it and without it is left open."""
    seconds = noisy(200, cv=0.001)
    for at in (65, 115, 165):
        seconds[at] = 10.0
    state = judged(seconds)
    assert state.pauses.at == (60, 110, 160)
    assert state.pauses.period == 50
    assert state.mean == pytest.approx(1.0, rel=0.001)
    assert state.decide(1.05) == "pauses_decide"
    assert state.decide(1.2) == "fast_enough"
    assert state.decide(0.99) == "too_slow"


def test_an_evaluation_each_twelve_steps_is_part_of_the_speed() -> None:
    """Too many for pauses, but their period is known, so whole periods are judged: 13 seconds for 12 steps."""
    state = judged(noisy(200, cv=0.002, shape=lambda i: 2.0 if i % 12 == 11 else 1.0))
    assert state.pauses.period == 12
    assert state.low < 13 / 12 < state.high
    assert state.decide(13 / 12 * 1.01) == "fast_enough"
    assert state.decide(13 / 12 * 0.99) == "too_slow"


def test_pauses_at_random_may_come_more_often() -> None:
    """One step in 20 takes 30 % longer, and the bound is 0.5 % below the mean with all pauses: 1 % pass, not 13."""
    rng, passed = random.Random(5), 0
    for _ in range(300):
        state = judged([1.3 if rng.random() < 0.05 else 1.0 + 1e-4 * rng.random() for _ in range(200)])
        passed += state.decide(1.010) == "fast_enough"
    assert passed <= 6


# A real run on a loaded processor.
LOADED = [
    6.020, 4.423, 2.717, 5.038, 5.139, 1.638, 4.103, 4.237, 4.358, 3.502, 4.147, 4.599, 5.556, 6.372, 5.799, 6.345,
    6.221, 7.892, 10.27, 8.038, 11.03, 7.214, 5.557, 3.004, 4.499,
]  # fmt: skip


def test_steps_that_scatter_by_a_third_decide_what_no_step_is_near() -> None:
    """The interval of a duration is above 0, and a run is too slow whose fastest step is 3.2 times too slow."""
    state = judged(LOADED)
    assert 0.0 < state.low < state.mean < state.high
    assert state.decide(0.512) == "too_slow"
    assert state.decide(state.mean) not in {"too_slow", "fast_enough"}


@pytest.mark.parametrize(("bound", "end"), [(0.95, "too_slow"), (1.25, "fast_enough"), (1.06, "not_settled")])
def test_all_steps_far_from_a_bound_decide_while_they_become_faster(bound: float, end: str) -> None:
    """Steps that fell by 2 %, as those of a GPU that warms up, are further from the bound than three times that."""
    state = steady_state([1.1 - 0.001 * i for i in range(20)])
    assert not state.settled
    assert state.decide(bound) == end


def test_many_irregular_spikes_are_judged_both_ways() -> None:
    """Spikes may be part of the speed or not: only a bound beyond both readings decides."""
    rng = random.Random(3)
    state = judged([each * (2.0 if rng.random() < 0.1 else 1.0) for each in noisy(400, cv=0.002)])
    assert not state.pauses.few
    assert state.low < 1.0
    assert state.decide(0.99) == "too_slow"
    assert state.decide(1.05) not in {"fast_enough", "too_slow"}


@pytest.mark.parametrize(
    "shape", [lambda i: 3.0 if i < 20 else 1.0, lambda i: 1 + 0.3 * 0.85**i], ids=["compilation", "warm-up"]
)
def test_a_slow_start_is_left_out(shape: Callable[[int], float]) -> None:
    """A compilation that ends at once, and a warm-up that fades, both longer than the recipe says."""
    state = judged(noisy(200, cv=0.002, shape=shape))
    assert state.left_out >= 15
    assert state.decide(1.01) == "fast_enough"
    assert state.decide(0.99) == "too_slow"


def test_a_run_that_becomes_faster_all_the_time_is_not_called_slow() -> None:
    """No slow start, for it does not level off. Only bounds decide that are beyond all that it did and may still do."""
    state = judged(noisy(200, cv=0.005, shape=lambda i: 1.1 - 0.001 * i))
    ends = [state.decide(bound) for bound in (0.05, 0.8, 1.0, 1.2)]
    assert ends == ["too_slow", "not_settled", "not_settled", "fast_enough"]


def test_a_run_that_becomes_slower_is_judged_by_where_it_ends() -> None:
    """A drift of 5 % leaves bounds open that lie between its ends."""
    state = judged(noisy(200, cv=0.005, shape=lambda i: 1 + 0.00025 * i))
    assert state.drift == pytest.approx(0.0475, rel=0.1)
    assert state.decide(1.03) == "drifts"
    assert state.decide(1.06) == "fast_enough"


def test_the_runs_of_a_system_differ() -> None:
    """A claim of the system has the difference between runs in it, the claim of a run has not."""
    seconds = noisy(200, cv=0.001)
    run = judged(seconds)
    system = pool([run])
    assert run.between == 0
    assert system.within == pytest.approx(run.half_width)
    assert system.half_width == pytest.approx(0.0127, rel=0.05)
    assert run.decide(1.005) == "fast_enough"
    assert system.decide(1.005) == "within_noise"


def slowed(seconds: list[float], at: Sequence[int], factor: float) -> list[float]:
    return [each * (factor if i in at else 1) for i, each in enumerate(seconds)]


GOOD = noisy(200, cv=0.002)
WOULD_PASS = {
    "one step that took an hour": slowed(GOOD, [100], 3600.0),
    "a slow first third": slowed(GOOD, range(70), 1.05),
    "a slow last third": slowed(GOOD, range(130, 200), 1.05),
    "a slow half in between": slowed(GOOD, range(50, 150), 1.05),
    "a first half that is three times slower": slowed(GOOD, range(100), 3.0),
    "every second step slower": slowed(GOOD, range(0, 200, 2), 1.05),
    "slow steps, and some that took no time": slowed(slowed(GOOD, range(200), 1.05), range(0, 200, 5), 0.01),
    "one short step in a slow run": slowed(slowed(GOOD, range(200), 1.05), [30], 0.001),
    "the warm-up alone": slowed(GOOD[:24], range(5, 24), 0.5),
}


@pytest.mark.parametrize("damage", WOULD_PASS)
def test_a_damaged_run_does_not_pass(damage: str) -> None:
    assert judged(GOOD).decide(1.01) == "fast_enough"
    assert judged(WOULD_PASS[damage]).decide(1.01) != "fast_enough"


@pytest.mark.parametrize(("phi", "cv"), [(0.0, 0.06), (0.5, 0.02), (0.9, 0.06)])
@pytest.mark.parametrize("steps", [25, 200])
def test_at_most_one_in_a_hundred_verdicts_is_wrong(steps: int, phi: float, cv: float) -> None:
    """Bounds 0.5 % on either side of the truth, steps that depend on those before them; 12 of 600 are chance."""
    rng = random.Random(steps)
    wrong = [0, 0]
    for _ in range(600):
        x, seconds = rng.gauss(0, 1), []
        for _ in range(steps):
            x = phi * x + (1 - phi * phi) ** 0.5 * rng.gauss(0, 1)
            seconds.append(max(1 + cv * x, 0.05))
        state = judged(seconds)
        wrong[0] += state.decide(0.995) == "fast_enough"
        wrong[1] += state.decide(1.005) == "too_slow"
    assert max(wrong) <= 12


@pytest.mark.parametrize(
    ("steps", "phi", "cv"), [(25, 0.9, 0.01), (25, 0.9, 0.007), (30, 0.9, 0.015), (35, 0.8, 0.004)]
)
def test_a_slow_start_that_outlasts_few_steps_is_not_called_slow(steps: int, phi: float, cv: float) -> None:
    """Noise hides how much faster they become, or a part of them looks like the end; it was wrong in up to 8 %."""
    rng, wrong = random.Random(1), 0
    for _ in range(300):
        x, seconds = rng.gauss(0, 1), []
        for i in range(steps):
            x = phi * x + (1 - phi * phi) ** 0.5 * rng.gauss(0, 1)
            seconds.append((1 + cv * x) * (1 + 0.1 * math.exp(-i / 60)))
        wrong += judged(seconds).decide(1.005) == "too_slow"
    assert wrong <= 8


def test_a_slow_start_that_has_not_ended_is_not_called_slow() -> None:
    """The rest of the start, here 3 % of the rate, is estimated from how it has fallen so far."""
    rng, wrong = random.Random(1), 0
    for _ in range(100):
        x, seconds = rng.gauss(0, 1), []
        for i in range(426):
            x = 0.75 * x + (1 - 0.75**2) ** 0.5 * rng.gauss(0, 1)
            seconds.append((1 + 0.0116 * x) * (1 + 0.16 * math.exp(-i / 212)))
        wrong += judged(seconds).decide(1.005) == "too_slow"
    assert wrong <= 2
    ended = judged(noisy(200, cv=0.003, shape=lambda i: 1 + 0.16 * math.exp(-i / 12)))
    assert ended.decide(0.99) == "too_slow"
    quiet = steady_state([1.18] * 5 + [1.05] * 5 + [1.0] * 30, steps_of_a_line=10)
    assert quiet.low == quiet.mean == 1.0


def test_it_is_quick() -> None:
    """At most 5 ms of CPU time for 200 steps, which is twenty times what it takes."""
    began = time.process_time()
    for seed in range(20):
        judged(noisy(200, seed=seed, shape=lambda i: 1 + 0.3 * 0.9**i))
    assert (time.process_time() - began) / 20 < 0.005


@given(st.floats(0.501, 0.999999), st.floats(0.3, 1e6))
def test_it_is_that_of_scipy(probability: float, freedom: float) -> None:
    from scipy import stats  # noqa: PLC0415  # a second of each worker's start

    assert quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-7, abs=1e-8)


@given(st.floats(0.51, 0.99), st.floats(0.5, 1e4))
def test_more_freedom_and_less_confidence_are_nearer(probability: float, freedom: float) -> None:
    """The quantile falls with the degrees of freedom and rises with the probability."""
    assert quantile(probability, 2 * freedom) < quantile(probability, freedom) < quantile(probability + 0.005, freedom)


@pytest.mark.parametrize(("probability", "freedom"), [(0.5, 4.0), (1.0, 4.0), (0.99, 0.0), (float("nan"), 4.0)])
def test_what_has_no_quantile_is_refused(probability: float, freedom: float) -> None:
    with pytest.raises(ValueError, match="degrees of freedom"):
        quantile(probability, freedom)
