"""What a layout counts: FLOPs, parameters, bytes; and what does not divide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import ModelShape
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.judging.flops import flops_per_token, parameters
from pytest_llmbench.projection.layout import Layout, layout_of, same_work
from pytest_llmbench.projection.memory import memory
from tests.support.shipped import shipped_recipes
from tests.unit.judging.conftest import small

from .test_model import GPT, SLICE

RECIPES = shipped_recipes()
GIB = 2**30


@given(st.integers(1, 96), st.integers(1, 64), st.integers(1, 200_000), st.sampled_from(["learned", "rope"]))
def test_flops_are_those_of_the_formula(layers: int, width: int, vocabulary: int, positions: Any) -> None:
    """The parts add up to PaLM's formula, as it stands in `judging.flops`."""
    model = ModelShape(
        layers=layers, hidden_size=64 * width, attention_heads=width, vocab_size=vocabulary, positions=positions
    )
    layout = Layout(model=model, sequence_length=128, micro_batch=2, micro_batches=3, data=5, gpus_per_node=8)
    assert layout.flops_per_step == pytest.approx(flops_per_token(model, 128) * layout.tokens_per_step)
    # The final norm is left out: 2 h of it all.
    assert layout.parameters_per_gpu == parameters(model, 128) - 2 * model.hidden_size


def test_memory_is_worked_out_by_hand() -> None:
    """JSC's 175B in fp16 on 48 and 96 nodes: 4 + 16 / d bytes a parameter, and 34 s b h / t a layer kept."""
    for nodes, copies in ((48, 3), (96, 6)):
        layout = layout_of(RECIPES["nlp175b"], Topology(nodes=nodes, gpus_per_node=4))
        held = (12 * (12 * 12288**2 + 13 * 12288) + 50257 * 12288) / 8
        kept = 34 * 2048 * 12288 / 8 * 12 * 8
        found = memory(layout)
        assert layout.data == copies
        assert found.weights + found.gradients + found.states == pytest.approx(held * (4 + 16 / copies) / GIB)
        assert found.activations == pytest.approx(kept / GIB)
        assert found.missing(40) == 0.0, "it ran on GPUs of 40 GB"


def test_recomputation_and_chunks_change_what_is_kept() -> None:
    """Whole layers keep their input alone; chunks keep more than one stage's share."""
    none = memory(replace(GPT, sequence_parallel=True)).activations
    assert memory(replace(GPT, recomputation="full")).activations == pytest.approx(none * 2 * 8 / 34)
    assert memory(replace(GPT, sequence_parallel=True, chunks=3)).activations == pytest.approx(none * (1 + 7 / 24))
    assert memory(GPT).activations > none, "without sequence parallelism"


def test_too_much_says_by_how_much() -> None:
    """A stage of 175B without a pipeline."""
    needed = memory(replace(GPT, pipeline=1, data=1))
    assert needed.missing(80) == pytest.approx(needed.total - 80)
    assert needed.missing(80) > 100


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"pipeline": 7}, "96 layers do not divide into 7"),
        ({"chunks": 5}, "96 layers do not divide into 40"),
        ({"chunks": 3, "micro_batches": 12}, "multiples of the 8 stages"),
        ({"chunks": 2, "pipeline": 1}, "at least 2 stages"),
        ({"tensor": 5}, "96 attention heads do not divide into 5"),
        ({"micro_batches": 0}, "micro batches: 0"),
    ],
)
def test_what_does_not_divide_is_refused(changes: dict[str, Any], why: str) -> None:
    """With the numbers that do not."""
    with pytest.raises(ConfigError, match=why):
        replace(GPT, **changes)


def test_a_recipes_layout() -> None:
    """JSC's batch grows with the nodes; another pipeline makes more copies of it."""
    own = layout_of(RECIPES["nlp175b"], Topology(nodes=24, gpus_per_node=8))
    assert (own.tensor, own.pipeline, own.data, own.micro_batches, own.global_batch) == (8, 8, 3, 16, 48)
    short = layout_of(RECIPES["nlp175b"], Topology(nodes=24, gpus_per_node=8), pipeline=2, chunks=4)
    assert (short.pipeline, short.chunks, short.data, short.global_batch) == (2, 4, 12, 192)


def test_a_recipes_global_batch_is_kept() -> None:
    """Azure's 1536 sequences are fewer micro batches of each copy on more nodes."""
    found = [layout_of(RECIPES["azure_gpt3_175b"], Topology(nodes=n, gpus_per_node=8)) for n in (32, 128)]
    assert [(each.data, each.micro_batches, each.global_batch) for each in found] == [(4, 192, 1536), (16, 48, 1536)]


def test_what_a_recipe_cannot_be_spread_over_is_refused() -> None:
    """GPUs that are no whole copies, a batch that does not divide, shards of parameters."""
    with pytest.raises(ConfigError, match="96 GPUs do not divide into copies of the model: one takes 64"):
        layout_of(RECIPES["nlp175b"], Topology(nodes=12, gpus_per_node=8))
    with pytest.raises(ConfigError, match="a global batch of 8 does not divide into 3 copies"):
        layout_of(small(), Topology(nodes=3, gpus_per_node=1))
    with pytest.raises(ConfigError, match="sharding full is not modelled"):
        layout_of(RECIPES["opt175b"], Topology(nodes=128, gpus_per_node=8))


def test_the_same_work() -> None:
    """Depth, stages, copies and 16-bit types do not change a layer's time; its rank's share does."""
    assert same_work(SLICE, replace(GPT, precision="fp16"))
    assert same_work(SLICE, replace(GPT, gpus_per_node=16))
    for other in (
        {"tensor": 4},
        {"micro_batch": 2},
        {"gpus_per_node": 4},
        {"sequence_length": 4096},
        {"precision": "fp32"},
    ):
        assert not same_work(SLICE, replace(GPT, **other)), other
