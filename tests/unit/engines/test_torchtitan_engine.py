"""torchtitan: its command, its log in all versions, and what is compared with the recipe."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.environments import Environment
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.schema import merge
from pytest_llmbench.engines.base import Place, Script, get_engine, problems_of
from pytest_llmbench.engines.torchtitan.engine import ENGINE
from pytest_llmbench.engines.torchtitan.log import READER, read_claims, reader
from pytest_llmbench.judging.sanity import first_problem
from pytest_llmbench.readers.items import Pause, Said, StepLine, Unreadable
from pytest_llmbench.readers.log import read_log
from tests.conftest import known
from tests.support.samples import sample
from tests.support.shipped import shipped_recipes

from .logs.true_logs import TORCHTITAN_CPU

EIGHT = Topology(nodes=1, gpus_per_node=8)
RECIPE = shipped_recipes()["titan_llama31_8b"].on(EIGHT)
FLOAT8 = shipped_recipes()["titan_llama31_8b_float8"].on(EIGHT)
STEP = "step: 10  loss: 10.7069  memory: 30.99GiB(32.62%)  tps: 7,034  tflops: 407.35  mfu: 41.19%"
TITAN = "[titan] 2025-06-04 08:51:58,557 - root - INFO - "


def words(recipe: Any) -> str:
    place = Place(folder=Path("/run"), environment=Environment(data="/data"), slurm=True, time_limit_min=1)
    work = ENGINE.work(recipe, EIGHT, place)
    assert isinstance(work, Script)
    (command,) = work.commands
    assert command.launcher == "torchrun"
    return " ".join(command.argv)


def test_the_command_has_the_recipe_in_it() -> None:
    line = words(FLOAT8)
    assert line.startswith("-m torchtitan.train --model.name llama3 --model.flavor 8B --job.print_config")
    for part in (
        "--training.local_batch_size 2", "--training.global_batch_size 16", "--training.seq_len 8192",
        "--compile.enable",
        "--training.mixed_precision_param bfloat16", "--model.converters quantize.linear.float8",
        "--activation_checkpoint.mode selective", "--training.dataset_path /data/c4_test", "--optimizer.beta2 0.95",
    ):  # fmt: skip
        assert f" {part}" in line
    later = RECIPE.model_copy(update={"options": {"config": "llama3_8b", "arguments": {}}})
    assert words(later).startswith("-m torchtitan.train --module llama3 --config llama3_8b --debug.print_config")
    assert words(later).endswith(" activation-checkpoint:selective")
    assert "optimizer." not in words(later)


@pytest.mark.parametrize(("changes", "reason"), [
    ({"options": {"flavor": None}}, "give flavor, or config"),
    ({"parallelism": {"sharding": "optimizer"}}, "shards nothing (none) or everything (full)"),
    ({"parallelism": {"tensor": 2}}, "splits the sequence wherever it has tensor parallelism"),
    ({"model": {"dropout": 0.1}}, "has no virtual_pipeline and no dropout"),
    ({"precision": "fp16"}, "precision fp16 is not one of fp32, bf16, fp8, mxfp8"),
    ({"options": {"arguments": {"training.seq_len": 4096}}}, "contradicts sequence_length of the recipe"),
    ({"options": {"arguments": {"comm.mode": "fake_backend"}}}, "does not communicate"),
])  # fmt: skip
def test_what_it_cannot_do_is_refused(changes: dict[str, Any], reason: str) -> None:
    said = merge(RECIPE.model_dump(exclude={"references"}, exclude_none=True), changes)
    recipe = type(RECIPE).model_validate({**said, "references": RECIPE.references})
    assert reason in "\n".join(problems_of(get_engine("torchtitan"), recipe, EIGHT))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (f"2024-10-03 16:44:32,658 - root - INFO - {STEP.replace('tps', 'wps')}", {"tps": 7034.0, "mfu": 41.19}),
        (f"2025-02-13 11:33:45,521 - root - INFO - {STEP.replace('memory', 'mmemory')}", {"memory_gib": 30.99}),
        (TITAN + STEP, {"tps": 7034.0, "tflops": 407.35, "mfu": 41.19, "memory_gib": 30.99}),
        (TITAN + STEP.replace("41.19%", "N/A").replace("407.35", "1,407.35"), {"tflops": 1407.35}),
        (TITAN + STEP.replace("30.99GiB(32.62%)", "-0.00GiB(nan%)"), {"memory_gib": 0.0}),
        (TITAN + STEP.replace("loss", "[32mloss").replace("step", "[31mstep"), {"mfu": 41.19}),
        (STEP, {"tps": 7034.0}),
        (STEP.replace("41.19%", "15131.59%"), {"mfu": 15131.59}),
    ],
    ids=["2024", "typing error", "2025", "8 bits", "no GPU", "colours without escape", "bare", "wrong FLOPs"],
)  # fmt: skip
def test_a_step_is_read_in_every_version(text: str, numbers: dict[str, float]) -> None:
    (step,) = reader()(text)
    assert isinstance(step, StepLine)
    assert (step.step, step.loss, step.grad_norm) == (10, 10.7069, None)
    assert numbers.items() <= step.reported.items()


@pytest.mark.parametrize(("text", "reason"), [
    (STEP[:-5], "mfu is '4'"), (STEP.partition("  mfu")[0], "cut off after tflops"),
    (STEP.replace("7,034", "7,0"), "tps is '7,0'"),
    (STEP.replace("10.7069", "1o.7069"), "loss is '1o.7069', not a number"),
    (STEP.replace("32.62%", "32.62"), "memory is"), (f"{STEP}  {STEP}", "is not a field|twice"),
    (STEP.partition("loss: 10.7069")[2], "a line without its step"),
    (STEP.replace("step: 10", "step:  0"), "step 0"),
])  # fmt: skip
def test_a_damaged_step_is_no_step(text: str, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        list(reader()(text))


def test_a_size_within_the_model_is_not_the_models() -> None:
    """Versions of 2026 print the dimension of rotary positions under the name of the hidden size."""
    lines = ('  "dim": 768,', '  "rope": {', '    "dim": 64,', '        "n_heads": 12,')
    claims = [item for line in lines for item in read_claims(line) if isinstance(item, Said)]
    assert claims == [Said("hidden_size", 768), Said("attention_heads", 12)]


def test_evaluations_and_checkpoints_are_pauses() -> None:
    evaluated = TITAN + "validate step: 10  loss: 10.7069  memory: 30.99GiB(32.62%)  tps: 7,034"
    for text in (evaluated, TITAN + "Saving the checkpoint (or staging if async is enabled)."):
        assert list(reader()(text)) == [Pause()]


def test_a_real_log_is_its_recipes(tmp_path: Path) -> None:
    """Version 0.2.2 on two CPU ranks: 20 steps, its configuration compared, and nothing that contradicts."""
    evidence = TORCHTITAN_CPU.evidence(tmp_path, TORCHTITAN_CPU.text())
    assert first_problem(evidence) is None
    assert [(step.step, step.interval) for step in evidence.series.steps] == [(n, 1) for n in range(1, 21)]
    assert {step.tokens for step in evidence.series.steps} == {256}
    claims = {claim.name: claim.value for claim in evidence.series.claims}
    assert claims == {
        "layers": 6, "hidden_size": 256, "attention_heads": 16, "vocab_size": 2048, "parameters": 6163712, "tensor": 1,
        "pipeline": 1, "context_parallel": 1, "sharding": "full", "micro_batch_size": 2, "global_batch_size": 4,
        "sequence_length": 64, "steps": 20,
    }  # fmt: skip
    assert re.search(r"settings printed, [3-9]\d compared", evidence.compared.summary or "")
    differ = ENGINE.compare(FLOAT8, EIGHT, evidence.series).differ
    assert "does not say that its products had 8 bits" in "\n".join(differ)


@pytest.mark.parametrize(("old", "new", "said"), [
    ("sequence length 64", "sequence length 128", "sequence length 128"),
    ("6,163,712 total", "6,163,968 total", "parameters 6163968"),
    ("dp_shard=2", "dp_shard=4", "4 ranks"),
    ('"mixed_precision_param": "float32"', '"mixed_precision_param": "bfloat16"', "mixed_precision_param bfloat16"),
    ('"lr": 0.0008', '"lr": 0.0009', ""),
    ("Applied FSDP", "Float8 tensorwise scaled training active. Applied FSDP", "precision fp8"),
    ("Applied FSDP", "Applied full activation checkpointing to the model. FSDP", "activation checkpointing full"),
    ("starts at step 1", "starts at step 101", "initial weights loaded"),
    ('"name": "AdamW"', '"name": "SGD"', "optimizer.name SGD"),
    ('"moe_force_load_balance": false', '"moe_force_load_balance": true', "moe_force_load_balance true"),
    ('"debug": {', '"comm": {\n[rank0]:    "mode": "fake_backend"\n[rank0]:  },\n[rank0]:  "debug": {',
     "comm.mode fake"),
])  # fmt: skip
def test_another_training_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = TORCHTITAN_CPU.text()
    assert old in text
    evidence = TORCHTITAN_CPU.evidence(tmp_path, text.replace(old, new))
    if said:
        assert said in known(first_problem(evidence)).message
    else:  # with another learning rate a step has the same work
        assert "lr 0.0009" in (evidence.compared.summary or "")


@pytest.mark.parametrize("factor", [1.02, 0.98])
def test_rates_scaled_by_two_percent_contradict_the_times(tmp_path: Path, factor: float) -> None:
    """A line on a busy CPU may be 0.05 s late, which is 4 % of these steps; not most lines."""
    scaled = re.sub(r"tps: (\d+)", lambda rate: f"tps: {round(int(rate[1]) * factor)}", TORCHTITAN_CPU.text())
    assert "the recipe's" in known(first_problem(TORCHTITAN_CPU.evidence(tmp_path, scaled))).message


def test_published_lines_give_the_published_rate() -> None:
    """The tutorial of torchao says 7.6 K tokens/s/gpu for these lines of a training with float8 on 8 H100."""
    path = sample("logs/torchtitan_8_h100_float8.log")
    series = read_log([path], READER.dialect(), READER.claims, READER.needles)
    recipe = FLOAT8.model_copy(update={"global_batch_size": 8, "micro_batch_size": 1, "steps": 40})
    steps = ENGINE.read(path, recipe).steps
    assert [(step.step, step.interval) for step in steps] == [(1, 1), (10, 9), (20, 10), (30, 10), (40, 10)]
    assert [round(8192 / (step.seconds or 0)) for step in steps[2:]] == pytest.approx([7663, 7643, 7637], rel=1e-3)
    assert list(ENGINE.doubts(recipe, EIGHT, series.model_copy(update={"steps": steps}))) == []
    other = replace(EIGHT, gpus_per_node=4)
    assert any("the recipe's" in doubt for doubt in ENGINE.doubts(
        recipe, other, series.model_copy(update={"steps": steps})))  # fmt: skip


def test_a_name_that_the_environment_lacks_is_said() -> None:
    place = Place(folder=Path("/run"), environment=Environment(), slurm=True, time_limit_min=1)
    with pytest.raises(ConfigError, match="data"):
        ENGINE.work(RECIPE, EIGHT, place)
