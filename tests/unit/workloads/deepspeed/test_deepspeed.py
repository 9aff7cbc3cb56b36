"""Engine deepspeed on two real CPU ranks: ZeRO 0 to 3, and what must not change a number."""

import math
import textwrap
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.recipe.environments import Environment
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.series import StepSeries
from pytest_llmbench.engines.base import Place, RankTask
from pytest_llmbench.engines.deepspeed.engine import ENGINE
from pytest_llmbench.readers.steps.step_log import read_steps
from tests.conftest import made_once
from tests.unit.workloads.conftest import Fork, Launch, MakeRecipe, losses, norms

pytestmark = pytest.mark.skipif(
    find_spec("deepspeed") is None or find_spec("transformers") is None,
    reason="needs DeepSpeed and transformers: pip install 'pytest-llmbench[deepspeed]'",
)

# Importing DeepSpeed and transformers takes longer than any of these trainings: two processes run them all.
ENTRY = """
    import dataclasses

    import torch

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
            from pytest_llmbench.engines.deepspeed.ranks.zero import run

            for name, config in context.config.items():
                print(f"training {name}", flush=True)
                own = dataclasses.replace(context, folder=context.folder / name)
                with StepLog(own) as own_log:
                    own_log.start("cpu", {})
                    run(validate(Recipe, config, name), own, device, own_log)
                    own_log.end()
"""

SFT: Mapping[str, Any] = {"engine": "deepspeed", "compile": False}
TRAININGS: Mapping[str, Mapping[str, Any]] = {
    "sft": SFT, "sft_zero1": {**SFT, "parallelism": {"sharding": "optimizer"}},
    "sft_zero2": {**SFT, "parallelism": {"sharding": "gradients"}},
    "sft_zero3": {**SFT, "parallelism": {"sharding": "full"}},
    "sft_checkpointed": {**SFT, "parallelism": {"activation_checkpointing": "full"}},
    "sft_checkpointed_zero3": {**SFT, "parallelism": {"sharding": "full", "activation_checkpointing": "full"}},
    "sft_at_once": {**SFT, "micro_batch_size": 4}, "sft_bf16": {**SFT, "precision": "bf16"},
    "sft_bf16_zero2": {**SFT, "precision": "bf16", "parallelism": {"sharding": "gradients"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(make_recipe: MakeRecipe, fork: Fork, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two ranks trained everything, one after the other."""
    config = {name: make_recipe(**changes).model_dump(mode="json") for name, changes in TRAININGS.items()}

    def train_all(folder: Path) -> None:
        (folder / "all_trainings.py").write_text(textwrap.dedent(ENTRY))
        for process in fork(folder, "all_trainings:run_all", config=config):
            assert process.wait(600) == 0, (folder / "output-0").read_text()

    return made_once(tmp_path_factory, "deepspeed", train_all)


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, StepSeries]:
    return {name: read_steps(folder / name) for name in TRAININGS}


def test_a_real_start_logs_a_whole_run(make_recipe: MakeRecipe, launch: Launch, tmp_path: Path) -> None:
    """Started as the engine says, by new Pythons, both ranks measure, log all steps with all tokens, and end."""
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


@pytest.mark.parametrize("name", [name for name in TRAININGS if name.startswith("sft")])
def test_every_training_logs_its_work(runs: dict[str, StepSeries], make_recipe: MakeRecipe, name: str) -> None:
    recipe, series = make_recipe(**TRAININGS[name]), runs[name]
    assert [step.step for step in series.steps] == list(range(1, recipe.steps + 1))
    work = {(step.tokens, step.samples) for step in series.steps}
    assert work == {(recipe.tokens_per_step, recipe.samples_per_step)}
    assert all(math.isfinite(value) for value in losses(series) + norms(series))
    assert min(norms(series)) > 0


def test_sft_learns(runs: dict[str, StepSeries]) -> None:
    first, *_, last = losses(runs["sft"])
    assert first == pytest.approx(math.log(256), abs=0.05)
    assert last < first - 0.8


@pytest.mark.parametrize(
    "name", ["sft_zero1", "sft_zero2", "sft_zero3", "sft_checkpointed", "sft_checkpointed_zero3", "sft_at_once"]
)
def test_how_it_is_computed_changes_no_number(runs: dict[str, StepSeries], name: str) -> None:
    """ZeRO, recomputed activations and accumulated gradients give the losses and gradients of plain training."""
    assert losses(runs[name]) == pytest.approx(losses(runs["sft"]), rel=1e-4)
    assert norms(runs[name]) == pytest.approx(norms(runs["sft"]), rel=1e-3)


@pytest.mark.parametrize("name", ["sft_bf16", "sft_bf16_zero2"])
def test_bf16_is_close_to_fp32(runs: dict[str, StepSeries], name: str) -> None:
    assert losses(runs[name]) == pytest.approx(losses(runs["sft"]), abs=0.02)
    assert losses(runs[name]) != pytest.approx(losses(runs["sft"]), rel=1e-6)
