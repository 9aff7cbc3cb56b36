"""The recipes that come with the package, read once in each process: many tests want them."""

import functools
from collections.abc import Mapping
from typing import get_args

from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.recipe.recipes import Recipe, Scale, load_recipes

SCALES: tuple[Scale, ...] = get_args(Scale)


@functools.cache
def shipped_recipes(scale: Scale = "full") -> Mapping[str, Recipe]:
    """Every recipe of the suites by name, at `scale`."""
    return load_recipes([shipped("recipes")], scale)
