"""Recipes and references become test cases."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.recipes import Recipe
from pytest_llmbench.plugin import fixtures

MARKER = (
    "recipe(*names): run this test for these recipes only; without it, for every recipe there is. "
    "Provided by pytest-llmbench."
)


class RecipeName(str):
    """The parameter of our `run`: a parameter of somebody else's fixture of that name is no recipe."""

    __slots__ = ()


def parametrize(metafunc: pytest.Metafunc, recipes: Mapping[str, Recipe]) -> None:
    """Give a test that asks for `run` one case per recipe, and with `reference` one per reference of it.

    Raises:
        ConfigError: the marker names an unknown recipe, or `reference` is asked for where `run` is another fixture.
    """
    if not is_ours(metafunc, "run"):
        raise ConfigError(
            f"{metafunc.function.__name__}: the fixture `reference` of pytest-llmbench needs its `run`, and here "
            "another fixture has that name: rename that one"
        )
    chosen = [recipes[name] for name in _names(metafunc, recipes)]
    if is_ours(metafunc, "reference"):
        pairs = [(recipe, reference) for recipe in chosen for reference in recipe.references]
        metafunc.parametrize(
            ("run", "reference"),
            [(RecipeName(recipe.name), reference) for recipe, reference in pairs],
            indirect=True,
            ids=[f"{recipe.name}-{reference.name}" for recipe, reference in pairs],
        )
    else:
        names = [recipe.name for recipe in chosen]
        metafunc.parametrize("run", [RecipeName(name) for name in names], indirect=True, ids=names)


def is_ours(metafunc: pytest.Metafunc, name: str) -> bool:
    """Whether a test uses our fixture of that name: as it is, or through one that overrides it and asks for it.

    `run` and `reference` are words that other people's fixtures and parameters have for names, too.
    """
    if name not in metafunc.fixturenames:
        return False
    # pytest has no public way to what a fixture name stands for in a test.
    for definition in reversed(metafunc._arg2fixturedefs.get(name, ())):  # noqa: SLF001
        if definition.func.__module__ == fixtures.__name__:
            return True
        if name not in definition.argnames:
            return False
    return False


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
    return name if isinstance(name, RecipeName) else None
