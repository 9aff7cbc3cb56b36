"""What a layer costs by one slice and by two, and what it would cost on another layout."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.projection.layout import Layout
from pytest_llmbench.projection.model import ENDS, Band, project
from pytest_llmbench.projection.slices import JITTER, Hardware, LayerCost, one_slice, recomputed, two_slices

from .test_links import HALF
from .test_model import GPT, SLICE, WIDE

HARDWARE = Hardware(links=HALF, memory_gb_s=Band(best=4800.0, likely=4400.0, worst=3600.0))
DEEP = replace(SLICE, model=WIDE.model_copy(update={"layers": 8}))


def measured(layout: Layout, layer_s: float, head_s: float) -> float:
    """The step of a slice whose layer and head take so long, s."""
    work = layout.micro_batches * (layout.model.layers * layer_s + head_s)
    return work + HARDWARE.optimizer_s(layout, "likely")


def around(step_s: float, spread: float) -> Band:
    """A step time that may be off."""
    return Band(best=step_s * (1 - spread), likely=step_s, worst=step_s * (1 + spread))


def test_the_optimizers_bytes_are_worked_out_by_hand() -> None:
    """4 of the gradient, 2 of the weight, 24 of state and copy; an equal part of each copy where it is split."""
    layout = replace(GPT, data=4)
    whole = 30 * layout.parameters_per_gpu / 4400e9
    assert HARDWARE.optimizer_s(layout, "likely") == pytest.approx(whole / 4)
    assert HARDWARE.optimizer_s(replace(layout, sharded=False), "likely") == pytest.approx(whole)


@given(st.floats(1e-4, 1.0), st.floats(0.0, 1.0))
def test_two_slices_give_back_what_they_were_made_of(layer_s: float, head_s: float) -> None:
    """To the last digits, where nothing is off."""
    steps = tuple(Band.exactly(measured(each, layer_s, head_s)) for each in (SLICE, DEEP))
    found = two_slices(SLICE, DEEP, (steps[0], steps[1]), Hardware(links=HALF, memory_gb_s=Band.exactly(4400.0)))
    for end in ENDS:
        assert found.layer_s[end] == pytest.approx(layer_s)
        assert found.head_s[end] == pytest.approx(head_s, abs=1e-9)


@given(st.floats(0.05, 20.0))
def test_one_slice_gives_back_its_own_step(step_s: float) -> None:
    """At every end: whatever is assumed of the rest, the whole is what was measured."""
    cost = one_slice(SLICE, around(step_s, 0.01), HARDWARE)
    found = project(SLICE, cost.costs(SLICE, HARDWARE))
    assert found.step_s.likely == pytest.approx(step_s)
    assert found.step_s.best == pytest.approx(0.99 * step_s)
    assert found.step_s.worst == pytest.approx(1.01 * step_s)


def test_a_whole_training_is_a_slice_too() -> None:
    """With pipeline, copies and all: its own step comes out again."""
    layout = replace(GPT, data=4)
    cost = one_slice(layout, Band.exactly(6.0), HARDWARE)
    assert project(layout, cost.costs(layout, HARDWARE)).step_s.likely == pytest.approx(6.0)


def test_two_slices_are_narrower_than_one() -> None:
    """With the same measured steps, of a head as fast as its FLOPs say."""
    layer_s = 0.01
    head_s = layer_s * SLICE.head_flops / SLICE.layer_flops
    steps = [Band.exactly(measured(each, layer_s, head_s)) for each in (SLICE, DEEP)]
    one = one_slice(SLICE, steps[0], HARDWARE)
    two = two_slices(SLICE, DEEP, (steps[0], steps[1]), HARDWARE)
    assert one.layer_s["likely"] == pytest.approx(two.layer_s["likely"])
    widths = [max(cost.layer_s.values()) - min(cost.layer_s.values()) for cost in (one, two)]
    assert widths[1] < 0.2 * widths[0]


def test_slices_that_do_not_fit_together_are_refused() -> None:
    """The difference is within the spread; layers alone take longer; another batch; the same depth."""
    less, more = (measured(each, 0.01, 0.002) for each in (SLICE, DEEP))
    with pytest.raises(ConfigError, match="not larger than the spread"):
        two_slices(SLICE, DEEP, (around(less, 0.4), around(more, 0.4)), HARDWARE)
    with pytest.raises(ConfigError, match="contradict"):
        two_slices(SLICE, DEEP, (Band.exactly(less), Band.exactly(4 * less)), HARDWARE)
    with pytest.raises(ConfigError, match="layers alone"):
        two_slices(SLICE, replace(DEEP, micro_batch=2), (Band.exactly(less), Band.exactly(more)), HARDWARE)
    with pytest.raises(ConfigError, match="same width and different numbers of layers"):
        two_slices(SLICE, SLICE, (Band.exactly(less), Band.exactly(more)), HARDWARE)


def test_a_step_that_is_too_short_is_refused() -> None:
    """The optimizer alone takes longer."""
    with pytest.raises(ConfigError, match="not longer than its work outside the layers"):
        one_slice(SLICE, Band.exactly(1e-6), HARDWARE)


def test_the_same_share_costs_the_same() -> None:
    """Of a deeper model on more GPUs; and only then a step waits for the slowest of them."""
    cost = one_slice(SLICE, Band.exactly(1.0), HARDWARE)
    found = cost.costs(GPT, HARDWARE)
    assert {end: each.layer_s for end, each in found.items()} == dict(cost.layer_s)
    assert found["worst"].jitter == JITTER.worst
    assert cost.costs(SLICE, HARDWARE)["worst"].jitter == 1.0


def test_another_split_exchanges_the_communication() -> None:
    """Twice the tensor-parallel ranks: half the work, made a little worse, and the new ranks' own talk."""
    cost = LayerCost(
        layout=replace(SLICE, tensor=4), layer_s=dict.fromkeys(ENDS, 0.02), head_s=dict.fromkeys(ENDS, 0.0)
    )
    talk = [HALF.tensor_s(replace(SLICE, tensor=ranks), "likely") for ranks in (4, 8)]
    found = cost.costs(GPT, HARDWARE)["likely"].layer_s
    assert found == pytest.approx((0.02 - talk[0]) / 2 * 1.02 + talk[1])


def test_a_smaller_micro_batch_is_no_better() -> None:
    """Half of it takes half of the time at best, and a larger one is not taken to be better than the slice's."""
    cost = one_slice(replace(SLICE, micro_batch=2), Band.exactly(1.0), HARDWARE)
    half = cost.costs(GPT, HARDWARE)
    assert half["worst"].layer_s > cost.layer_s["worst"] / 2
    twice = one_slice(SLICE, Band.exactly(1.0), HARDWARE).costs(replace(GPT, micro_batch=2), HARDWARE)
    assert twice["best"].layer_s == pytest.approx(2 * one_slice(SLICE, Band.exactly(1.0), HARDWARE).layer_s["best"])


def test_recomputation_makes_a_layer_longer() -> None:
    """A third for all of it; of the attention alone 4 s h of 72 h² + 78 h + 12 s h, to three times that."""
    share = 4 * 2048 / (72 * 12288 + 78 + 12 * 2048)
    assert recomputed(replace(GPT, recomputation="full")).likely == pytest.approx(4 / 3)
    selective = recomputed(replace(GPT, recomputation="selective"))
    assert selective.best == pytest.approx(1 + share)
    assert selective.worst == pytest.approx(1 + 3 * share)
    cost = one_slice(SLICE, Band.exactly(1.0), HARDWARE)
    found = cost.costs(replace(GPT, recomputation="full"), HARDWARE)["likely"].layer_s
    assert found == pytest.approx(cost.layer_s["likely"] * 4 / 3)


def test_links_of_another_machine_are_found() -> None:
    """A layer that takes less than its communication would."""
    cost = one_slice(replace(SLICE, tensor=4), Band.exactly(0.5), HARDWARE)
    slow = replace(HARDWARE, links=replace(HALF, node_gb_s=Band.exactly(1.0)))
    with pytest.raises(ConfigError, match="not of the same machine"):
        cost.costs(GPT, slow)
