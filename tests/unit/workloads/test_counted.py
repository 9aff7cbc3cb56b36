"""What ranks count of their own training is what the recipe says, in every layout; another training has no number."""

import json
import shutil
from collections.abc import Callable, Mapping
from functools import cache, partial
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
from tests.conftest import made_once
from tests.support.training.same_loss import several

from .conftest import Fork, MakeRecipe

NEEDS = {"torch": "torch", "megatron_core": "megatron", "deepspeed": "deepspeed"}
DEEPSPEED = {"engine": "deepspeed", "compile": False}
MEGATRON = {"engine": "megatron_core", "compile": False, "model": {"layers": 4, "attention_heads": 4}}
FEW: Mapping[str, Any] = {"steps": 4, "warm_up": {"rule": "skip_first", "steps": 1}}
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
true_batch, true_build, true_clip, true_update = ours.batch, ours.build_model, ours.clip_gradients, ours._update
autocast = torch.autocast

def change(owner=ours, **made):
    def train(context, log):
        vars(owner).update(made)
        ours.train(context, log)
    return train

def shaped(**shape):
    def build(recipe, *args):
        return true_build(recipe.model_copy(update={"model": recipe.model.model_copy(update=shape)}), *args)
    return change(build_model=build)

def drawn(place):
    def batch(tokens, first, count, device):
        return true_batch(tokens, place(first, count, torch.distributed.get_rank()), count, device)
    return change(batch=batch)

def half_of_each(*args):
    inputs, targets = true_batch(*args)
    half = inputs.shape[1] // 2
    return inputs[:, :half], targets[:, :half]

def update(training, step):
    if step % 5:
        norm = ours.clip_gradients(training.model, 1.0)
        training.optimizer.zero_grad()
        return norm
    return true_update(training, step)

def clip_as_rank_0(model, longest):
    norm = true_clip(model, longest)
    torch.distributed.broadcast(norm, 0)
    return norm

def clip_nothing(model, longest):
    for parameter in model.parameters():
        parameter.grad.zero_()
    return true_clip(model, longest)

def build_alone(recipe, options, device, world_size, seed):
    return true_build(recipe, options, device, 1, seed)

plain = change()
half_sequences = change(batch=half_of_each)
half_batch = change(batch=lambda *args: tuple(each[: len(each) // 2] for each in true_batch(*args)))
fewer_layers, narrower, no_dropout = shaped(layers=1), shaped(hidden_size=16), shaped(dropout=0.0)
other_precision = change(
    torch, autocast=lambda device, dtype=None, enabled=True: autocast(device, torch.bfloat16, enabled=dtype is not None)
)
same_data = drawn(lambda first, count, rank: first % 4)
one_batch = drawn(lambda first, count, rank: count * rank)
twice = drawn(lambda first, count, rank: first // 16 * 8 + first % 8)
everyone_the_same = drawn(lambda first, count, rank: first - 4 * rank)
each_alone = change(build_model=build_alone)
copied_norms = change(build_model=build_alone, clip_gradients=clip_as_rank_0)
evaluation = change(build_model=lambda *args: true_build(*args).eval())
not_recomputed = change(decoder, checkpoint=lambda compute, hidden, **_: compute(hidden))
each_fifth_step = change(_update=update)
no_gradient = change(clip_gradients=clip_nothing)
"""


@pytest.fixture(scope="module")
def trained(fork: Fork, make_recipe: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Train all recipes of an engine, when they are first asked for; returns the run's folder."""

    def train(engine: str, folder: Path) -> None:
        recipes = {name: (ranks, make_recipe(**FEW, **changes)) for name, (ranks, changes) in TRAININGS.items()}
        ours = {name: training for name, training in recipes.items() if training[1].engine == engine}
        told = several(folder, engine, ours, "cpu")
        for process in fork(folder, ranks=told["ranks_per_node"], **told):
            assert process.wait(300) == 0, (folder / "output-0").read_text()

    return cache(lambda engine: made_once(tmp_path_factory, f"counted-{engine}", partial(train, engine)))


def judge(folder: Path, recipe: Recipe, ranks: int) -> Problem | None:
    engine, topology = get_engine(recipe.engine), Topology(nodes=1, gpus_per_node=0, cpu_ranks_per_node=ranks)
    evidence = Evidence(
        recipe=recipe, topology=topology, series=read_steps(folder), hosts=(), wall_s=None, gpu=None,
        expected=engine.expected(recipe, topology),
    )  # fmt: skip
    return first_problem(evidence)


@pytest.mark.parametrize("name", TRAININGS)
def test_a_true_training_counts_its_recipe(name: str, trained: Callable[[str], Path], make_recipe: MakeRecipe) -> None:
    """Layers, parameters, precision, places, sequences and losses agree, however the model is spread."""
    ranks, changes = TRAININGS[name]
    recipe = make_recipe(**FEW, **changes)
    if find_spec(NEEDS[recipe.engine]) is None:
        pytest.skip(f"needs {recipe.engine}")
    problem = judge(trained(recipe.engine) / name, recipe, ranks)
    assert problem is None, problem


@pytest.mark.parametrize(("event", "key", "change", "told"), [
    ("step", "loss", lambda loss: 1.01 * loss, "have other losses"),
    ("training", "batches", lambda _: "00", "were fed other micro batches"),
    ("training", "copy_rank", lambda _: 1, "the recipe has each once of tensor 2"),
    ("training", "tensor_rank", lambda _: 0, "have the same losses of all steps"),
])  # fmt: skip
def test_ranks_that_share_matrices_have_losses_and_tokens_in_common(
    event: str, key: str, change: Callable[[Any], Any], told: str, trained: Callable[[str], Path],
    make_recipe: MakeRecipe, tmp_path: Path,
) -> None:  # fmt: skip
    name = "torch, tensor"
    shutil.copytree(trained("torch") / name, tmp_path, dirs_exist_ok=True)
    log = tmp_path / "steps/rank-00001.jsonl"
    events = [json.loads(line) for line in log.read_text().splitlines()]
    changed = [one | {key: change(one[key])} if one["event"] == event else one for one in events]
    log.write_text("".join(json.dumps(one) + "\n" for one in changed))
    ranks, changes = TRAININGS[name]
    problem = judge(tmp_path, make_recipe(**FEW, **changes), ranks)
    assert told in (problem.message if problem else "")


@pytest.mark.parametrize(("entry", "kind", "told"), [
    ("plain", None, ""), ("no_dropout", "wrong_work", "dropout 0;"), ("evaluation", "wrong_work", "dropout 0;"),
    ("not_recomputed", "wrong_work", "activation checkpointing none"),
    ("each_fifth_step", "wrong_work", "made 1 optimizer steps, and its log has 6"),
    ("copied_norms", "ranks_differ", "ended with other weights"),
    ("one_batch", "wrong_work", "was fed 11 micro batches that it had been fed before"),
    ("twice", "wrong_work", "was fed 6 micro batches"),
    ("everyone_the_same", "wrong_work", "was fed the micro batches of rank 0, of another copy"),
    ("half_sequences", "wrong_work", "sequence length 16"), ("half_batch", "wrong_work", "micro batch size 1"),
    ("fewer_layers", "wrong_work", "has 1 layers"), ("narrower", "wrong_work", "parameters"),
    ("other_precision", "wrong_work", "precision bf16"), ("same_data", "wrong_work", "was fed 10 micro batches"),
    ("each_alone", "ranks_differ", "gradient norm"), ("no_gradient", "no_training", "gradient norm of 0"),
])  # fmt: skip
def test_another_training_is_refused(
    entry: str, kind: str | None, told: str, fork: Fork, make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    """What was trained is counted where it is trained: a recipe that says otherwise does not help."""
    full = {"parallelism": {"activation_checkpointing": "full"}, "model": {"dropout": 0.1}}
    recipe = make_recipe(**full, steps=6, warm_up={"rule": "skip_first", "steps": 1})
    (tmp_path / "sabotage.py").write_text(SABOTAGE)
    for process in fork(tmp_path, f"sabotage:{entry}", config=recipe.model_dump(mode="json")):
        assert process.wait(300) == 0, (tmp_path / "output-0").read_text()
    problem = judge(tmp_path, recipe, 2)
    assert (problem.kind if problem else None) == kind, problem
    assert told in (problem.message if problem else "")
