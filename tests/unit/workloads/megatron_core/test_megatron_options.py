"""Options of engine megatron_core: however fast they make it, it trains the same."""

import json
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_llmbench.core.schema import merge
from tests.conftest import made_once
from tests.unit.workloads.conftest import Fork, MakeRecipe

pytestmark = [
    pytest.mark.skipif(find_spec("megatron") is None, reason="needs Megatron-Core: pip install megatron-core"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there: these ranks are CPU ranks"),
]

# One process group trains all of them one after the other, because starting takes longer than training.
VARIANTS = """
import json

import torch
from pytest_llmbench.engines.megatron_core.options import MegatronCoreOptions
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.schema import validate
from pytest_llmbench.engines.megatron_core.ranks import run
from pytest_llmbench.workloads.rank.rendezvous import process_group
from types import SimpleNamespace
from pytest_llmbench.core.unix_clock import UnixClock

def quiet(*_): pass

def train(context, log):
    recipes = {name: validate(Recipe, recipe, name) for name, recipe in context.config.items()}
    run._join(context, next(iter(recipes.values())))
    with process_group(context, 60.0) as device:
        torch.set_num_threads(1)
        from megatron.core import parallel_state
        from pytest_llmbench.engines.megatron_core.ranks import loop, model
        padded = model.padded_vocabulary
        for name, recipe in recipes.items():
            bare = context.world_size == 1 and name in ("off", "few_tokens")
            model.padded_vocabulary = (lambda size, ranks: size) if bare else padded
            options = validate(MegatronCoreOptions, recipe.options, "options")
            training, steps = loop.prepare(recipe, options, device), []
            kept = lambda **measured: steps.append(measured)
            loop._loop(training, SimpleNamespace(
                clock=UnixClock(), may_end_early=False, phase=quiet, training=quiet, step=kept
            ))
            result = {
                "losses": [step["loss"] for step in steps],
                "norms": [step["grad_norm"] for step in steps],
                "padding": beyond(training, recipe.model.vocab_size),
            }
            (context.folder / f"{name}-{context.rank}.json").write_text(json.dumps(result))
            parallel_state.destroy_model_parallel()

def beyond(training, size):
    # The largest number in rows that are no tokens, and how many such rows this rank has.
    named = [pair for chunk in training.chunks for pair in chunk.named_parameters()]
    tables = [table for name, table in named if "word_embeddings" in name or "output_layer" in name]
    rows = [table[max(0, size - first(table)):] for table in tables]
    return [[len(part), float(part.abs().max()) if len(part) else 0.0] for part in rows]

def first(table):
    from megatron.core import parallel_state
    return parallel_state.get_tensor_model_parallel_rank() * len(table)
"""

# 250 tokens are padded to 256 rows, also on two ranks; the second rank has all the padding.
BASE: Mapping[str, Any] = {"engine": "megatron_core", "model": {"layers": 4, "vocab_size": 250}, "steps": 6}
OFF: Mapping[str, Any] = {"transformer_impl": "local", "attention": "unfused"}
FEW = {"vocab_size": 100}
# `off` alone has an embedding without padding, as `few_tokens` on one rank.
OPTIONS: Mapping[str, Mapping[str, Any]] = {"off": {}, "padded": {}, "attention": {"attention": "fastest"}}
# Layouts in which ranks share the padded vocabulary, or each has a copy of it.
LAYOUTS: Mapping[str, Mapping[str, Any]] = {
    "tensor": {"tensor": 2}, "sequence": {"tensor": 2, "sequence": True}, "pipeline": {"pipeline": 2},
    "sharded": {"sharding": "optimizer"},
}  # fmt: skip

Results = dict[str, list[dict[str, Any]]]
Train = Callable[[int, Mapping[str, Mapping[str, Any]]], Results]


@pytest.fixture(scope="module")
def train(make_recipe: MakeRecipe, fork: Fork, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Train variants of the tiny recipe on some ranks; what each rank measured of each."""

    def run(ranks: int, variants: Mapping[str, Mapping[str, Any]]) -> Results:
        recipes = {
            name: make_recipe(**merge(BASE, changes)).model_dump(mode="json") for name, changes in variants.items()
        }

        def train_all(folder: Path) -> None:
            (folder / "variants.py").write_text(VARIANTS)
            for process in fork(folder, "variants:train", ranks=ranks, config=recipes):
                assert process.wait(120) == 0, (folder / "output-0").read_text()

        folder = made_once(tmp_path_factory, f"megatron-options-{ranks}", train_all)
        return {
            name: [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(ranks)]
            for name in variants
        }

    return run


@pytest.fixture(scope="module")
def alone(train: Train) -> Results:
    variants: dict[str, Any] = {name: {"options": merge(OFF, changes)} for name, changes in OPTIONS.items()}
    return train(1, {**variants, "default": {}, "few_tokens": {"options": OFF, "model": FEW}})


@pytest.fixture(scope="module")
def spread(train: Train) -> Results:
    """The default options on two ranks, in each layout."""
    variants: dict[str, dict[str, Any]] = {name: {"parallelism": parallelism} for name, parallelism in LAYOUTS.items()}
    variants["bf16"] = merge(variants["sequence"], {"precision": "bf16"})
    variants["few_tokens"] = merge(variants["tensor"], {"model": FEW})
    return train(2, variants)


@pytest.mark.parametrize("option", [*OPTIONS, "default"])
def test_no_option_changes_the_training(option: str, alone: Results) -> None:
    """Losses and gradient norms of all steps are those of Megatron-Core as it is, but for rounding."""
    assert_same(alone[option][0], alone["off"][0])


def assert_same(measured: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Equal but for the order in which fp32 numbers were added."""
    assert len(measured["losses"]) == 6
    assert measured["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert measured["norms"] == pytest.approx(expected["norms"], rel=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_default_options_train_the_same_in_every_layout(layout: str, alone: Results, spread: Results) -> None:
    for rank in spread[layout]:
        assert_same(rank, alone["off"][0])


def test_a_rank_may_have_no_token_at_all(alone: Results, spread: Results) -> None:
    """Of 100 tokens on two ranks, padded to 128 each, the second has none; the losses are still those of one rank."""
    for rank in spread["few_tokens"]:
        assert_same(rank, alone["few_tokens"][0])
    assert [rank["padding"][0][0] for rank in spread["few_tokens"]] == [28, 128]


def test_half_precision_follows_single_precision(alone: Results, spread: Results) -> None:
    """In bf16 the loss stays within 2 in 1000 of that in fp32, and is not the same."""
    losses = spread["bf16"][0]["losses"]
    assert losses == pytest.approx(alone["off"][0]["losses"], rel=2e-3)
    assert losses != alone["off"][0]["losses"]


def test_rows_that_are_no_tokens_stay_zero(alone: Results, spread: Results) -> None:
    """Neither the loss nor weight decay changes what the vocabulary was padded with."""
    assert alone["off"][0]["padding"] == [[0, 0.0]]
    assert alone["padded"][0]["padding"] == alone["default"][0]["padding"] == [[6, 0.0]]
    assert [rank["padding"] for rank in spread["sequence"]] == [[[0, 0.0]], [[6, 0.0]]]
    assert [rank["padding"] for rank in spread["pipeline"]] == [[[6, 0.0]], [[6, 0.0]]]
