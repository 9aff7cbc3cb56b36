"""Lines of a log that contradict one another: each sentence has both numbers, and true logs have none."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.series import Step, StepSeries
from pytest_llmbench.judging.agreement import check_counts, check_product, check_steady, check_times, check_work

RATES = {"throughput_per_gpu": "TFLOP/s per GPU"}
FLOPS = 56.04e12
GPUS, CPUS = Topology(nodes=1, gpus_per_node=8), Topology(nodes=1, gpus_per_node=0)


def lines(times: Sequence[float], interval: int = 5, samples: int = 32) -> list[Step]:
    """Lines as Megatron-LM prints them: milliseconds with one decimal, TFLOP/s with one, stamps with microseconds."""
    at, steps = 1000.0, []
    for number, seconds in enumerate(times, start=1):
        at += interval * seconds
        said = {
            "throughput_per_gpu": round(FLOPS * samples / 32 / seconds / 1e12, 1),
            "consumed_samples": float(samples * interval * number),
        }
        steps.append(
            Step(
                step=interval * number, interval=interval, seconds=round(seconds * 1000, 1) / 1000, at=round(at, 6),
                samples=samples, reported=said,
            )
        )  # fmt: skip
    return steps


def changed(steps: Sequence[Step], number: int, **changes: Any) -> list[Step]:
    """Replace values of one line; other names are of what is reported."""
    old = steps[number]
    own = {name: changes.pop(name) for name in list(changes) if name in Step.model_fields}
    new = old.model_copy(update={**own, "reported": {**old.reported, **changes}})
    return [*steps[:number], new, *steps[number + 1 :]]


def doubts(steps: Sequence[Step]) -> list[str]:
    series = StepSeries(steps=tuple(steps))
    samples = steps[0].samples or 0 if steps else 0
    work = (*check_work(steps, RATES), *check_counts(steps, "consumed_samples", samples))
    return [*work, *check_times(series, GPUS)]


TRUE = lines([0.6291, 0.6307, 0.6302, 0.6308, 0.6333])


@given(st.lists(st.floats(0.001, 1000), max_size=20), st.integers(1, 100), st.sampled_from([1, 32, 2048]))
def test_true_lines_agree(times: list[float], interval: int, samples: int) -> None:
    assert doubts(lines(times, interval, samples)) == []


@pytest.mark.parametrize(("wrong", "said"), [
    (changed(TRUE, 2, seconds=0.0302), "TFLOP/s per GPU, but step 15 took 0.0302 s at 88.9 TFLOP/s per GPU"),
    (changed(TRUE, 2, seconds=0.6202), "step 15 took 0.6202 s at 88.9 TFLOP/s per GPU"),
    (changed(TRUE, 4, throughput_per_gpu=8.5), "step 25 took 0.6333 s at 8.5 TFLOP/s per GPU"),
    (changed(TRUE, 1, at=1000.0), "up to step 10, 5 steps took 3.1535 s by the line about them, and -3.1455 s by"),
    (changed(TRUE, 3, at=1017.604), "up to step 20, 5 steps took 3.154 s by the line about them, and 8.154 s by"),
    (changed(TRUE, 2, consumed_samples=440.0), "from step 10 to step 15 the samples consumed went from 320 to 440"),
    (changed(TRUE, 2, step=16), "from step 10 to step 16"),
])  # fmt: skip
def test_a_number_that_was_damaged_contradicts_others(wrong: Sequence[Step], said: str) -> None:
    assert any(said in doubt for doubt in doubts(wrong)), doubts(wrong)


def test_steps_without_a_rate_are_held_against_their_times() -> None:
    steps = [step.model_copy(update={"reported": {}}) for step in TRUE]
    assert doubts(steps) == []
    assert "0.151 s by the line about them, and 3.151 s" in doubts(changed(steps, 2, seconds=0.0302))[0]
    whole = [step.model_copy(update={"at": float(int(step.at or 0))}) for step in steps]
    assert doubts(whole) == []
    assert "0.151 s by the line about them" in doubts(changed(whole, 2, seconds=0.0302))[0]


def test_what_is_between_two_lines_and_in_no_step_is_told_of() -> None:
    """An evaluation, a checkpoint, a line that could not be read, and the night in which clocks change."""
    for late in (2.0, 3600.0):
        steps = [*TRUE[:2], *(step.model_copy(update={"at": (step.at or 0) + late}) for step in TRUE[2:])]
        assert len(doubts(steps)) == (late == 2.0)
    steps = [*TRUE[:2], *(step.model_copy(update={"at": (step.at or 0) + 60.0}) for step in TRUE[2:])]
    assert doubts(changed(steps, 2, paused=True)) == []
    assert list(check_times(StepSeries(steps=tuple(steps), unread_after={10: 1}), GPUS)) == []
    assert list(check_times(StepSeries(steps=tuple(steps)), CPUS)) != []
    steps = [*TRUE[:2], *(step.model_copy(update={"at": (step.at or 0) + 1.5}) for step in TRUE[2:])]
    assert list(check_times(StepSeries(steps=tuple(steps)), CPUS)) == []  # a rank waits for its turn


def test_a_mean_that_has_the_line_before_in_it() -> None:
    first = Step(step=1, seconds=2.5463, at=55.116282)
    fifth = Step(step=5, interval=5, seconds=1.0155, at=57.647540)
    assert doubts([first, fifth]) == []
    assert doubts([first, fifth.model_copy(update={"seconds": 0.1155})])


def words(wps: float, ups: float, wpb: float = 65536.0) -> Iterator[str]:
    step = Step(step=10, interval=10, seconds=wpb / wps, reported={"wps": wps, "ups": ups, "wpb": wpb})
    return check_product([step], "wps", ("ups", "wpb"), lambda _: 0.005)


def test_a_rate_is_the_product_of_two_others() -> None:
    assert list(words(34799.2, 0.53)) == []
    assert list(words(3189.1, 0.02, 131072.0)) == []
    assert list(words(1.23457e6, 18.84)) == []
    (doubt,) = words(94799.2, 0.53)
    assert doubt == "step 10 has wps 94799.2, where ups 0.53 × wpb 65536 are 34734.1"
    assert len(list(words(34799.2, 0.35))) == 1


@pytest.mark.parametrize(
    ("gpus", "fastest", "said"), [(8, 0.4, True), (8, 0.6, False), (0, 0.4, False), (0, 0.2, True)]
)
def test_no_step_is_much_faster_than_most(gpus: int, fastest: float, *, said: bool) -> None:
    steps = [Step(step=number, seconds=fastest if number == 3 else 1.0) for number in range(1, 9)]
    doubts = list(check_steady(steps, Topology(nodes=1, gpus_per_node=gpus, cpu_ranks_per_node=2)))
    assert len(doubts) == said
    assert all(f"step 3 took {fastest:g} s, where the median of all steps is 1 s" in doubt for doubt in doubts)
    slow = [step.model_copy(update={"seconds": 30.0}) for step in steps[:1]]
    assert list(check_steady([*slow, *steps[3:]], Topology(nodes=1, gpus_per_node=gpus))) == []


@pytest.mark.parametrize(
    ("slow", "took", "said"), [(5, 60.0, True), (40, 1000.0, True), (4, 1000.0, False), (40, 40.0, False)]
)
def test_milliseconds_do_not_become_seconds_from_a_line_on(slow: int, took: float, *, said: bool) -> None:
    """A few slow lines at the start are a warm-up."""
    steps = [Step(step=n, seconds=took if n <= slow else 1.0) for n in range(1, 101)]
    doubts = list(check_steady(steps, Topology(nodes=1, gpus_per_node=8)))
    assert [f"steps before {slow + 1} take {took:g} s" in doubt for doubt in doubts] == [True] * said
