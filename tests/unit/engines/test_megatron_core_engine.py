"""The Megatron-Core engine: what it refuses and what it hands to the ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.recipe.environments import Environment
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.schema import merge, validate
from pytest_llmbench.engines import in_process as _in_process
from pytest_llmbench.engines.base import Place
from pytest_llmbench.engines.megatron_core.engine import ENGINE

NODE = Topology(nodes=1, gpus_per_node=8)
CPUS = Topology(nodes=1, gpus_per_node=0, cpu_ranks_per_node=2)
EVERYTHING = {
    "tensor": 2, "sequence": True, "pipeline": 2, "virtual_pipeline": 2, "sharding": "optimizer",
    "activation_checkpointing": "full",
}  # fmt: skip


def recipe(**changes: Any) -> Recipe:
    """Build a recipe for one node of 8 GPUs."""
    plain = {
        "name": "small",
        "engine": "megatron_core",
        "model": {"layers": 4, "hidden_size": 32, "attention_heads": 4, "vocab_size": 256},
        "sequence_length": 32,
        "global_batch_size": 192,
        "micro_batch_size": 2,
        "optimizer": {"learning_rate": 1e-3},
        "steps": 12,
        "time_limit": "00:05:00",
    }
    return validate(Recipe, merge(plain, changes), "small")


def test_choosing_the_engine_does_not_import_pytorch() -> None:
    code = (
        "import sys; from pytest_llmbench.engines.base import get_engine; get_engine('megatron_core').missing(); "
        "sys.exit('torch' in sys.modules or 'megatron.core' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_missing_megatron_core_is_said_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_in_process, "find_spec", lambda module: None if module == "megatron.core" else module)
    assert ENGINE.missing() == "engine megatron_core needs Megatron-Core: pip install 'pytest-llmbench[megatron]'"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"parallelism": EVERYTHING},
        {"precision": "fp16", "options": {"loss_scale": 64.0}},
        {
            "parallelism": {"activation_checkpointing": "selective"},
            "options": {"transformer_impl": "local", "attention": "unfused"},
        },
        {"parallelism": {"tensor": 2}, "model": {"vocab_size": 51197}},
        {"options": {"transformer_impl": "transformer_engine"}},
        {"options": {"transformer_impl": "local", "attention": "flash"}},
        {"model": {"positions": "rope"}},
    ],
)
def test_a_recipe_that_fits_has_no_problems(changes: dict[str, Any]) -> None:
    assert list(ENGINE.problems(recipe(**changes), NODE)) == []


def test_cpu_ranks_train_in_fp32() -> None:
    assert list(ENGINE.problems(recipe(precision="fp32", parallelism={"tensor": 2}), CPUS)) == []
    (problem,) = ENGINE.problems(recipe(), CPUS)
    assert problem == (
        "recipe small is bf16 on GPUs; this run has none: pass --scale smoke for the tiny CPU variant, "
        "or --gpus-per-node"
    )


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        pytest.param(
            {"parallelism": {"tensor": 4, "pipeline": 4}},
            "8 ranks (1 node × 8 GPUs) do not divide into copies of the model on tensor 4 × pipeline 4 = 16 ranks",
            id="ranks",
        ),
        pytest.param(
            {"parallelism": {"virtual_pipeline": 2}},
            "virtual_pipeline 2 interleaves the stages of a pipeline; there is one stage",
            id="no_pipeline",
        ),
        pytest.param(
            {"parallelism": {"sequence": True}},
            "sequence splits the sequence over the ranks of tensor; there is one: set sequence: false",
            id="no_tensor",
        ),
        pytest.param(
            {"parallelism": {"tensor": 8}, "model": {"hidden_size": 64}},
            "attention_heads 4 does not divide by tensor 8",
            id="heads",
        ),
        pytest.param(
            {"parallelism": {"tensor": 2}, "model": {"vocab_size": 51197}, "options": {"pad_vocabulary": False}},
            "vocab_size 51197 does not divide by tensor 2: set pad_vocabulary: true",
            id="vocabulary",
        ),
        pytest.param(
            {"parallelism": {"tensor": 4, "sequence": True}, "sequence_length": 30},
            "sequence_length 30 does not divide by tensor 4",
            id="sequence",
        ),
        pytest.param(
            {"parallelism": {"pipeline": 8}}, "4 layers do not divide by pipeline 8", id="layers"
        ),
        pytest.param(
            {"parallelism": {"pipeline": 2, "virtual_pipeline": 4}},
            "4 layers do not divide by pipeline 2 × virtual_pipeline 4",
            id="chunks_of_layers",
        ),
        pytest.param(
            {"global_batch_size": 24, "parallelism": {"pipeline": 2, "virtual_pipeline": 2}},
            "the interleaved schedule needs a multiple of pipeline 2 micro batches per step; there are 3 on 4 copies "
            "of the model",
            id="micro_batches",
        ),
        pytest.param(
            {"parallelism": {"sharding": "full"}},
            "engine megatron_core shards none or optimizer, not full: set optimizer, or spread the model by tensor "
            "and pipeline; engine torch shards full",
            id="sharding",
        ),
        pytest.param(
            {"optimizer": {"decay": "cosine"}}, "engine megatron_core decays the learning rate linearly only",
            id="decay",
        ),
        pytest.param(
            {"parallelism": {"activation_checkpointing": "selective"}},
            "selective checkpointing recomputes the attention, which fused kernels do by themselves: set "
            "activation_checkpointing: none, or options: {transformer_impl: local, attention: unfused}",
            id="selective",
        ),
        pytest.param(
            {"options": {"attention": "unfused"}},
            "options.attention: unfused is for Megatron-Core's local layers: set options.transformer_impl: local",
            id="attention",
        ),
    ],
)  # fmt: skip
def test_a_layout_that_cannot_be_is_refused(changes: dict[str, Any], problem: str) -> None:
    """The one problem names the numbers involved, and what to say instead where there is a choice."""
    assert list(ENGINE.problems(recipe(**changes), NODE)) == [f"recipe small: {problem}"]


def test_transformer_engine_needs_gpus() -> None:
    asked = recipe(precision="fp32", options={"transformer_impl": "transformer_engine"})
    assert list(ENGINE.problems(asked, CPUS)) == [
        "recipe small: options.transformer_impl: transformer_engine needs GPUs; local is for all"
    ]


def test_a_batch_is_divided_over_copies_of_the_model() -> None:
    """Ranks that hold one copy together train on the same sequences: 8 of them on tensor 2 are 4 copies."""
    (problem,) = ENGINE.problems(recipe(global_batch_size=12, parallelism={"tensor": 2}), NODE)
    assert problem == (
        f"recipe small: a global batch of 12 does not divide into micro batches of 2 on 4 copies of the model ({NODE});"
        " it does on 1, 2, 3, 6 copies of the model"
    )


def test_an_unknown_option_is_refused() -> None:
    problems = list(ENGINE.problems(recipe(options={"atention": "flash"}, parallelism={"sequence": True}), NODE))
    assert len(problems) == 2
    assert "recipe small: options" in problems[1]
    assert "atention" in problems[1]


def test_the_task_carries_the_whole_recipe() -> None:
    asked = recipe(parallelism=EVERYTHING, options={"overlap": False})
    place = Place(folder=Path("run"), environment=Environment(), slurm=False, time_limit_min=1)
    task = ENGINE.work(asked, NODE, place)
    assert task.entry == "pytest_llmbench.engines.megatron_core.ranks.run:train"
    assert validate(Recipe, task.config, "task") == asked


@pytest.mark.parametrize(
    ("tensor", "env"), [(1, {}), (2, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"})]
)  # fmt: skip
def test_the_gpu_keeps_the_order_of_work_where_tensor_parallel_ranks_communicate(
    tensor: int, env: dict[str, str], tmp_path: Path
) -> None:
    """Where ranks share products, what they send hides behind the next one only if it is started first."""
    place = Place(folder=tmp_path, environment=Environment(), slurm=False, time_limit_min=1)
    assert ENGINE.work(recipe(parallelism={"tensor": tensor}), NODE, place).env == env
