"""Recipes and references become test cases."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.recipes import Recipe

MARKER = (
    "recipe(*names): run this test for these recipes only; without it, for every recipe there is. "
    "Provided by pytest-llmbench."
)


def parametrize(metafunc: pytest.Metafunc, recipes: Mapping[str, Recipe]) -> None:
    """Give a test that asks for `run` one case per recipe, and with `reference` one per reference of it.

    Raises:
        ConfigError: the marker names an unknown recipe, or `reference` is asked for without `run`.
    """
    if "run" not in metafunc.fixturenames:
        raise ConfigError(f"{metafunc.function.__name__}: the fixture `reference` needs `run` beside it")
    chosen = [recipes[name] for name in _names(metafunc, recipes)]
    if "reference" in metafunc.fixturenames:
        pairs = [(recipe, reference) for recipe in chosen for reference in recipe.references]
        metafunc.parametrize(
            ("run", "reference"),
            [(recipe.name, reference) for recipe, reference in pairs],
            indirect=True,
            ids=[f"{recipe.name}-{reference.name}" for recipe, reference in pairs],
        )
    else:
        names = [recipe.name for recipe in chosen]
        metafunc.parametrize("run", names, indirect=True, ids=names)


def _names(metafunc: pytest.Metafunc, recipes: Mapping[str, Recipe]) -> list[str]:
    marked = [name for marker in metafunc.definition.iter_markers("recipe") for name in marker.args]
    for name in marked:
        if name not in recipes:
            raise ConfigError(f"{metafunc.function.__name__}: {unknown('recipe', name, recipes)}")
    return list(dict.fromkeys(marked)) or list(recipes)


def recipe_names(items: list[pytest.Item]) -> list[str]:
    """The recipes that collected tests wait for, in their order."""
    return [name for item in items if (name := recipe_of(item)) is not None]


def recipe_of(item: pytest.Item) -> str | None:
    """The recipe a test waits for, None for a test of another kind."""
    callspec = getattr(item, "callspec", None)
    name = callspec.params.get("run") if callspec else None
    return name if isinstance(name, str) and "run" in getattr(item, "fixturenames", ()) else None
