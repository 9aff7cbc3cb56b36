"""What ranks count of their own training is what the recipe says, in every layout; another training has no number."""

from collections.abc import Callable, Mapping
from functools import cache
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
from tests.support.training.same_loss import several

from .conftest import Fork, MakeRecipe

NEEDS = {"torch": "torch", "megatron_core": "megatron", "deepspeed": "deepspeed"}
DEEPSPEED = {"engine": "deepspeed", "compile": False}
MEGATRON = {"engine": "megatron_core", "compile": False, "model": {"layers": 4, "attention_heads": 4}}
# Ranks of each training, and what its recipe says of it.
TRAININGS: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "torch, one rank": (1, {"parallelism": {"activation_checkpointing": "full"}, "model": {"dropout": 0.1}}),
    "torch, whole": (2, {}),
    "torch, gradients, bf16": (2, {"parallelism": {"sharding": "gradients"}, "precision": "bf16"}),
    "torch, full": (2, {"parallelism": {"sharding": "full"}}),
    "torch, tensor": (2, {"parallelism": {"tensor": 2, "sequence": True}}),
    "megatron, copies": (2, merge(MEGATRON, {"parallelism": {"activation_checkpointing": "full"}})),
    "megatron, tensor": (2, MEGATRON | {"parallelism": {"tensor": 2, "sequence": True}}),
    "megatron, pipeline, bf16": (2, MEGATRON | {"parallelism": {"pipeline": 2}, "precision": "bf16"}),
    "megatron, all": (
        4, MEGATRON | {"parallelism": {"tensor": 2, "pipeline": 2, "virtual_pipeline": 2}, "global_batch_size": 16}
    ),
    "megatron, rope, sharded": (
        2, merge(MEGATRON, {"model": {"positions": "rope"}, "parallelism": {"sharding": "optimizer"}})
    ),
    "megatron, selective": (
        2, merge(MEGATRON, {
            "parallelism": {"activation_checkpointing": "selective"}, "model": {"dropout": 0.2},
            "options": {"transformer_impl": "local", "attention": "unfused"},
        })
    ),
    "deepspeed, whole, bf16": (
        2, DEEPSPEED | {"precision": "bf16", "parallelism": {"activation_checkpointing": "full"}}
    ),
    "deepspeed, full, bf16": (2, DEEPSPEED | {"precision": "bf16", "parallelism": {"sharding": "full"}}),
}  # fmt: skip
# Entry functions that train something else than they are asked for, as a wrong option or a fault would.
SABOTAGE = """
import torch
from pytest_llmbench.workloads.training import matmul
from pytest_llmbench.engines.torch.ranks import decoder, run as ours

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

def no_dropout(context, log):
    _smaller(context, log, dropout=0.0)

def evaluation(context, log):
    ours.build_model = lambda *args: true_build(*args).eval()
    ours.train(context, log)

def not_recomputed(context, log):
    decoder.checkpoint = lambda compute, hidden, **_: compute(hidden)
    ours.train(context, log)

def each_fifth_step(context, log):
    true_update = ours._update
    def update(training, step):
        if step % 5:
            norm = ours.clip_gradients(training.model, 1.0)
            training.optimizer.zero_grad()
            return norm
        return true_update(training, step)
    ours._update = update
    ours.train(context, log)

def copied_norms(context, log):
    def clip(model, longest):
        norm = true_clip(model, longest)
        torch.distributed.broadcast(norm, 0)
        return norm
    ours.clip_gradients = clip
    each_alone(context, log)

def one_batch(context, log):
    ours.batch = lambda tokens, first, count, device: true_batch(tokens, count * context.rank, count, device)
    ours.train(context, log)

def twice(context, log):
    ours.batch = lambda tokens, first, count, device: true_batch(tokens, first // 16 * 8 + first % 8, count, device)
    ours.train(context, log)

def everyone_the_same(context, log):
    ours.batch = lambda tokens, first, count, device: true_batch(tokens, first - 4 * context.rank, count, device)
    ours.train(context, log)

def no_gradient(context, log):
    def clip(model, longest):
        for parameter in model.parameters():
            parameter.grad.zero_()
        return true_clip(model, longest)
    ours.clip_gradients = clip
    ours.train(context, log)
"""


@pytest.fixture(scope="module")
def trained(fork: Fork, make_recipe: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Train all recipes of an engine, when they are first asked for; returns the run's folder."""

    @cache
    def run(engine: str) -> Path:
        folder = tmp_path_factory.mktemp(engine)
        recipes = {name: (ranks, make_recipe(**changes)) for name, (ranks, changes) in TRAININGS.items()}
        ours = {name: training for name, training in recipes.items() if training[1].engine == engine}
        told = several(folder, engine, ours, "cpu")
        for process in fork(folder, ranks=told["ranks_per_node"], **told):
            assert process.wait(300) == 0, (folder / "output-0").read_text()
        return folder

    return run


def judge(folder: Path, recipe: Recipe, ranks: int) -> Problem | None:
    engine, topology = get_engine(recipe.engine), Topology(nodes=1, gpus_per_node=0, cpu_ranks_per_node=ranks)
    evidence = Evidence(
        recipe=recipe, topology=topology, series=read_steps(folder), hosts=(), wall_s=None, gpu=None,
        expected=engine.expected(recipe, topology),
    )  # fmt: skip
    return first_problem(evidence)


@pytest.mark.parametrize("name", TRAININGS)
def test_a_true_training_counts_what_its_recipe_says(
    name: str, trained: Callable[[str], Path], make_recipe: MakeRecipe
) -> None:
    """Layers, parameters, precision, places, sequences and losses agree, however the model is spread."""
    ranks, changes = TRAININGS[name]
    recipe = make_recipe(**changes)
    if find_spec(NEEDS[recipe.engine]) is None:
        pytest.skip(f"needs {recipe.engine}")
    problem = judge(trained(recipe.engine) / name, recipe, ranks)
    assert problem is None, problem


@pytest.mark.parametrize(
    ("entry", "kind", "told"),
    [
        ("plain", None, ""),
        ("no_dropout", "wrong_work", "dropout 0;"),
        ("evaluation", "wrong_work", "dropout 0;"),
        ("not_recomputed", "wrong_work", "activation checkpointing none"),
        ("each_fifth_step", "wrong_work", "made 2 optimizer steps, and its log has 12"),
        ("copied_norms", "ranks_differ", "ended with other weights"),
        ("one_batch", "wrong_work", "was fed 23 micro batches that it had been fed before"),
        ("twice", "wrong_work", "was fed 12 micro batches"),
        ("everyone_the_same", "wrong_work", "was fed the micro batches of rank 0, of another copy"),
        ("half_sequences", "wrong_work", "sequence length 16"),
        ("half_batch", "wrong_work", "micro batch size 1"),
        ("fewer_layers", "wrong_work", "has 1 layers"),
        ("narrower", "wrong_work", "parameters"),
        ("other_precision", "wrong_work", "precision bf16"),
        ("same_data", "wrong_work", "was fed 22 micro batches"),
        ("each_alone", "ranks_differ", "gradient norm"),
        ("no_gradient", "no_training", "gradient norm of 0"),
    ],
)
def test_another_training_is_refused(
    entry: str, kind: str | None, told: str, fork: Fork, make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    """What was trained is counted where it is trained: a recipe that says otherwise does not help."""
    full = {"parallelism": {"activation_checkpointing": "full"}, "model": {"dropout": 0.1}}
    recipe = make_recipe(**full)
    (tmp_path / "sabotage.py").write_text(SABOTAGE)
    for process in fork(tmp_path, f"sabotage:{entry}", config=recipe.model_dump(mode="json")):
        assert process.wait(300) == 0, (tmp_path / "output-0").read_text()
    problem = judge(tmp_path, recipe, 2)
    assert (problem.kind if problem else None) == kind, problem
    assert told in (problem.message if problem else "")
