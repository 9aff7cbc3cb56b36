"""A step on paper: its terms, its limits, and bands that hold their middle."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.recipe.recipes import ModelShape
from pytest_llmbench.projection.layout import Layout
from pytest_llmbench.projection.links import TrainingLinks
from pytest_llmbench.projection.model import ENDS, Band, Costs, bubble, project, terms
from pytest_llmbench.projection.slices import Hardware, one_slice

WIDE = ModelShape(layers=96, hidden_size=12288, attention_heads=96, vocab_size=50304)
GPT = Layout(
    model=WIDE, sequence_length=2048, micro_batch=1, micro_batches=16, tensor=8, pipeline=8, gpus_per_node=8,
    sharded=True,
)  # fmt: skip
COSTS = Costs(layer_s=7e-3, head_s=2e-3, send_s=1e-4, gradients_s=0.2, optimizer_s=0.01, jitter=1.01)
SLICE = Layout(
    model=WIDE.model_copy(update={"layers": 4}), sequence_length=2048, micro_batch=1, micro_batches=8, tensor=8,
    gpus_per_node=8,
)  # fmt: skip
PERFECT = TrainingLinks(
    network_gb_s=Band.exactly(1e12), node_gb_s=Band.exactly(1e12), tensor_exposed=Band.exactly(1.0),
    hidden=Band.exactly(1.0), sends_exposed=Band.exactly(0.0),
)  # fmt: skip
seconds = st.floats(1e-6, 1e3)


@st.composite
def all_costs(draw: st.DrawFn) -> Costs:
    """Costs that could be."""
    return Costs(
        layer_s=draw(seconds), head_s=draw(seconds), send_s=draw(seconds), gradients_s=draw(seconds),
        optimizer_s=draw(seconds), jitter=draw(st.floats(1.0, 2.0)),
    )  # fmt: skip


def test_the_bubble_is_the_papers() -> None:
    """Worked out by hand; none without a pipeline; and it shrinks with micro batches and with chunks."""
    assert bubble(8, 16) == pytest.approx(7 / 16)
    assert bubble(8, 16, 3) == pytest.approx(7 / 48)
    assert bubble(1, 5) == 0.0


@given(st.integers(1, 64), st.integers(1, 512), st.integers(1, 16))
def test_the_bubbles_limits(p: int, m: int, v: int) -> None:
    """Many micro batches fill any pipeline; a single one leaves p - 1 of p stages idle."""
    assert bubble(p, 10**9, v) < 1e-6
    assert bubble(p, 1) == p - 1
    assert bubble(p, m + 1, v) <= bubble(p, m, v)
    assert bubble(p, m, v + 1) <= bubble(p, m, v)


def test_a_step_is_worked_out_by_hand() -> None:
    """12 layers and a send 16 times; the head 16 times; 7 stages' time once; the rest; and 1 % for the slowest."""
    found = terms(GPT, COSTS)
    stage = 12 * 7e-3 + 1e-4
    whole = 16 * stage + 16 * 2e-3 + 7 * stage + 0.2 + 0.01
    assert found["step"] == pytest.approx(1.01 * whole)
    assert found["bubble"] == pytest.approx(7 * stage)


@given(all_costs())
def test_terms_add_up(costs: Costs) -> None:
    """To the step, and none is negative."""
    found = terms(GPT, costs)
    assert sum(value for name, value in found.items() if name != "step") == pytest.approx(found["step"])
    assert min(found.values()) >= 0.0


def test_one_stage_has_neither_bubble_nor_sends() -> None:
    """Whatever a send would take."""
    found = terms(SLICE, COSTS)
    assert (found["bubble"], found["sends"]) == (0.0, 0.0)


@given(all_costs(), all_costs(), all_costs())
def test_a_band_holds_its_middle(best: Costs, likely: Costs, worst: Costs) -> None:
    """Whatever the ends cost: of the step, of the rate and of the time to report."""
    found = project(GPT, {"best": best, "likely": likely, "worst": worst})
    rate, time = found.tokens_per_s, found.seconds_for_20m_tokens
    assert found.step_s.best <= found.step_s.likely <= found.step_s.worst
    assert rate.best >= rate.likely >= rate.worst > 0.0
    assert time.best <= time.likely <= time.worst
    assert time.likely * rate.likely == pytest.approx(20e6)


@given(st.floats(0.0, 0.9), all_costs())
def test_the_calibrated_band_holds_its_middle(error: float, costs: Costs) -> None:
    """And what was published is in it, if the prediction is off by no more than the error."""
    found = project(GPT, dict.fromkeys(ENDS, costs)).calibrated(error)
    assert found.best >= found.likely >= found.worst
    assert found.likely / found.worst - 1.0 == pytest.approx(error, abs=1e-9)


@given(st.integers(1, 30), st.integers(1, 30), seconds)
def test_more_nodes_are_never_slower_on_a_perfect_network(data: int, more: int, step_s: float) -> None:
    """With the same work for each GPU, the rate grows as the nodes do, but for what a step waits for the slowest."""
    hardware = Hardware(links=PERFECT, memory_gb_s=Band.exactly(1e6))
    cost = one_slice(SLICE, Band.exactly(1.0 + step_s), hardware)
    few = replace(GPT, data=data)
    many = replace(GPT, data=data + more)
    rates = [project(each, cost.costs(each, hardware)).tokens_per_s for each in (few, many)]
    for end in ENDS:
        assert rates[1].at(end) >= rates[0].at(end)
        assert rates[1].at(end) / rates[0].at(end) == pytest.approx((data + more) / data, rel=1e-3)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_missing_piece_gives_no_finite_answer(value: float) -> None:
    """It gives no answer at all."""
    with pytest.raises(ValueError, match="not finite"):
        Band.exactly(value)
    with pytest.raises(ValueError, match=r"not finite|no time"):
        project(GPT, dict.fromkeys(ENDS, replace(COSTS, layer_s=value)))


def test_a_step_of_no_time_is_no_answer() -> None:
    """Nothing was measured."""
    nothing = Costs(layer_s=0.0, head_s=0.0, send_s=0.0, gradients_s=0.0, optimizer_s=0.0, jitter=1.0)
    with pytest.raises(ValueError, match="a piece is missing"):
        project(GPT, dict.fromkeys(ENDS, nothing))


def test_a_band_without_its_middle_is_refused() -> None:
    """In either direction, for a bandwidth's best end is the largest."""
    assert Band(best=3.0, likely=2.0, worst=1.0).at("best") == 3.0
    with pytest.raises(ValueError, match="middle"):
        Band(best=1.0, likely=4.0, worst=3.0)
