"""What share of the peak a reference asks for, against numbers worked out by hand and against what is measured."""

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.series import Step
from pytest_llmbench.judging.feasibility import ATTAINABLE, Demand, Peak, demand
from pytest_llmbench.judging.flops import flops_per_token
from pytest_llmbench.judging.statistics import STATISTICS, Measurement, Speed, measure
from tests.conftest import known
from tests.support.references import reference

from .conftest import GPU, small

OPT_175B = small(
    name="opt175b",
    model={"layers": 96, "hidden_size": 12288, "attention_heads": 96, "vocab_size": 51196},
    sequence_length=2048,
    global_batch_size=1024,
)
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


@pytest.mark.parametrize(
    ("statistic", "bounds"),
    [
        ("loss_drop", {"at_least": "1 nat"}), ("peak_memory", {"at_most": "1 GiB"}),
        ("matmul_fraction", {"at_least": "90 %"}), ("throughput", {"at_most": "1e12 words/s"}),
        ("step_time", {"at_least": "1e-9 s"}),
    ],
)  # fmt: skip
def test_what_asks_for_no_speed_asks_for_nothing(statistic: str, bounds: dict[str, str]) -> None:
    assert demand(reference(statistic, name="r", gpu=GPU, **bounds), STATISTICS[statistic], peak()) is None


def test_of_two_bounds_the_one_that_asks_for_speed_counts() -> None:
    both = asked("throughput", at_least="10 words/s", at_most="1M words/s")
    assert both == asked("throughput", at_least="10 words/s")
    assert both.bound == ">= 10 words/s"
    assert ATTAINABLE > both.share > 0
