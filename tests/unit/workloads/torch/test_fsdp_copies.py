"""FSDP's collectives by copies: the same training, over memory that processes share in place of GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.workloads.conftest import Fork, MakeRecipe

RANK = """
import json

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.schema import validate
from pytest_llmbench.engines.torch.options import TorchOptions
from pytest_llmbench.engines.torch.ranks import parallel
from pytest_llmbench.engines.torch.ranks.parallel import build_model, clip_gradients, gradient_sync, use_copies
from pytest_llmbench.workloads.rank.rendezvous import process_group
from pytest_llmbench.workloads.training.tokens import batch, open_tokens
from tests.unit.workloads.mapped_memory import Mapped

STEPS = 4
parallel._UNIT = 20_000  # a block has 12,704 parameters

def train(recipe, device, context, share):
    model = build_model(recipe, TorchOptions(), device, context.world_size, 1)
    if share:
        modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
        use_copies(modules, dist.group.WORLD, share)
    optimizer, tokens = torch.optim.AdamW(model.parameters(), lr=1e-2), open_tokens(recipe)
    told = []
    for step in range(STEPS):
        for micro_batch in range(2):
            with gradient_sync(model, enabled=micro_batch == 1, keep=True):
                first = (2 * step + micro_batch) * context.world_size + context.rank
                loss = model(*batch(tokens, first, 1, device))
                loss.backward()
        norm = clip_gradients(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        told.append([loss.item(), norm.item()])
    return told

def main(context, log):
    recipe = validate(Recipe, context.config, "recipe")
    told = {}
    with process_group(context) as device:
        told["gloo"] = train(recipe, device, context, None)
        for name, late, meets in [("copies", None, True), ("late", 1, True), ("unmet", 1, False)]:
            Mapped.folder, Mapped.late, Mapped.meets = context.folder / name, late, meets
            Mapped.folder.mkdir(exist_ok=True)
            Mapped.met = 0
            told[name] = train(recipe, device, context, Mapped)
    told["meetings"] = Mapped.met
    (context.folder / f"told-{context.rank}.json").write_text(json.dumps(told))
"""
RANKS = 3
LAYERS = {"layers": 3}

Told = list[dict[str, Any]]


@pytest.fixture(scope="module")
def told(make_recipe: MakeRecipe, fork: Fork, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What each rank trained: loss and gradient norm of each step, by how they communicated."""
    folder: Path = tmp_path_factory.mktemp("copies")
    (folder / "copying.py").write_text(RANK)
    recipe: dict[str, Any] = make_recipe(parallelism={"sharding": "gradients"}, model=LAYERS).model_dump(mode="json")
    for process in fork(folder, "copying:main", ranks=RANKS, config=recipe):
        assert process.wait(200) == 0, (folder / "output-0").read_text()
    return [json.loads((folder / f"told-{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("way", ["copies", "late"])
def test_copies_train_as_gloo_does(told: Told, way: str) -> None:
    """Over several steps and micro batches; sums are in another order, and a rank that is late is waited for."""
    for rank in told:
        for copied, summed in zip(rank[way], rank["gloo"], strict=True):
            assert copied == pytest.approx(summed, rel=1e-5)


def test_ranks_meet_twice_a_step_and_unit(told: Told) -> None:
    """To gather and to reduce: what is whole stays so over the micro batches of a step."""
    steps, units = len(told[0]["copies"]), 3  # two blocks, the third, and what is outside them
    assert [rank["meetings"] for rank in told] == [2 * steps * units] * RANKS


def test_without_meeting_a_late_rank_is_not_waited_for(told: Told) -> None:
    """So that the test above would have seen it."""
    assert any(rank["unmet"] != pytest.approx(rank["gloo"], rel=1e-3) for rank in map(_flat, told))


def _flat(rank: dict[str, Any]) -> dict[str, list[float]]:
    return {way: [value for step in rank[way] for value in step] for way in ("gloo", "unmet")}
