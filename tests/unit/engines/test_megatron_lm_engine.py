"""Engine megatron_lm: JSC's arithmetic, on the numbers that JSC published."""

import dataclasses
import datetime as dt
from pathlib import Path

import pytest

from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.series import Step
from pytest_llmbench.engines.base import get_engine, statistics_of
from pytest_llmbench.engines.megatron_lm.engine import ENGINE
from pytest_llmbench.judging.statistics import Measurement
from pytest_llmbench.session.replay import find_replays, recount
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
@pytest.mark.parametrize(("intervals", "left_out"), [
    ({10: 10, 20: 10, 30: 10}, [10]), ({1: 1, 2: 1, 3: 1, 4: 1}, [1]), ({1: 1, 5: 5, 10: 5, 15: 5}, [1, 5]),
    ({1: 1, 2: 2, 3: 1, 4: 1}, [1, 2]), ({25: 1, 26: 1, 27: 1}, [25]),
])  # fmt: skip
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


# As Megatron-Bridge prints what differs from the defaults of Megatron-Core, and the numbers of rank 0.
BRIDGE = """
[optimizer] Non-default values (vs Mcore OptimizerConfig):
  fp8_recipe: 'tensorwise'  (Mcore default: 'delayed')
  lr: 0.0003  (Mcore default: None)

[model] Non-default values (vs Mcore TransformerConfig):
  bf16: True  (Mcore default: False)
  fp8: 'hybrid'  (Mcore default: None)
  fp8_recipe: 'tensorwise'  (Mcore default: 'delayed')
  first_last_layers_bf16: True  (Mcore default: False)
  gated_linear_unit: True  (Mcore default: False)
  hidden_size: 4096  (Mcore default: 0)
  num_layers: 32  (Mcore default: 0)
  num_query_groups: 8  (Mcore default: None)
  recompute_granularity: 'selective'  (Mcore default: None)
  seq_length: 8192  (Mcore default: 0)
  vocab_size: 128256  (Mcore default: None)

[train]:
  global_batch_size: 128
  micro_batch_size: 2
  train_iters: 50
"""


@pytest.mark.parametrize(("old", "new", "said"), [
    ("", "", ""),
    ("num_layers: 32", "num_layers: 16", "num_layers 16; model.layers of the recipe is 32"),
    ("seq_length: 8192", "seq_length: 4096", "seq_length 4096; sequence_length of the recipe is 8192"),
    ("batch_size: 128", "batch_size: 64", "global_batch_size 64"),
    ("  first_last", "  fp8_recipe: 'mxfp8'\n  first_last", "fp8_recipe mxfp8"),
    ("  fp8: 'hybrid'  (Mcore default: None)\n", "", "prints no fp8 and fp8_recipe"),
    ("  num_layers", "  context_parallel_size: 2\n  num_layers", "context_parallel_size 2"),
    ("  num_layers", "  normalization: LayerNorm\n  num_layers", "normalization LayerNorm"),
], ids=["the same", "layers", "length", "batch", "scales", "no 8 bits", "context", "norm"])  # fmt: skip
def test_a_log_of_megatron_bridge_is_compared_with_the_recipe(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in BRIDGE
    log = tmp_path / "job.log"
    log.write_text("".join(f"[default0]:{line}\n" for line in BRIDGE.replace(old, new, 1).splitlines()))
    recipe, topology = shipped_recipes()["llama31_8b_fp8"], Topology(nodes=1, gpus_per_node=8)
    check = ENGINE.compare(recipe, topology, ENGINE.read(log, recipe))
    assert bool(check.differ) == bool(said), check.differ
    assert said in "\n".join(check.differ)
    bf16 = recipe.model_copy(update={"precision": "bf16"})
    if not said:
        assert "fp8 hybrid" in "\n".join(ENGINE.compare(bf16, topology, ENGINE.read(log, bf16)).differ)


def test_rank_0_of_megatron_bridge_has_a_clock_of_its_own(tmp_path: Path) -> None:
    """Public lines (NVIDIA-NeMo/Megatron-Bridge, pull request 841): both durations are read, and have to agree."""
    log = tmp_path / "job.log"
    text = """Step Time : 14.26s GPU utilization: 58.2TFLOP/s/GPU
 [2025-10-02 22:54:30] iteration       20/      50 | consumed samples:        10240 | elapsed time per iteration (ms): 14260.3 | learning rate: 2.604594E-04 | global batch size:   512 | lm loss: 8.797448E-02 | loss scale: 1.0 | grad norm: 0.170 | number of skipped iterations:   0 | number of nan iterations:   0 |
"""  # noqa: E501 - as it is printed
    recipe, topology = shipped_recipes()["llama31_8b_fp8"], Topology(nodes=1, gpus_per_node=8)
    for change, doubted in (("14.26s", False), ("11.26s", True)):
        log.write_text(text.replace("14.26s", change))
        series = ENGINE.read(log, recipe)
        (step,) = series.steps
        assert step.seconds == pytest.approx(14.2603)
        assert (step.samples, step.reported["model_tflops"]) == (512, 58.2)
        assert any("by that of rank 0" in doubt for doubt in ENGINE.doubts(recipe, topology, series)) is doubted
    log.write_text(text.replace("58.2TFLOP", "58.2TF"))
    assert ENGINE.read(log, recipe).unread == 1


def bridge_log(changes: dict[str, str]) -> str:
    """A whole log of Megatron-Bridge: its configuration, 50 iterations of 4.4 s, and its end."""
    lines = [*BRIDGE.splitlines()]
    for step in range(1, 51):
        at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=4.4 * step)
        lines.append("Step Time : 4.40s GPU utilization: 1534.9MODEL_TFLOP/s/GPU")
        lines.append(
            f" [{at:%Y-%m-%d %H:%M:%S}] iteration {step:8d}/{50:8d} | consumed samples: {128 * step:12d} | "
            f"elapsed time per iteration (ms): {4400 + step % 3:.1f} | learning rate: 3.0E-04 | "
            f"global batch size:   128 | lm loss: {12 - step / 20 + step % 2 / 100:.6E} | loss scale: 1.0 | "
            f"grad norm: 1.{step:03d} | number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
    text = "\n".join([*lines, "[after training is done] datetime: 2026-01-01 00:04:00 ", ""])
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(("gpu", "changes", "recipe", "words"), [
    ("GB200", {}, "llama31_8b_fp8", "fits llama31_8b_fp8 of"),
    ("A100", {}, "llama31_8b_fp8", "it has no reference for 8 × A100"),
    ("GB200", {"num_layers: 32": "num_layers: 31"}, "llama31_8b_fp8", "num_layers 31; model.layers"),
    ("GB200", {"'hybrid'": "'e4m3'", "'tensorwise'": "'mxfp8'"}, "llama31_8b_mxfp8", "fits llama31_8b_mxfp8 of"),
    ("GB200", {": 128\n": ": 64\n"}, "llama31_8b_fp8", "global_batch_size 64"),
])  # fmt: skip
def test_the_row_of_a_log_is_found(tmp_path: Path, gpu: str, changes: dict[str, str], recipe: str, words: str) -> None:
    place = tmp_path / "megatron_lm"
    place.mkdir()
    (place / "job.log").write_text(bridge_log(changes))
    (place / "replay.yaml").write_text(f"{{gpu: {gpu}, nodes: 1, gpus_per_node: 8}}")
    system = System(name="elsewhere", cluster="slurm")
    settings = Settings(system=system, cluster="replay", allocation="run", run_dir=tmp_path)
    ((key, spec),) = find_replays(tmp_path, shipped_recipes(), settings).items()
    assert (key, spec.replayed is not None) == (recipe, True)
    assert spec.replayed is not None
    assert words in spec.replayed.provenance["recipe_found"]
    outcome = recount(spec.recipe, spec.replayed, system).outcome
    if "fits" in words or gpu == "A100":
        assert outcome.problem is None
        assert outcome.metrics["tokens_per_s_per_gpu"].value == pytest.approx(128 * 8192 / 4.401 / 8, rel=1e-3)
    else:
        assert outcome.problem is not None
        assert outcome.problem.kind == "wrong_work"
