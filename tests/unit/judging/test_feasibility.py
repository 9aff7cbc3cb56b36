"""FLOPs, and what share of the peak a reference asks for: by hand, by what frameworks printed, by what is measured."""

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.recipe.recipes import Parallelism, Recipe
from pytest_llmbench.core.recipe.shape import ModelShape
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.series import Step
from pytest_llmbench.judging.feasibility import ATTAINABLE, Demand, Peak, demand
from pytest_llmbench.judging.flops import causal_flops_per_token, flops_per_token, parameters, parameters_of_stages
from pytest_llmbench.judging.statistics import STATISTICS, Measurement, Speed, measure
from tests.conftest import known
from tests.support.published import MODELS, Published
from tests.support.references import reference

from .conftest import GPU, small

OPT_175B = small(
    name="opt175b", model={"layers": 96, "hidden_size": 12288, "attention_heads": 96, "vocab_size": 51196},
    sequence_length=2048, global_batch_size=1024,
)  # fmt: skip
FAST = {name: statistic for name, statistic in STATISTICS.items() if statistic.speed is not None}


def peak(recipe: Recipe = OPT_175B, nodes: int = 8, tflops: float = 312.0) -> Peak:
    return Peak(
        recipe=recipe, topology=Topology(nodes=nodes, gpus_per_node=8), gpu="A100-SXM4-80GB", tflops_per_gpu=tflops
    )


def asked(statistic: str, where: Peak | None = None, **bounds: str) -> Demand:
    return known(demand(reference(statistic, name="r", gpu=GPU, **bounds), STATISTICS[statistic], where or peak()))


def test_200k_words_of_175b_are_worked_out_by_hand() -> None:
    """6 N + 12 L H Q T FLOPs per token, N without positions; 64 GPUs of 312 TFLOP/s."""
    layers, width, length = 96, 12288, 2048
    n = 51196 * width + layers * (12 * width**2 + 13 * width) + 2 * width
    flops = 200_000 * (6 * n + 12 * layers * width * length)
    assert flops == pytest.approx(215.3e15, rel=1e-4)
    found = asked("throughput", at_least="200K words/s")
    assert found.share == pytest.approx(flops / 19.968e15)
    assert (found.nodes_at(1.0), found.nodes_at(0.65)) == (87, 133)
    assert found.impossible
    assert str(found) == (
        "opt175b-r: >= 200,000 words/s needs 215.3 PFLOP/s, 10.8 times the published peak of 64 × A100-SXM4-80GB "
        "(19.97 PFLOP/s, bf16): it would take at least 87 nodes at their peak, 133 at 65 % of it"
    )


def test_on_enough_nodes_it_is_bold_and_on_more_it_is_neither() -> None:
    """The demand is the same; its share of the peak falls with the nodes."""
    bold, modest = (asked("throughput", peak(nodes=nodes), at_least="200K words/s") for nodes in (128, 256))
    assert (bold.impossible, bold.bold) == (False, True)
    assert (modest.impossible, modest.bold) == (False, False)
    assert "67.39 % of the published peak of 1024 × A100-SXM4-80GB" in str(bold)
    assert bold.nodes_at(1.0) == modest.nodes_at(1.0) == 87


def test_the_peak_says_what_it_allows() -> None:
    assert peak().limit == (
        "at most 18,548 words/s at the published peak of 64 × A100-SXM4-80GB (19.97 PFLOP/s, bf16), 12,056 at "
        "65 % of it"
    )
    most = peak().flops_per_s / flops_per_token(OPT_175B.model, 2048)
    assert not asked("throughput", at_least=f"{most} words/s").impossible
    assert asked("throughput", at_least=f"{1.0001 * most} words/s").impossible


@given(seconds=st.floats(1e-3, 1e3), nodes=st.integers(1, 64), tflops=st.floats(0.1, 1e4))
def test_what_was_measured_asks_for_the_share_that_was_measured(seconds: float, nodes: int, tflops: float) -> None:
    where = peak(nodes=nodes, tflops=tflops)
    recipe, samples = where.recipe, where.recipe.samples_per_step
    steps = tuple(
        Step(step=n, seconds=seconds, tokens=where.tokens_per_step, samples=samples, loss=1.0, grad_norm=1.0,
             peak_memory_bytes=None, ranks=where.topology.world_size)
        for n in range(1, recipe.steps + 1)
    )  # fmt: skip
    metrics = measure(
        Measurement(
            recipe=recipe, steps=steps, judged=steps, gpus=where.topology.gpus, matmul_flops_per_s=None,
            peak_flops_per_s=where.flops_per_s,
        )
    )  # fmt: skip
    assert set(FAST) <= set(metrics)
    for name, statistic in FAST.items():
        side = "at_most" if statistic.unit == "s" else "at_least"
        found = asked(name, where, **{side: f"{metrics[name].value!r} {statistic.unit}"})
        assert 100 * found.share == pytest.approx(metrics["mfu"].value)


def test_every_meaning_of_speed_is_one_that_a_shipped_statistic_has() -> None:
    assert {statistic.speed for statistic in FAST.values()} == set(get_args(Speed))


@given(words=st.floats(1, 1e9), share=st.floats(0.1, 1.0))
def test_nodes_are_as_many_as_it_takes_and_no_more(words: float, share: float) -> None:
    count = known(asked("throughput", at_least=f"{words} words/s").nodes_at(share))
    needs = [asked("throughput", peak(nodes=n), at_least=f"{words} words/s").share for n in {count, max(1, count - 1)}]
    assert min(needs) <= share * (1 + 1e-6)
    assert count == 1 or max(needs) > share * (1 - 1e-6)


@pytest.mark.parametrize(
    ("statistic", "bound"),
    [("mfu", "120 %"), ("tflops_per_gpu", "400 TFLOP/s/gpu"), ("tokens_per_s_per_gpu", "1000 words/s/gpu")],
)
def test_more_nodes_do_not_help_a_gpu(statistic: str, bound: str) -> None:
    found = asked(statistic, at_least=bound)
    assert found.impossible
    assert found.nodes_at(1.0) is None
    assert str(found).endswith("more nodes would not change that")


def test_a_step_whose_batch_grows_with_the_ranks_is_no_shorter_on_more_nodes() -> None:
    """A batch of a fixed size is; one that each copy of the model adds to is not."""
    grows: dict[str, Any] = {"global_batch_size": None, "gradient_accumulation_steps": 4}
    fixed = asked("step_time", at_most="1 ms")
    growing = asked("step_time", peak(OPT_175B.model_copy(update=grows)), at_most="1 ms")
    assert fixed.impossible
    assert fixed.nodes_at(1.0) is not None
    assert growing.nodes_at(1.0) is None
    filled_in = OPT_175B.model_copy(update=grows).on(peak().topology)
    assert asked("step_time", peak(filled_in), at_most="1 ms") == Demand(
        reference="r", bound="<= 1 ms", share=growing.share, nodes=None, peak=peak(filled_in)
    )


def test_no_time_at_all_is_impossible_anywhere() -> None:
    found = asked("time_for_20m_tokens", at_most="0 s")
    assert found.impossible
    assert found.nodes_at(1.0) is None


@pytest.mark.parametrize(("statistic", "bounds"), [
    ("loss_drop", {"at_least": "1 nat"}), ("peak_memory", {"at_most": "1 GiB"}),
    ("matmul_fraction", {"at_least": "90 %"}), ("throughput", {"at_most": "1e12 words/s"}),
    ("step_time", {"at_least": "1e-9 s"}),
])  # fmt: skip
def test_what_asks_for_no_speed_asks_for_nothing(statistic: str, bounds: dict[str, str]) -> None:
    assert demand(reference(statistic, name="r", gpu=GPU, **bounds), STATISTICS[statistic], peak()) is None


def test_of_two_bounds_the_one_that_asks_for_speed_counts() -> None:
    both = asked("throughput", at_least="10 words/s", at_most="1M words/s")
    assert both == asked("throughput", at_least="10 words/s")
    assert both.bound == ">= 10 words/s"
    assert ATTAINABLE > both.share > 0


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
