"""Judged steps of several kinds, and a drift, are told beside the verdict."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.series import Step, StepSeries
from pytest_llmbench.judging.findings import unsteady
from pytest_llmbench.judging.sanity import Evidence
from tests.unit.judging.conftest import small

WARM_UP, JUDGED = 5, 40


def noisy(scatter: float, seed: int = 1, count: int = JUDGED) -> list[float]:
    chance = random.Random(seed)
    return [1.0 + scatter * chance.gauss(0.0, 1.0) for _ in range(count)]


def run(judged: Sequence[float], gpus_per_node: int = 8) -> Evidence:
    """A run whose warm-up is followed by steps of these durations."""
    recipe = small(steps=WARM_UP + len(judged), precision="bf16")
    seconds = [3.0] * WARM_UP + list(judged)
    steps = tuple(
        Step(step=number, seconds=each, tokens=recipe.tokens_per_step, samples=8, loss=5.0)
        for number, each in enumerate(seconds, start=1)
    )
    topology = Topology(nodes=1, gpus_per_node=gpus_per_node)
    return Evidence(
        recipe=recipe, topology=topology, series=StepSeries(steps=steps), hosts=("n1",), wall_s=None, gpu=None
    )


def changed(by: dict[int, float], scatter: float = 0.002) -> list[float]:
    """Good durations, of which some last other than a second; negative places count from the end."""
    seconds = noisy(scatter)
    for place, each in by.items():
        seconds[place] = each
    return seconds


@pytest.mark.parametrize(("seconds", "told"), [
    (changed({0: 2.0, 1: 1.8, 2: 1.5}), "the first 3 judged steps are slow (1.77 times the median of "),
    (changed({11: 3.0, 23: 3.1, 35: 2.9}), "17, 29, 41: an evaluation, a checkpoint or a stall?"),
    (changed({-1: 2.0, -2: 2.0, -3: 2.0, -4: 2.0}), "the last 4 judged steps are slow (2 times the median of "),
    ([1.0 + 0.002 * i for i in range(JUDGED)], "drift by +7.5 % from the first to the last"),
    ([x + 0.001 * i for i, x in enumerate(noisy(0.002))], "the judged steps drift by +"),
    ([x - 0.001 * i for i, x in enumerate(noisy(0.002))], "the judged steps drift by -"),
], ids=["warm-up", "evaluation", "end", "line", "slower", "faster"])  # fmt: skip
def test_steps_of_several_kinds_are_told(seconds: list[float], told: str) -> None:
    (finding,) = unsteady(run(seconds))
    assert told in finding
    assert list(unsteady(run(seconds, gpus_per_node=0))) == []


@given(scatter=st.floats(0.0, 0.01), seed=st.integers(0, 10_000))
def test_steady_steps_have_no_finding(scatter: float, seed: int) -> None:
    assert [told for told in unsteady(run(noisy(scatter, seed))) if "drift" not in told] == []


def test_a_drift_is_seldom_seen_where_there_is_none() -> None:
    assert sum(bool(list(unsteady(run(noisy(0.004, seed))))) for seed in range(500)) <= 5


@given(st.lists(st.floats(1e-6, 1e6), min_size=0, max_size=60))
def test_any_durations_can_be_looked_at(seconds: list[float]) -> None:
    if seconds:
        evidence = run(seconds)
        list(unsteady(evidence))
