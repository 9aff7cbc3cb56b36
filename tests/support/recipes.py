"""The smallest recipe that tests of planning and judging build on."""

from collections.abc import Mapping
from typing import Any

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.schema import merge, validate

SMALL: Mapping[str, Any] = {
    "name": "small", "engine": "torch",
    "model": {"layers": 2, "hidden_size": 32, "attention_heads": 2, "vocab_size": 256}, "sequence_length": 32,
    "global_batch_size": 8, "micro_batch_size": 1, "optimizer": {"learning_rate": 1e-3}, "steps": 12,
    "time_limit": "00:05:00",
}  # fmt: skip


def small_recipe(*changes: Mapping[str, Any]) -> Recipe:
    """Build a recipe of 12 steps of 8 sequences of 32 tokens, with some of its values replaced."""
    recipe: Mapping[str, Any] = SMALL
    for change in changes:
        recipe = merge(recipe, change)
    return validate(Recipe, recipe, "small")
