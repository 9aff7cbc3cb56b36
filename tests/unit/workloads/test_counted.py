"""What ranks count of their own training is what the recipe says, in every layout; another training has no number."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.core.schema import merge
from pytest_llmbench.engines.base import get_engine
from pytest_llmbench.judging.sanity import Evidence, first_problem
from pytest_llmbench.readers.steps.step_log import read_steps

from .conftest import Fork, MakeRecipe

NEEDS = {"torch": "torch", "megatron_core": "megatron", "deepspeed": "deepspeed"}
DEEPSPEED = {"engine": "deepspeed", "compile": False}
MEGATRON = {"engine": "megatron_core", "compile": False, "model": {"layers": 4, "attention_heads": 4}}
# Ranks of each training, and what its recipe says of it.
TRAININGS: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "torch, one rank": (1, {}),
    "torch, whole": (2, {}),
    "torch, gradients, bf16": (2, {"parallelism": {"sharding": "gradients"}, "precision": "bf16"}),
    "torch, full": (2, {"parallelism": {"sharding": "full"}}),
    "megatron, copies": (2, MEGATRON),
    "megatron, tensor": (2, MEGATRON | {"parallelism": {"tensor": 2, "sequence": True}}),
    "megatron, pipeline, bf16": (2, MEGATRON | {"parallelism": {"pipeline": 2}, "precision": "bf16"}),
    "megatron, all": (
        4, MEGATRON | {"parallelism": {"tensor": 2, "pipeline": 2, "virtual_pipeline": 2}, "global_batch_size": 16}
    ),
    "megatron, rope, sharded": (
        2, merge(MEGATRON, {"model": {"positions": "rope"}, "parallelism": {"sharding": "optimizer"}})
    ),
    "deepspeed, whole, bf16": (2, DEEPSPEED | {"precision": "bf16"}),
    "deepspeed, full, bf16": (2, DEEPSPEED | {"precision": "bf16", "parallelism": {"sharding": "full"}}),
}  # fmt: skip
# Entry functions that train something else than they are asked for, as a wrong option or a fault would.
SABOTAGE = """
import torch
from pytest_llmbench.workloads.training import matmul
from pytest_llmbench.engines.torch.ranks import run as ours

matmul.measure = lambda *_: 1e9
true_batch, true_build, true_clip = ours.batch, ours.build_model, ours.clip_gradients

def plain(context, log):
    ours.train(context, log)

def half_sequences(context, log):
    def batch(*args):
        inputs, targets = true_batch(*args)
        half = inputs.shape[1] // 2
        return inputs[:, :half], targets[:, :half]
    ours.batch = batch
    ours.train(context, log)

def half_batch(context, log):
    ours.batch = lambda *args: tuple(each[: len(each) // 2] for each in true_batch(*args))
    ours.train(context, log)

def _smaller(context, log, **shape):
    def build(recipe, *args):
        return true_build(recipe.model_copy(update={"model": recipe.model.model_copy(update=shape)}), *args)
    ours.build_model = build
    ours.train(context, log)

def fewer_layers(context, log):
    _smaller(context, log, layers=1)

def narrower(context, log):
    _smaller(context, log, hidden_size=16)

def other_precision(context, log):
    true = torch.autocast
    torch.autocast = lambda device, dtype=None, enabled=True: true(device, torch.bfloat16, enabled=dtype is not None)
    ours.train(context, log)

def same_data(context, log):
    ours.batch = lambda tokens, first, count, device: true_batch(tokens, first % 4, count, device)
    ours.train(context, log)

def each_alone(context, log):
    ours.build_model = lambda recipe, options, device, world_size, seed: true_build(recipe, options, device, 1, seed)
    ours.train(context, log)

def no_gradient(context, log):
    def clip(model, longest):
        for parameter in model.parameters():
            parameter.grad.zero_()
        return true_clip(model, longest)
    ours.clip_gradients = clip
    ours.train(context, log)
"""


def train(fork: Fork, folder: Path, recipe: Recipe, ranks: int, entry: str) -> Problem | None:
    """Train for real, and judge what came of it."""
    (folder / "sabotage.py").write_text(SABOTAGE)
    engine, topology = get_engine(recipe.engine), Topology(nodes=1, gpus_per_node=0, cpu_ranks_per_node=ranks)
    for process in fork(folder, entry, ranks=ranks, config=recipe.model_dump(mode="json"), token="here"):
        assert process.wait(300) == 0, (folder / "output-0").read_text()
    series = read_steps(folder)
    evidence = Evidence(
        recipe=recipe, topology=topology, series=series, hosts=(), wall_s=None, gpu=None,
        expected=engine.expected(recipe, topology),
    )  # fmt: skip
    return first_problem(evidence)


@pytest.mark.parametrize("name", TRAININGS)
def test_a_true_training_counts_what_its_recipe_says(
    name: str, fork: Fork, make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    """Layers, parameters, precision, places, sequences and losses agree, however the model is spread."""
    ranks, changes = TRAININGS[name]
    recipe = make_recipe(**changes)
    if find_spec(NEEDS[recipe.engine]) is None:
        pytest.skip(f"needs {recipe.engine}")
    problem = train(fork, tmp_path, recipe, ranks, get_engine(recipe.engine).entry)  # type: ignore[attr-defined]
    assert problem is None, problem


@pytest.mark.parametrize(
    ("entry", "kind", "told"),
    [
        ("plain", None, ""),
        ("half_sequences", "wrong_work", "sequence length 16"),
        ("half_batch", "wrong_work", "micro batch size 1"),
        ("fewer_layers", "wrong_work", "has 1 layers"),
        ("narrower", "wrong_work", "parameters"),
        ("other_precision", "wrong_work", "precision bf16"),
        ("same_data", "same_rank", "losses"),
        ("each_alone", "ranks_differ", "gradient norm"),
        ("no_gradient", "no_training", "gradient norm of 0"),
    ],
)
def test_another_training_is_refused(
    entry: str, kind: str | None, told: str, fork: Fork, make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    """What was trained is counted where it is trained: a recipe that says otherwise does not help."""
    problem = train(fork, tmp_path, make_recipe(), 2, f"sabotage:{entry}")
    assert (problem.kind if problem else None) == kind, problem
    assert told in (problem.message if problem else "")
