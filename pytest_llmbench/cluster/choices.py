"""The possible runs of a session, each made at its first use: recipes times groups of nodes may be a million."""

import re
from collections.abc import Iterator, Mapping
from functools import cached_property

from pytest_llmbench.cluster.runs import RunSpec
from pytest_llmbench.core.recipe.recipes import Recipe


class RunChoices(Mapping[str, RunSpec]):
    """Every possible run by key: each recipe once, or once on each group of nodes."""

    def __init__(self, recipes: Mapping[str, Recipe], groups: int) -> None:
        """Take the recipes by name, and the number of groups of nodes; 1 stands for all nodes together."""
        self._recipes = recipes
        self._groups = groups
        self._made: dict[str, RunSpec] = {}

    def of(self, recipe: str) -> list[RunSpec]:
        """The runs of one recipe, in the order of the groups; empty for an unknown recipe."""
        return [self[key] for key in self._keys(recipe)] if recipe in self._recipes else []

    @property
    def names(self) -> list[str]:
        """The recipes that have a run, by name."""
        return list(self._recipes)

    def __getitem__(self, key: str) -> RunSpec:
        """The run of a key, made at its first use."""
        if key not in self._made:
            name, group = key, None
            if self._groups > 1:
                name, _, number = key.rpartition("-group")
                # Only the form that `_keys` writes: `01` is another key.
                if not re.fullmatch(r"[1-9]\d{0,8}", number, re.ASCII) or int(number) > self._groups:
                    raise KeyError(key)
                group = int(number)
            self._made[key] = RunSpec(key=key, recipe=self._recipes[name], group=group)
        return self._made[key]

    def __iter__(self) -> Iterator[str]:
        """The keys, recipe by recipe."""
        for name in self._recipes:
            yield from self._keys(name)

    def __len__(self) -> int:
        """The number of possible runs."""
        return len(self._recipes) * self._groups

    def _keys(self, name: str) -> Iterator[str]:
        if self._groups == 1:
            yield name
        else:
            yield from (f"{name}-group{group}" for group in range(1, self._groups + 1))


class ReplayChoices(dict[str, RunSpec]):
    """The runs whose logs can be replayed, by key."""

    def of(self, recipe: str) -> list[RunSpec]:
        """The runs of one recipe with their repeats; empty for a recipe without logs."""
        return self._runs_by_recipe.get(recipe, [])

    @property
    def names(self) -> list[str]:
        """The recipes that have logs, by name."""
        return list(self._runs_by_recipe)

    @cached_property
    def _runs_by_recipe(self) -> dict[str, list[RunSpec]]:
        by_recipe: dict[str, list[RunSpec]] = {}
        for spec in self.values():
            by_recipe.setdefault(spec.recipe.name, []).append(spec)
        return by_recipe
