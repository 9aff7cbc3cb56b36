"""The plain PyTorch engine: what it refuses and what it hands to the ranks."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.recipe.environments import Environment
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.schema import merge, validate
from pytest_llmbench.engines import in_process as _in_process
from pytest_llmbench.engines.base import ENGINES, Place, get_engine
from pytest_llmbench.engines.torch.engine import ENGINE

NODE = Topology(nodes=1, gpus_per_node=8)
CPUS = Topology(nodes=1, gpus_per_node=0, cpu_ranks_per_node=2)


def recipe(**changes: Any) -> Recipe:
    """Build a recipe for one node of 8 GPUs."""
    plain = {
        "name": "small",
        "engine": "torch",
        "model": {"layers": 2, "hidden_size": 32, "attention_heads": 2, "vocab_size": 256},
        "sequence_length": 32,
        "global_batch_size": 192,
        "micro_batch_size": 2,
        "optimizer": {"learning_rate": 1e-3},
        "steps": 12,
        "time_limit": "00:05:00",
    }
    return validate(Recipe, merge(plain, changes), "small")


def test_it_is_found_by_name_and_its_helpers_are_not() -> None:
    """The engine's name is `torch`; the reader beside it is no engine."""
    assert get_engine("torch") is ENGINE
    assert ENGINE.name == "torch"
    assert not {"base", "_in_process", "_external"} & set(ENGINES.names())


def test_choosing_the_engine_does_not_import_pytorch() -> None:
    code = (
        "import sys; from pytest_llmbench.engines.base import get_engine; "
        "import pytest_llmbench.workloads.rank.main; "
        "get_engine('torch').missing(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_missing_pytorch_is_said_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ENGINE.missing() is None
    monkeypatch.setattr(_in_process, "find_spec", lambda _: None)
    assert ENGINE.missing() == "engine torch needs PyTorch: pip install 'pytest-llmbench[torch]'"


def test_a_recipe_that_fits_has_no_problems() -> None:
    assert list(ENGINE.problems(recipe(), NODE)) == []
    assert list(ENGINE.problems(recipe(precision="fp32"), CPUS)) == []


def test_a_batch_that_does_not_divide_lists_the_numbers_that_do() -> None:
    topology = Topology(nodes=5, gpus_per_node=8)
    (problem,) = ENGINE.problems(recipe(), topology)
    assert problem == (
        "recipe small: a global batch of 192 does not divide into micro batches of 2 on 40 ranks "
        f"({topology}); it does on 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96 ranks"
    )


def test_a_micro_batch_that_never_divides_says_so() -> None:
    (problem,) = ENGINE.problems(recipe(micro_batch_size=5), NODE)
    assert problem.endswith("it does on no number of ranks: change a batch size")


def test_bf16_without_gpus_points_to_the_smoke_scale() -> None:
    (problem,) = ENGINE.problems(recipe(), CPUS)
    assert problem == (
        "recipe small is bf16 on GPUs; this run has none: pass --scale smoke for the tiny CPU variant, "
        "or --gpus-per-node"
    )


def test_the_task_carries_the_whole_recipe() -> None:
    place = Place(folder=Path("run"), environment=Environment(), slurm=False, time_limit_min=1)
    task = ENGINE.work(recipe(data={"kind": "token_file", "path": "/data/tokens.bin"}), NODE, place)
    module, function = task.entry.split(":")
    assert callable(getattr(import_module(module), function))
    assert validate(Recipe, task.config, "task").data.kind == "token_file"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parallelism": {"tensor": 2}}, "has no tensor parallelism; engine megatron_core has"),
        ({"parallelism": {"sharding": "optimizer"}}, "shards none, gradients or full, not the optimizer alone"),
        ({"parallelism": {"activation_checkpointing": "selective"}}, "checkpoints none or full, not selective"),
        ({"model": {"positions": "rope"}}, "has learned positions only"),
        ({"optimizer": {"decay": "cosine"}}, "decays the learning rate linearly only"),
        ({"precision": "fp16"}, "precision fp16 is not one of fp32, bf16"),
        (
            {"options": {"residual": "fp32"}, "parallelism": {"sharding": "full"}},
            "options.residual: fp32 is for sharding none: what is gathered is bf16",
        ),
    ],
)
def test_what_it_cannot_do_is_refused(changes: dict[str, Any], words: str) -> None:
    assert any(words in problem for problem in ENGINE.problems(recipe(**changes), NODE))


def test_a_run_that_logged_nothing_is_an_empty_series(tmp_path: Path) -> None:
    series = ENGINE.read(tmp_path / "not_yet", recipe())
    assert (series.ranks, series.steps, series.unreadable) == ((), (), ())
