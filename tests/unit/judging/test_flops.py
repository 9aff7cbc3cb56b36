"""Parameters and model FLOPs, against numbers worked out by hand and what frameworks printed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.recipe.recipes import Parallelism
from pytest_llmbench.core.recipe.shape import ModelShape
from pytest_llmbench.judging.flops import causal_flops_per_token, flops_per_token, parameters, parameters_of_stages
from tests.support.published import MODELS, Published

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


# Layers, hidden size, vocabulary, positions, tensor, pipeline; and what logs of real runs say of each stage.
PRINTED = [
    ((12, 768, 50257, 2048, 1, 1), (125262336,)),  # Megatron-LM core 0.19 on one H200
    ((12, 768, 50257, 512, 1, 1), (124082688,)),  # NeMo 2 in 2024
    ((2, 64, 128, 32, 2, 1), (60736,)),  # Megatron-LM core 0.16 on two CPU ranks
    ((36, 1280, 50257, 1024, 2, 2), (210753280, 209445120)),  # accelerate with Megatron-LM in 2022
    ((40, 5120, 50257, 2048, 2, 4), (1712942080, 1573350400, 1573350400, 1702466560)),  # Megatron-LM in 2021
    ((24, 1024, 50257, 1024, 1, 1), (354871296,)),  # Megatron-LM in 2020
]


@pytest.mark.parametrize(("shape", "printed"), PRINTED)
def test_a_stage_has_what_frameworks_print(shape: tuple[int, ...], printed: tuple[int, ...]) -> None:
    layers, hidden, vocabulary, positions, tensor, pipeline = shape
    heads: dict[str, Any] = {"attention_heads": 1, "vocab_size": vocabulary}
    layout = Parallelism(tensor=tensor, pipeline=pipeline)
    model = ModelShape(layers=layers, hidden_size=hidden, **heads)
    spans = parameters_of_stages(model, positions, layout)
    assert len(spans) == len(printed)
    assert all(span.low <= count <= span.high for span, count in zip(spans, printed, strict=True))
    for other in (layers - pipeline, layers + pipeline):
        changed = parameters_of_stages(ModelShape(layers=other, hidden_size=hidden, **heads), positions, layout)
        assert not any(span.low <= count <= span.high for span, count in zip(changed, printed, strict=True))


def test_a_model_in_one_piece_has_all_parameters() -> None:
    model = ModelShape(layers=12, hidden_size=768, attention_heads=12, vocab_size=50304)
    (span,) = parameters_of_stages(model, 2048, Parallelism())
    assert span.low < parameters(model, 2048) < span.high


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_published_model_has_its_published_parameters_and_flops(model: Published) -> None:
    """TFLOP/s by tokens/s of the tables of Megatron-Bridge, whose rates are rounded to three digits."""
    assert causal_flops_per_token(model.shape, 4096) == pytest.approx(megatron_lm(model.shape, 4096), rel=1e-2)
    if model.parameters:
        assert parameters(model.shape, 1) == pytest.approx(model.parameters, rel=5e-3)
    if model.gflop:
        assert causal_flops_per_token(model.shape, model.sequence_length) / 1e9 == pytest.approx(model.gflop, rel=1e-2)


def megatron_lm(model: ModelShape, length: int) -> float:
    """FLOPs of a token as `num_floating_point_operations` of Megatron-LM 001b00c2 adds them up; it knows no windows.

    Three passes, two FLOPs to a product: matrices of attention, half of the scores, feed-forward or experts, logits.
    """
    h, heads, d = model.hidden_size, model.attention_heads, model.head_width
    if (latent := model.latent_attention) is None:
        attention = float(h * d * (2 * heads + 2 * model.key_value_heads) + heads * d * length)
        if model.window is not None:  # half of the layers attend to `size` tokens
            attention -= heads * d * (length / 2 - model.window.size)
    else:
        query, rank = latent.query_rank or 0, latent.key_value_rank
        attention = query * (h + heads * (d + latent.rotary_size) + 1) + h * latent.rotary_size
        attention += rank * (h + heads * (d + latent.value_size) + 1) + heads * latent.value_size * h
        attention += length * heads * (d + latent.rotary_size + latent.value_size) / 2
    factor, experts, more = 3 if model.gated else 2, model.experts, model.further_predictions
    sparse = model.expert_layers + more * bool(experts)
    dense = model.layers + more - sparse
    wide = dense * model.feed_forward_width
    if experts is not None:
        wide += sparse * (experts.top_k * experts.feed_forward_size + experts.shared_size)
    layers = (model.layers + more) * attention + factor * h * wide
    return 6.0 * (layers + more * (3 * h + 2 * h * h) + (1 + more) * h * model.vocab_size)
