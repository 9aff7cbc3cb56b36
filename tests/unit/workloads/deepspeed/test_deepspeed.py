"""Engine deepspeed on two real CPU ranks: its three steps, ZeRO 0 to 3, LoRA, and what must not change a number."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from pytest_llmbench.core.recipe.environments import Environment
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.series import StepSeries
from pytest_llmbench.core.schema import merge
from pytest_llmbench.engines.base import Place, RankTask
from pytest_llmbench.engines.deepspeed.engine import ENGINE
from pytest_llmbench.readers.steps.step_log import read_steps
from tests.unit.workloads.conftest import Fork, Launch, MakeRecipe

pytestmark = pytest.mark.skipif(
    find_spec("deepspeed") is None or find_spec("transformers") is None,
    reason="needs DeepSpeed and transformers: pip install 'pytest-llmbench[deepspeed]'",
)

# Importing DeepSpeed and transformers takes longer than any of these trainings: two processes run them all.
ENTRY = """
    import dataclasses

    import torch

    from pytest_llmbench.core.errors import ConfigError
    from pytest_llmbench.core.recipe.recipes import Recipe
    from pytest_llmbench.core.schema import validate
    from pytest_llmbench.workloads.training import matmul
    from pytest_llmbench.engines.deepspeed.ranks.run import join
    from pytest_llmbench.workloads.rank.rendezvous import process_group
    from pytest_llmbench.workloads.rank.steplog import StepLog


    def run_all(context, log):
        matmul.measure = lambda *_: 1e9
        with process_group(context, 120) as device:
            torch.set_num_threads(1)
            join(device)
            from pytest_llmbench.engines.deepspeed.ranks.loop import run

            for name, config in context.config.items():
                print(f"training {name}", flush=True)
                own = dataclasses.replace(context, folder=context.folder / name)
                with StepLog(own) as own_log:
                    own_log.start("cpu", {})
                    try:
                        run(validate(Recipe, config, name), own, device, own_log)
                        own_log.end()
                    except ConfigError as error:
                        own_log.failure(str(error))
"""

SFT: Mapping[str, Any] = {"engine": "deepspeed", "compile": False, "options": {"step": "sft"}}
LORA = {**SFT, "options": {"step": "sft", "lora_dim": 4}}
REWARD = {**SFT, "global_batch_size": 32, "options": {"step": "reward"}}
PPO = {
    **SFT,
    "sequence_length": 8,
    "global_batch_size": 64,
    "micro_batch_size": 16,
    "steps": 24,
    "options": {
        "step": "ppo",
        "critic": {"layers": 1, "hidden_size": 16, "attention_heads": 2, "vocab_size": 256, "dropout": 0.0},
        "ppo": {"kl_coefficient": 0.02},
    },
}
SHARDED = {"parallelism": {"sharding": "full"}}
TRAININGS: Mapping[str, Mapping[str, Any]] = {
    "sft": SFT,
    "sft_zero1": {**SFT, "parallelism": {"sharding": "optimizer"}},
    "sft_zero2": {**SFT, "parallelism": {"sharding": "gradients"}},
    "sft_zero3": {**SFT, **SHARDED},
    "sft_checkpointed": {**SFT, "parallelism": {"activation_checkpointing": "full"}},
    "sft_checkpointed_zero3": {**SFT, "parallelism": {"sharding": "full", "activation_checkpointing": "full"}},
    "sft_at_once": {**SFT, "micro_batch_size": 4},
    "sft_bf16": {**SFT, "precision": "bf16"},
    "sft_bf16_zero2": {**SFT, "precision": "bf16", "parallelism": {"sharding": "gradients"}},
    "lora": LORA,
    "lora_bf16": {**LORA, "precision": "bf16"},
    "lora_zero3": {**LORA, **SHARDED},
    "reward": REWARD,
    "reward_bf16": {**REWARD, "precision": "bf16"},
    "reward_zero3": {**REWARD, **SHARDED},
    "ppo": PPO,
    "ppo_bf16": {**PPO, "precision": "bf16", "steps": 6},
    "ppo_zero3": {**PPO, **SHARDED, "steps": 6},
    "ppo_zero3_in_parts": merge({**PPO, **SHARDED, "steps": 6}, {"options": {"gather_to_generate": False}}),
    "odd_batch": {**SFT, "micro_batch_size": 3},
    "no_such_layer": {**SFT, "options": {"step": "sft", "lora_dim": 4, "lora_modules": "encoder."}},
}


@pytest.fixture(scope="module")
def folder(make_recipe: MakeRecipe, fork: Fork, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two ranks trained everything, one after the other."""
    folder = tmp_path_factory.mktemp("deepspeed")
    (folder / "all_trainings.py").write_text(textwrap.dedent(ENTRY))
    config = {name: make_recipe(**changes).model_dump(mode="json") for name, changes in TRAININGS.items()}
    for process in fork(folder, "all_trainings:run_all", config=config):
        assert process.wait(600) == 0, (folder / "output-0").read_text()
    return folder


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, StepSeries]:
    """What they logged, by name."""
    return {name: read_steps(folder / name) for name in TRAININGS}


def losses(series: StepSeries) -> list[float]:
    """Loss by step."""
    return [step.loss for step in series.steps if step.loss is not None]


def norms(series: StepSeries) -> list[float]:
    """Gradient norm by step."""
    return [step.grad_norm for step in series.steps if step.grad_norm is not None]


def remarks(folder: Path, name: str, pattern: str) -> list[float]:
    """Numbers that rank 0 printed of every step of a training."""
    output = (folder / "output-0").read_text()
    return [
        float(number) for number in re.findall(pattern, output.split(f"training {name}\n")[1].split("training ")[0])
    ]


def test_a_real_start_logs_a_whole_run(make_recipe: MakeRecipe, launch: Launch, tmp_path: Path) -> None:
    """Started as the engine says, both ranks measure, log all steps with all tokens, and end."""
    place = Place(folder=tmp_path, environment=Environment(), slurm=False, time_limit_min=1)
    topology = Topology(nodes=1, gpus_per_node=0, cpu_ranks_per_node=2)
    task = ENGINE.work(make_recipe(**SFT, parallelism={"sharding": "gradients"}), topology, place)
    assert isinstance(task, RankTask)
    for process in launch(tmp_path, task.entry, config=dict(task.config)):
        assert process.wait(120) == 0, (tmp_path / "output-0").read_text()
    series = read_steps(tmp_path)
    assert series.unreadable == ()
    assert [(info.rank, info.ended) for info in series.ranks] == [(0, True), (1, True)]
    assert all(info.matmul_flops_per_s for info in series.ranks)
    assert [(step.step, step.ranks) for step in series.steps] == [(n, 2) for n in range(1, 13)]
    assert {(step.tokens, step.samples) for step in series.steps} == {(8 * 32, 8)}
    assert all(step.peak_memory_bytes for step in series.steps)


def test_nothing_is_compiled(folder: Path) -> None:
    """No extension of DeepSpeed is built: the ranks need no C++ compiler."""
    assert "JIT" not in (folder / "output-0").read_text()
    assert "ninja" not in (folder / "output-0").read_text()


@pytest.mark.parametrize("name", [name for name in TRAININGS if name.startswith(("sft", "reward", "ppo", "lora"))])
def test_every_training_logs_its_work(runs: dict[str, StepSeries], make_recipe: MakeRecipe, name: str) -> None:
    """Every step counts the sequences of the recipe, also where they are pairs or generated."""
    recipe, series = make_recipe(**TRAININGS[name]), runs[name]
    assert [step.step for step in series.steps] == list(range(1, recipe.steps + 1))
    work = {(step.tokens, step.samples) for step in series.steps}
    assert work == {(recipe.tokens_per_step, recipe.samples_per_step)}
    assert all(math.isfinite(value) for value in losses(series) + norms(series))
    assert min(norms(series)) > 0


def test_sft_learns(runs: dict[str, StepSeries]) -> None:
    """From a guess the loss falls towards the entropy of the data."""
    first, *_, last = losses(runs["sft"])
    assert first == pytest.approx(math.log(256), abs=0.05)
    assert last < first - 0.8


@pytest.mark.parametrize(
    "name",
    ["sft_zero1", "sft_zero2", "sft_zero3", "sft_checkpointed", "sft_checkpointed_zero3", "sft_at_once"],
)
def test_how_it_is_computed_changes_no_number(runs: dict[str, StepSeries], name: str) -> None:
    """ZeRO, recomputed activations and accumulated gradients give the losses and gradients of plain training."""
    assert losses(runs[name]) == pytest.approx(losses(runs["sft"]), rel=1e-4)
    assert norms(runs[name]) == pytest.approx(norms(runs["sft"]), rel=1e-3)


@pytest.mark.parametrize(
    ("name", "single", "near"),
    [
        ("sft_bf16", "sft", 0.02), ("sft_bf16_zero2", "sft", 0.02), ("lora_bf16", "lora", 0.02),
        ("reward_bf16", "reward", 0.1),  # the mean of 16 pairs, not of 256 tokens
    ],
)  # fmt: skip
def test_bf16_is_close_to_fp32(runs: dict[str, StepSeries], name: str, single: str, near: float) -> None:
    """With weights of 8 significant bits the curve is nearly the same, and is not the same."""
    assert losses(runs[name]) == pytest.approx(losses(runs[single]), abs=near)
    assert losses(runs[name]) != pytest.approx(losses(runs[single]), rel=1e-6)


def test_ppo_learns_in_bf16(runs: dict[str, StepSeries]) -> None:
    """Two trained models have an optimizer each; other answers are drawn, so only the beginning is the same."""
    single, half = losses(runs["ppo"]), losses(runs["ppo_bf16"])
    assert half[0] == pytest.approx(single[0], rel=0.05)
    assert half[-1] < half[0]
    assert all(map(math.isfinite, norms(runs["ppo_bf16"])))


def test_lora_starts_as_the_model_and_learns_less(runs: dict[str, StepSeries]) -> None:
    """Its updates are zero at first; with most weights frozen the loss falls, but not as far."""
    plain, lora = losses(runs["sft"]), losses(runs["lora"])
    assert lora[0] == pytest.approx(plain[0], rel=1e-5)
    assert plain[-1] + 0.5 < lora[-1] < lora[0] - 0.05
    assert norms(runs["lora"])[0] < 0.5 * norms(runs["sft"])[0]


@pytest.mark.parametrize("name", ["lora", "reward"])
def test_sharding_changes_no_number_of_others(runs: dict[str, StepSeries], name: str) -> None:
    """LoRA and rewards are the same under ZeRO-3."""
    assert losses(runs[f"{name}_zero3"]) == pytest.approx(losses(runs[name]), rel=1e-3)
    assert norms(runs[f"{name}_zero3"]) == pytest.approx(norms(runs[name]), rel=1e-2)


def test_a_scorer_learns_which_answer_is_better(runs: dict[str, StepSeries], folder: Path) -> None:
    """From a guess, ln 2, its loss falls until it ranks nearly all pairs right."""
    first, *_, last = losses(runs["reward"])
    assert first == pytest.approx(math.log(2), abs=1e-6)
    assert last < 0.25
    accuracy = remarks(folder, "reward", r"([\d.]+)% of the pairs")
    assert len(accuracy) == 12
    assert fmean(accuracy[-4:]) > 90


def test_a_critic_learns_the_scores(runs: dict[str, StepSeries]) -> None:
    """The loss of ppo is the critic's error, and falls."""
    first, *_, last = losses(runs["ppo"])
    assert first > 1
    assert last < first / 4


def test_an_actor_learns_to_please(folder: Path) -> None:
    """The mean score rises, and the actor moves away from the reference, where it started."""
    scores = remarks(folder, "ppo", r"mean score (-?[\d.]+)")
    divergence = remarks(folder, "ppo", r"divergence (-?[\d.]+)")
    assert fmean(scores[-6:]) > fmean(scores[:6]) + 0.1
    assert divergence[0] == pytest.approx(0, abs=1e-4)
    assert fmean(divergence[-6:]) > 0.3


@pytest.mark.parametrize("name", ["ppo_zero3", "ppo_zero3_in_parts"])
def test_four_sharded_models_generate_and_train_as_whole_ones(runs: dict[str, StepSeries], name: str) -> None:
    """Under ZeRO-3 the same answers are generated and learned from, up to where the schedules of the two part."""
    assert losses(runs[name])[:5] == pytest.approx(losses(runs["ppo"])[:5], rel=1e-3)
    assert norms(runs[name])[:5] == pytest.approx(norms(runs["ppo"])[:5], rel=1e-2)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("odd_batch", "a global batch of 8 does not divide into micro batches of 3 on 2 ranks"),
        (
            "no_such_layer",
            "options.lora_modules: no linear layer has 'encoder.' in its name; some that there are: model.",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(runs: dict[str, StepSeries], name: str, words: str) -> None:
    """The error says what is wrong with the recipe, on every rank."""
    assert [words in (info.failure or "") for info in runs[name].ranks] == [True, True]
