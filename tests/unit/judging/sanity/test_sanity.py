"""The sanity gate: lets good runs through, names what is wrong with any other, and never raises."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.records import Metric, Problem
from pytest_llmbench.core.record.series import RankInfo, Step, StepSeries
from pytest_llmbench.judging.sanity import Evidence, first_problem, implausible
from tests.conftest import known
from tests.unit.judging.conftest import GPU, good_runs, small

Corruption = Callable[[Evidence, int], Evidence]


def series(evidence: Evidence, **changes: Any) -> Evidence:
    return dataclasses.replace(evidence, series=evidence.series.model_copy(update=changes))


def change_step(evidence: Evidence, at: int, **changes: Any) -> Evidence:
    """Replace values of one step; `at` may be any number."""
    steps = list(evidence.series.steps)
    at %= len(steps)
    steps[at] = steps[at].model_copy(update=changes)
    return series(evidence, steps=tuple(steps))


def change_rank(evidence: Evidence, at: int, **changes: Any) -> Evidence:
    """Replace values of one rank; `at` may be any number."""
    ranks = list(evidence.series.ranks)
    at %= len(ranks)
    ranks[at] = ranks[at].model_copy(update=changes)
    return series(evidence, ranks=tuple(ranks))


def without(items: tuple[Any, ...], at: int) -> tuple[Any, ...]:
    at %= len(items)
    return items[:at] + items[at + 1 :]


def step_twice(evidence: Evidence, at: int) -> Evidence:
    steps = evidence.series.steps
    at %= len(steps)
    return series(evidence, steps=(*steps[: at + 1], *steps[at:]))


def one_step_more(evidence: Evidence, at: int) -> Evidence:
    last = evidence.series.steps[-1]
    more = last.model_copy(update={"step": last.step + 1 + at % 3})
    return series(evidence, steps=(*evidence.series.steps, more))


def one_host_more(evidence: Evidence, at: int) -> Evidence:
    assume(evidence.topology.ranks_per_node > 1)
    return change_rank(evidence, at, host="elsewhere")


def all_on_one_host(evidence: Evidence, at: int) -> Evidence:
    assume(evidence.topology.nodes > 1)
    host = evidence.hosts[at % len(evidence.hosts)]
    ranks = tuple(info.model_copy(update={"host": host}) for info in evidence.series.ranks)
    return series(evidence, ranks=ranks)


def loss_rising(evidence: Evidence, at: int) -> Evidence:
    """From some step on the loss is a nat above its start."""
    steps = evidence.series.steps
    high = known(steps[0].loss) + 1.0 + at % 100
    since = 1 + at % max(1, len(steps) - max(1, len(steps) // 4))
    bad = tuple(step if i < since else step.model_copy(update={"loss": high}) for i, step in enumerate(steps))
    return series(evidence, steps=bad)


def other_gpu(evidence: Evidence, at: int) -> Evidence:
    """All ranks saw a GPU whose name only begins like the one promised."""
    assume(evidence.topology.gpus)
    device = ["NVIDIA A100-SXM4-80GB MIG 1g.10gb", "NVIDIA A100-SXM4-40GB", "cpu", "A100"][at % 4]
    ranks = tuple(info.model_copy(update={"device": device}) for info in evidence.series.ranks)
    return dataclasses.replace(series(evidence, ranks=ranks), gpu=GPU)


def mixed_gpus(evidence: Evidence, at: int) -> Evidence:
    """One rank trained on another device than the others."""
    assume(evidence.topology.world_size > 1)
    return change_rank(evidence, at, device="NVIDIA H200")


CORRUPTIONS: dict[str, tuple[Corruption, str]] = {
    "rank_missing": (lambda e, at: series(e, ranks=without(e.series.ranks, at)), "ranks_missing"),
    "rank_not_ended": (lambda e, at: change_rank(e, at, ended=False), "no_evidence_of_completion"),
    "step_missing": (lambda e, at: series(e, steps=without(e.series.steps, at)), "steps_missing"),
    "step_partial": (lambda e, at: change_step(e, at, ranks=e.topology.world_size - 1), "steps_missing"),
    "step_twice": (step_twice, "steps_missing"),
    "one_step_more": (one_step_more, "steps_missing"),
    "loss_nan": (lambda e, at: change_step(e, at, loss=math.nan), "not_finite"),
    "grad_norm_infinite": (lambda e, at: change_step(e, at, grad_norm=math.inf), "not_finite"),
    "tokens_wrong": (lambda e, at: change_step(e, at, tokens=e.recipe.tokens_per_step - 1), "wrong_work"),
    "samples_wrong": (lambda e, at: change_step(e, at, samples=2 * e.recipe.samples_per_step), "wrong_work"),
    "one_host_more": (one_host_more, "wrong_nodes"),
    "all_on_one_host": (all_on_one_host, "wrong_nodes"),
    "loss_rising": (loss_rising, "loss_rises"),
    "zero_seconds": (lambda e, at: change_step(e, at, seconds=0.0), "implausible"),
    "nan_seconds": (lambda e, at: change_step(e, at, seconds=math.nan), "implausible"),
    "more_than_the_wall_clock": (lambda e, at: change_step(e, at, seconds=known(e.wall_s) + 10.0), "implausible"),
    "line_unreadable": (lambda e, at: series(e, unreadable=(f"rank-00000.jsonl:{at}: cut off",)), "unreadable_log"),
    "other_gpu": (other_gpu, "wrong_hardware"),
    "mixed_gpus": (mixed_gpus, "wrong_hardware"),
}


@given(good_runs())
def test_a_good_run_passes(evidence: Evidence) -> None:
    assert first_problem(evidence) is None


@pytest.mark.parametrize(("corrupt", "kind"), CORRUPTIONS.values(), ids=CORRUPTIONS)
@given(data=st.data())
def test_one_thing_wrong_is_named(corrupt: Corruption, kind: str, data: st.DataObject) -> None:
    evidence = corrupt(data.draw(good_runs()), data.draw(st.integers(0, 100)))
    problem = known(first_problem(evidence))
    assert problem.kind == kind
    assert problem.message


@given(good_runs(), st.permutations(["rank_not_ended", "loss_nan", "tokens_wrong", "zero_seconds"]))
def test_of_many_things_wrong_the_most_telling_is_named(evidence: Evidence, wrong: list[str]) -> None:
    """A rank that did not finish explains the rest, in whatever order things went wrong."""
    for name in wrong:
        evidence = CORRUPTIONS[name][0](evidence, 0)
    assert known(first_problem(evidence)).kind == "no_evidence_of_completion"


ANY_NUMBER = st.floats() | st.sampled_from([0.0, 1.0, 1e308, -1e308])
ANY_STEP = st.builds(
    Step, step=st.integers(-1, 9), seconds=ANY_NUMBER, tokens=st.just(256), samples=st.just(8), loss=ANY_NUMBER,
    grad_norm=ANY_NUMBER, peak_memory_bytes=st.none(), ranks=st.integers(0, 3),
)  # fmt: skip
ANY_RANK = st.builds(
    RankInfo, rank=st.integers(0, 3), host=st.text(max_size=3), pid=st.just(1), local_rank=st.just(0),
    device=st.text(max_size=3), versions=st.just({}), ended=st.booleans(),
)  # fmt: skip


@given(st.lists(ANY_STEP, max_size=8), st.lists(ANY_RANK, max_size=3), st.lists(
    st.text(max_size=5), max_size=1,
), st.integers(0, 2), ANY_NUMBER)  # fmt: skip
def test_no_series_makes_the_gate_raise(
    steps: list[Step], ranks: list[RankInfo], unreadable: list[str], gpus: int, wall_s: float
) -> None:
    logged = StepSeries(ranks=tuple(ranks), steps=tuple(steps), unreadable=tuple(unreadable))
    topology = Topology(nodes=1, gpus_per_node=gpus)
    recipe = small(steps=2, warm_up={"steps": 1})
    evidence = Evidence(recipe=recipe, topology=topology, series=logged, hosts=("n",), wall_s=wall_s, gpu=GPU)
    first_problem(evidence)


@given(good_runs(), st.lists(ANY_NUMBER, min_size=9, max_size=9), st.lists(ANY_NUMBER, min_size=9, max_size=9))
def test_no_numbers_make_the_gate_raise(evidence: Evidence, losses: list[float], seconds: list[float]) -> None:
    steps = tuple(
        step.model_copy(update={"loss": loss, "seconds": duration})
        for step, loss, duration in zip(evidence.series.steps, losses, seconds, strict=False)
    )
    problem = first_problem(series(evidence, steps=steps))
    if not all(math.isfinite(known(step.loss)) for step in steps):
        assert problem is not None
        assert problem.kind == "not_finite"
    if not all(known(step.seconds) > 0 for step in steps):
        assert problem is not None


@pytest.mark.parametrize(("metrics", "told"), [
    ({}, None), ({"mfu": 0.1}, None), ({"mfu": 100.0, "matmul_fraction": 150.0}, None),
    ({"mfu": 100.1}, "an MFU of 100.1 %"),
    ({"matmul_fraction": 151.0}, "a share of the measured matrix-product rate of 151 %"),
])  # fmt: skip
def test_more_than_the_hardware_can_do_is_implausible(metrics: dict[str, float], told: str | None) -> None:
    problem = implausible({name: Metric(value=value, unit="%", rule="") for name, value in metrics.items()})
    if told is None:
        assert problem is None
    else:
        assert isinstance(problem, Problem)
        assert problem.kind == "implausible"
        assert told in problem.message


@pytest.mark.parametrize(("seconds", "told"), [
    ((1.0, 1.0, 1.0), None),
    ((1.0, 0.4, 1.0), None),  # 80 % in this step
    ((1.0, 1.0, 0.001), "step 3 took 0.001 s, which would be an MFU of 2.668e+04 %"),
    ((1.5, 1.2, 0.3), "step 3 took 0.3 s, which would be an MFU of 133.3 %"),
])  # fmt: skip
def test_a_step_faster_than_the_hardware_is_implausible(seconds: tuple[float, ...], told: str | None) -> None:
    steps = [Step(step=number, seconds=each) for number, each in enumerate(seconds, start=1)]
    problem = implausible({"mfu": Metric(value=40.0, unit="%", rule="")}, steps)
    assert (problem is None) == (told is None)
    if problem is not None:
        assert problem.kind == "implausible"
        assert str(told) in problem.message
    assert implausible({}, steps) is None


def test_without_a_published_peak_the_measured_rate_tells() -> None:
    steps = [Step(step=number, seconds=each) for number, each in enumerate((1.0, 1.0, 0.1), start=1)]
    problem = known(implausible({"matmul_fraction": Metric(value=60.0, unit="%", rule="")}, steps))
    assert "step 3 took 0.1 s, which would be a share of the measured matrix-product rate of 420 %" in problem.message
    assert implausible({"matmul_fraction": Metric(value=60.0, unit="%", rule="")}, steps[:2]) is None
