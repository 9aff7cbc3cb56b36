"""Parameters and model FLOPs, against numbers worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.recipe.recipes import ModelShape
from pytest_llmbench.judging.flops import flops_per_token, parameters

OPT_125M = ModelShape(layers=12, hidden_size=768, attention_heads=12, vocab_size=51196)
SHAPES = st.builds(
    lambda heads, width, **sizes: ModelShape(attention_heads=heads, hidden_size=heads * width, **sizes),
    heads=st.integers(1, 96), width=st.integers(1, 128), layers=st.integers(1, 96), vocab_size=st.integers(1, 10**6),
)  # fmt: skip


def test_parameters_of_opt_125m_are_counted_by_hand() -> None:
    token_embedding = 51196 * 768  # 39,318,528; the output layer is the same matrix
    positions = 2048 * 768  # 1,572,864
    attention = 4 * (768 * 768 + 768)  # query, key, value, output
    feed_forward = (768 * 3072 + 3072) + (3072 * 768 + 768)
    norms = 2 * (768 + 768)
    final_norm = 768 + 768
    by_hand = token_embedding + positions + 12 * (attention + feed_forward + norms) + final_norm
    assert by_hand == 125_947_392
    assert parameters(OPT_125M, 2048) == by_hand


def test_flops_of_opt_125m_follow_palm_appendix_b() -> None:
    """One token costs 6 N + 12 L H Q T: N = 124,374,528 without positions, L 12, H 12, Q 64, T 2048."""
    assert flops_per_token(OPT_125M, 2048) == 6 * 124_374_528 + 12 * 12 * 12 * 64 * 2048 == 972_739_584


@given(SHAPES, st.integers(1, 4096))
def test_attention_alone_grows_with_the_sequence(shape: ModelShape, length: int) -> None:
    """Learned positions are parameters but no FLOPs; twice the length adds attention and nothing else."""
    assert parameters(shape, 2 * length) - parameters(shape, length) == length * shape.hidden_size
    attention = 12 * shape.layers * shape.hidden_size * length
    assert flops_per_token(shape, 2 * length) - flops_per_token(shape, length) == pytest.approx(attention, rel=1e-6)


@given(SHAPES, st.integers(1, 4096))
def test_a_layer_costs_the_same_wherever_it_is(shape: ModelShape, length: int) -> None:
    """Parameters are linear in the number of layers: 12 h² weights and 13 h biases and norms each."""
    deeper = shape.model_copy(update={"layers": shape.layers + 1})
    h = shape.hidden_size
    assert parameters(deeper, length) - parameters(shape, length) == 12 * h * h + 13 * h
