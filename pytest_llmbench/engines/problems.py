"""Reasons why a recipe cannot run on a topology, shared by several engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from pytest_llmbench.core.recipe.recipes import Precision, Recipe
from pytest_llmbench.core.recipe.topology import Topology


def batch_problem(recipe: Recipe, topology: Topology) -> Iterator[str]:
    """Yield why the global batch does not divide into micro batches on this many copies of the model."""
    copies = max(1, topology.world_size // recipe.parallelism.model_parallel_size)
    if recipe.samples_per_step % (copies * recipe.micro_batch_size) == 0:
        return
    who = "ranks" if recipe.parallelism.model_parallel_size == 1 else "copies of the model"
    yield (
        f"recipe {recipe.name}: a global batch of {recipe.samples_per_step} does not divide into "
        f"micro batches of {recipe.micro_batch_size} on {copies} {who} ({topology}); it does on "
        f"{_fitting(recipe, who)}"
    )


def _fitting(recipe: Recipe, who: str, most: int = 1024) -> str:
    micro_batches, rest = divmod(recipe.samples_per_step, recipe.micro_batch_size)
    sizes = [] if rest else [size for size in range(1, most + 1) if micro_batches % size == 0]
    return f"{', '.join(map(str, sizes))} {who}" if sizes else f"no number of {who}: change a batch size"


def precision_problem(
    recipe: Recipe, topology: Topology, supported: tuple[str, ...] = get_args(Precision)
) -> Iterator[str]:
    """Yield why this engine does not have the precision on these devices."""
    if recipe.precision not in supported:
        yield f"recipe {recipe.name}: precision {recipe.precision} is not one of {', '.join(supported)}"
    elif recipe.precision != "fp32" and topology.device == "cpu":
        yield (
            f"recipe {recipe.name} is {recipe.precision} on GPUs; this run has none: pass --scale smoke for the tiny "
            "CPU variant, or --gpus-per-node"
        )
