"""Engine deepspeed: what it refuses and what it hands to the ranks."""

from __future__ import annotations

import itertools
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
from pytest_llmbench.engines.base import Place, RankTask, get_engine
from pytest_llmbench.engines.deepspeed.engine import ENGINE

NODE = Topology(nodes=1, gpus_per_node=8)
CPUS = Topology(nodes=1, gpus_per_node=0, cpu_ranks_per_node=2)
SHAPE = {"layers": 2, "hidden_size": 32, "attention_heads": 2, "vocab_size": 256}


def recipe(**changes: Any) -> Recipe:
    """Build a recipe for one node of 8 GPUs."""
    plain = {
        "name": "small",
        "engine": "deepspeed",
        "model": SHAPE,
        "compile": False,
        "sequence_length": 32,
        "global_batch_size": 192,
        "micro_batch_size": 2,
        "optimizer": {"learning_rate": 1e-3},
        "steps": 12,
        "time_limit": "00:05:00",
    }
    return validate(Recipe, merge(plain, changes), "small")


def problems(**changes: Any) -> list[str]:
    """All reasons why a changed recipe cannot run on the node."""
    return list(ENGINE.problems(recipe(**changes), NODE))


def test_it_is_found_by_name_without_importing_what_it_runs() -> None:
    """Collection stays fast: DeepSpeed, transformers and PyTorch are imported on the ranks only."""
    assert get_engine("deepspeed") is ENGINE
    code = (
        "import sys; from pytest_llmbench.engines.base import get_engine; get_engine('deepspeed').missing(); "
        "sys.exit(bool({'torch', 'deepspeed', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_missing_packages_are_said_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing is named, and where it comes from."""
    monkeypatch.setattr(_in_process, "find_spec", lambda module: None if module == "deepspeed" else module)
    assert ENGINE.missing() == "engine deepspeed needs DeepSpeed: pip install 'pytest-llmbench[deepspeed]'"


@pytest.mark.parametrize(
    ("precision", "sharding"),
    [
        *itertools.product(("fp32", "bf16"), ("none", "optimizer", "gradients", "full")),
        *itertools.product(("fp16",), ("optimizer", "gradients", "full")),
    ],
)
def test_stages_of_zero_run_in_every_precision(sharding: str, precision: str) -> None:
    """On GPUs nothing of that is refused; on CPUs fp32 alone is not."""
    changed = recipe(parallelism={"sharding": sharding, "activation_checkpointing": "full"}, precision=precision)
    assert list(ENGINE.problems(changed, NODE)) == []
    on_cpus = list(ENGINE.problems(changed, CPUS))
    assert (on_cpus == []) == (precision == "fp32")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"micro_batch_size": 5}, "does not divide into micro batches of 5"),
        ({"parallelism": {"tensor": 2}}, "has no tensor parallelism; engine megatron_core has"),
        ({"parallelism": {"pipeline": 2}}, "has no pipeline parallelism"),
        ({"parallelism": {"activation_checkpointing": "selective"}}, "checkpoints none or full, not selective"),
        ({"optimizer": {"decay": "cosine"}}, "decays the learning rate linearly only"),
        ({"precision": "fp16"}, "in fp16 without scaling their loss: take bf16, or sharding: optimizer"),
        ({"compile": True, "parallelism": {"sharding": "full"}}, "cannot compile a layer whose weights come and go"),
        ({"model": {"positions": "rope"}}, "has learned positions only"),
        (
            {"options": {"loss_scales": 4}},
            "options: loss_scales: unknown key 'loss_scales' (did you mean 'loss_scale'?)",
        ),
    ],
)
def test_what_it_cannot_do_is_refused(changes: dict[str, Any], words: str) -> None:
    """A recipe never runs as something else than it says; every problem names the recipe."""
    found = problems(**changes)
    assert any(words in problem for problem in found)
    assert all(problem.startswith("recipe small") for problem in found)


def test_the_task_carries_the_whole_recipe() -> None:
    """What the ranks get is plain data that is the recipe again, with its options."""
    place = Place(folder=Path("run"), environment=Environment(), slurm=False, time_limit_min=1)
    task = ENGINE.work(recipe(options={"loss_scale": 64.0}), NODE, place)
    assert isinstance(task, RankTask)
    assert validate(Recipe, task.config, "task") == recipe(options={"loss_scale": 64.0})
