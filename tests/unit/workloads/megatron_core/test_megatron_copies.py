"""Parts of a sequence by copies: the same training, over memory that processes share in place of GPUs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from tests.unit.workloads.conftest import Fork, MakeRecipe

pytestmark = [
    pytest.mark.skipif(find_spec("megatron") is None, reason="needs Megatron-Core: pip install megatron-core"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there: these ranks are CPU ranks"),
]

RANK = """
import json
from functools import partial

import torch
from pytest_llmbench.engines.megatron_core.options import MegatronCoreOptions
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.schema import validate
from pytest_llmbench.engines.megatron_core.ranks import copies, run
from pytest_llmbench.workloads.rank.rendezvous import process_group
from tests.unit.workloads.kept_steps import Kept
from tests.unit.workloads.mapped_memory import Mapped

def train(context, log):
    recipe = validate(Recipe, context.config, "recipe")
    run._join(context, recipe)
    told = {}
    with process_group(context, 60.0) as device:
        torch.set_num_threads(1)
        from megatron.core import parallel_state
        from pytest_llmbench.engines.megatron_core.ranks import loop, model, sending
        # Small products fill one multiprocessor's tiles as badly in parts as whole.
        copies._TILE = 1, 1
        split = model.split
        for name, by_copies, in_parts, late, meets in [
            ("gloo", False, True, None, True), ("in_parts", True, True, None, True), ("whole", True, False, None, True),
            ("late", True, True, 1, True), ("unmet", True, True, 1, False),
        ]:
            copies._WORTH = 1.1 if in_parts else 0.0
            Mapped.folder, Mapped.late, Mapped.meets, Mapped.met = context.folder / name, late, meets, 0
            Mapped.folder.mkdir(exist_ok=True)
            sending.Copies = partial(copies.Copies, share=Mapped)
            model.split = lambda **how: split(**{**how, "copies": by_copies})
            kept = Kept()
            loop._loop(loop.prepare(recipe, MegatronCoreOptions(), device), kept)
            steps = [[step["loss"], step["grad_norm"]] for step in kept.steps]
            told[name] = {"steps": steps, "met": Mapped.met}
            parallel_state.destroy_model_parallel()
    (context.folder / f"told-{context.rank}.json").write_text(json.dumps(told))
"""
LAYERS, STEPS, MICRO_BATCHES, RANKS = 2, 6, 2, 4
RECIPE: Mapping[str, Any] = {
    "engine": "megatron_core",
    "model": {"layers": LAYERS, "attention_heads": 4},
    "parallelism": {"tensor": RANKS, "sequence": True},
    "global_batch_size": 2 * MICRO_BATCHES,
    "micro_batch_size": 2,
    "compile": False,
    "steps": STEPS,
}

Told = list[dict[str, Any]]


@pytest.fixture(scope="module")
def told(make_recipe: MakeRecipe, fork: Fork, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What each rank trained: loss and gradient norm of each step, by how they sent the parts."""
    folder = tmp_path_factory.mktemp("copies")
    (folder / "copying.py").write_text(RANK)
    recipe = make_recipe(**RECIPE).model_dump(mode="json")
    for process in fork(folder, "copying:train", ranks=RANKS, config=recipe):
        assert process.wait(200) == 0, (folder / "output-0").read_text()
    return [json.loads((folder / f"told-{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("way", ["in_parts", "whole", "late"])
def test_copies_train_as_gloo_does(told: Told, way: str) -> None:
    """Over several steps and micro batches; sums are in another order, and a rank that is late is waited for."""
    for rank in told:
        assert len(rank["gloo"]["steps"]) == STEPS
        for copied, summed in zip(rank[way]["steps"], rank["gloo"]["steps"], strict=True):
            assert copied == pytest.approx(summed, rel=1e-4)


def test_every_part_of_a_sequence_is_sent_by_copies(told: Told) -> None:
    """Four times in a layer's forward pass and six in its backward pass; one and two around the output's product."""
    sent = STEPS * MICRO_BATCHES * (10 * LAYERS + 3)
    assert [rank["in_parts"]["met"] for rank in told] == [sent] * RANKS
    assert [rank["gloo"]["met"] for rank in told] == [0] * RANKS


def test_without_meeting_a_late_rank_is_not_waited_for(told: Told) -> None:
    """So that the test above would have seen it."""
    assert any(rank["unmet"]["steps"][-1] != pytest.approx(rank["gloo"]["steps"][-1], rel=1e-3) for rank in told)
