"""Engine megatron_lm: JSC's arithmetic, on the numbers that JSC published."""

import dataclasses

import pytest

from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.series import Step
from pytest_llmbench.engines.base import get_engine, statistics_of
from pytest_llmbench.judging.statistics import Measurement
from tests.support.shipped import shipped_recipes


# `strong_scaling.csv` of FZJ-JSC jubench-megatron-lm: nodes, tokens per second, time to report in seconds.
@pytest.mark.parametrize(
    ("nodes", "tokens_per_s", "seconds"), [(48, 14620.74, 1367.92), (96, 36055.39, 554.70), (192, 52315.10, 382.30)]
)
def test_time_to_report_follows_from_tokens_per_second(nodes: int, tokens_per_s: float, seconds: float) -> None:
    """20 million tokens at that rate, whatever the number of nodes, whose batch grows with them."""
    topology = Topology(nodes=nodes, gpus_per_node=4)
    recipe = shipped_recipes()["nlp175b"].on(topology)
    assert recipe.samples_per_step == nodes
    lines = [Step(step=step, interval=10, seconds=recipe.tokens_per_step / tokens_per_s) for step in (10, 20, 30)]
    measurement = Measurement(
        recipe=recipe, steps=lines, judged=lines[1:], gpus=topology.gpus, matmul_flops_per_s=None, peak_flops_per_s=None
    )
    rules = statistics_of(get_engine("megatron_lm"))
    assert rules["tokens_per_s_all_lines"].compute(measurement) == pytest.approx(tokens_per_s)
    assert rules["time_for_20m_tokens_all_lines"].compute(measurement) == pytest.approx(seconds, abs=0.01)


# Core 0.16 and later log iteration 1 on a line of its own, and it is in the mean of the next line, too.
@pytest.mark.parametrize(
    ("intervals", "left_out"),
    [
        ({10: 10, 20: 10, 30: 10}, [10]), ({1: 1, 2: 1, 3: 1, 4: 1}, [1]), ({1: 1, 5: 5, 10: 5, 15: 5}, [1, 5]),
        ({1: 1, 2: 2, 3: 1, 4: 1}, [1, 2]), ({25: 1, 26: 1, 27: 1}, [25]),
    ],
)  # fmt: skip
def test_without_the_first_line_is_without_iteration_1(intervals: dict[int, int], left_out: list[int]) -> None:
    topology = Topology(nodes=96, gpus_per_node=4)
    recipe = shipped_recipes()["nlp175b"].on(topology)
    lines = [
        Step(step=step, interval=interval, seconds=100.0 if step in left_out else 2.0)
        for step, interval in intervals.items()
    ]
    measurement = Measurement(
        recipe=recipe, steps=lines, judged=lines, gpus=topology.gpus, matmul_flops_per_s=None, peak_flops_per_s=None
    )
    seconds = statistics_of(get_engine("megatron_lm"))["time_for_20m_tokens_without_first_line"].compute(measurement)
    assert seconds == pytest.approx(2.0 * 20e6 / recipe.tokens_per_step)


@pytest.mark.parametrize("name", ["megatron_lm", "metaseq", "nemo_torchrun"])
def test_rules_over_all_lines_have_no_value_where_a_line_is_unreadable(name: str) -> None:
    """What that line says may change the number; rules over judged steps are left."""
    recipe = shipped_recipes()["nlp175b"].on(Topology(nodes=96, gpus_per_node=4))
    steps = [Step(step=step, interval=1, seconds=2.0, reported={"wps": 5.0, "tflops": 9.0}) for step in range(1, 101)]
    whole = Measurement(
        recipe=recipe, steps=steps, judged=steps, gpus=384, matmul_flops_per_s=None, peak_flops_per_s=None
    )
    rules = get_engine(name).statistics
    values = {rule for rule, statistic in rules.items() if statistic.compute(whole) is not None}
    left = {rule for rule, each in rules.items() if each.compute(dataclasses.replace(whole, unread=1)) is not None}
    assert {"tokens_per_s_all_lines", "median_wps", "step_time_after_5"} & values
    assert left <= {"step_time_last"}
