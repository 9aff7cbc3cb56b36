"""The runs there could be, made when they are asked for: hundreds of recipes on thousands of groups are a million."""

from collections.abc import Iterator, Mapping
from functools import cached_property

from pytest_llmbench.cluster.runs import RunSpec
from pytest_llmbench.core.recipe.recipes import Recipe


class RunChoices(Mapping[str, RunSpec]):
    """Every run there could be, by key: each recipe once, or once on each group of nodes."""

    def __init__(self, recipes: Mapping[str, Recipe], groups: int) -> None:
        """Take the recipes by name, and the number of groups; with one, the nodes are not split."""
        self._recipes = recipes
        self._groups = groups
        self._made: dict[str, RunSpec] = {}

    def of(self, recipe: str) -> list[RunSpec]:
        """The runs of one recipe, in the order of the groups; none of an unknown one."""
        return [self[key] for key in self._keys(recipe)] if recipe in self._recipes else []

    @property
    def names(self) -> list[str]:
        """The recipes that have a run, by name."""
        return list(self._recipes)

    def __getitem__(self, key: str) -> RunSpec:
        """Make a run, once."""
        if key not in self._made:
            name, group = self._parts(key)
            self._made[key] = RunSpec(key=key, recipe=self._recipes[name], group=group)
        return self._made[key]

    def __contains__(self, key: object) -> bool:
        """Whether there could be such a run, without making it."""
        try:
            return isinstance(key, str) and self._parts(key)[0] in self._recipes
        except KeyError:
            return False

    def __iter__(self) -> Iterator[str]:
        """The keys, recipe by recipe."""
        for name in self._recipes:
            yield from self._keys(name)

    def __len__(self) -> int:
        """How many runs there could be."""
        return len(self._recipes) * self._groups

    def _keys(self, name: str) -> Iterator[str]:
        if self._groups == 1:
            yield name
        else:
            yield from (f"{name}-group{group}" for group in range(1, self._groups + 1))

    def _parts(self, key: str) -> tuple[str, int | None]:
        """Recipe and group of a key.

        Raises:
            KeyError: no group has such a number.
        """
        if self._groups == 1:
            return key, None
        name, _, number = key.rpartition("-group")
        # Only as it is written by us: `01` is another text.
        if not (number.isdecimal() and number.isascii() and not number.startswith("0")):
            raise KeyError(key)
        if not 1 <= int(number[:9]) <= self._groups or len(number) > 9:
            raise KeyError(key)
        return name, int(number)


class ReplayChoices(Mapping[str, RunSpec]):
    """The runs whose logs are there to be replayed, by key."""

    def __init__(self, specs: Mapping[str, RunSpec]) -> None:
        """Take them as they were found."""
        self._specs = specs

    def of(self, recipe: str) -> list[RunSpec]:
        """The runs of one recipe, repeats among them; none of one without logs."""
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
        """How many there are."""
        return len(self._specs)
