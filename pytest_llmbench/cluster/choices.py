"""The possible runs of a session, each made at its first use: recipes times groups of nodes may be a million."""

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
            name, group = self._parts(key)
            self._made[key] = RunSpec(key=key, recipe=self._recipes[name], group=group)
        return self._made[key]

    def __contains__(self, key: object) -> bool:
        """Whether a key belongs to a possible run, without making that run."""
        try:
            return isinstance(key, str) and self._parts(key)[0] in self._recipes
        except KeyError:
            return False

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

    def _parts(self, key: str) -> tuple[str, int | None]:
        """Recipe and group of a key.

        Raises:
            KeyError: the number of the group is malformed or out of range.
        """
        if self._groups == 1:
            return key, None
        name, _, number = key.rpartition("-group")
        # Only the form that `_keys` writes: `01` is another key.
        if not (number.isdecimal() and number.isascii() and not number.startswith("0")):
            raise KeyError(key)
        if not 1 <= int(number[:9]) <= self._groups or len(number) > 9:
            raise KeyError(key)
        return name, int(number)


class ReplayChoices(Mapping[str, RunSpec]):
    """The runs whose logs can be replayed, by key."""

    def __init__(self, specs: Mapping[str, RunSpec]) -> None:
        """Take the runs by key."""
        self._specs = specs

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
        for spec in self._specs.values():
            by_recipe.setdefault(spec.recipe.name, []).append(spec)
        return by_recipe

    def __getitem__(self, key: str) -> RunSpec:
        """The run of a key."""
        return self._specs[key]

    def __iter__(self) -> Iterator[str]:
        """The keys."""
        return iter(self._specs)

    def __len__(self) -> int:
        """The number of runs."""
        return len(self._specs)
