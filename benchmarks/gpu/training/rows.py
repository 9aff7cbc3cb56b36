"""What the benchmark of engines runs: rows of its table, variants of each, and how each becomes a task of its ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.recipe.environments import Environment
from pytest_llmbench.core.recipe.recipes import Recipe, Scale, load_recipes
from pytest_llmbench.core.recipe.topology import Device, Topology
from pytest_llmbench.core.schema import merge, validate
from pytest_llmbench.engines.base import Engine, Place, RankTask, get_engine

# What a user would pick in place of our engines: entries called as theirs are.
ALTERNATIVES: Mapping[str, str] = {
    "plain_torch": "benchmarks.gpu.training.alternatives.plain_torch:train",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One cell of the table.

    Attributes:
        variant: the variant of the row's recipe; with `:LABEL` behind it, where options of its own tell it apart.
        gpus: ranks, each with a GPU; on the CPU ranks alone.
        recipe: what they train, told how many they are.
    """

    row: str
    variant: str
    gpus: int
    recipe: Recipe
    topology: Topology

    def __str__(self) -> str:
        return f"{self.row} {self.variant} {self.gpus}"

    @property
    def ours(self) -> bool:
        """Whether an engine of this package trains it."""
        return self.recipe.engine not in ALTERNATIVES

    @property
    def engine(self) -> Engine:
        """Our engine of that name; torch for an alternative, whose step logs are of the same kind."""
        return get_engine(self.recipe.engine if self.ours else "torch")

    def task(self, folder: Path) -> RankTask:
        """What every rank runs.

        Raises:
            ConfigError: the engine is not installed, or cannot run this recipe.
        """
        if not self.ours:
            return RankTask(entry=ALTERNATIVES[self.recipe.engine], config=self.recipe.model_dump(mode="json"))
        missing = self.engine.missing()
        problems = [missing] if missing else list(self.engine.problems(self.recipe, self.topology))
        if problems:
            raise ConfigError("\n".join(problems))
        place = Place(folder=folder, environment=Environment(), slurm=False, time_limit_min=self.recipe.time_limit)
        work = self.engine.work(self.recipe, self.topology, place)
        if not isinstance(work, RankTask):
            raise ConfigError(f"engine {self.recipe.engine} is a command of its own; this benchmark starts ranks only")
        return work


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What was asked for on the command line.

    Attributes:
        options: values by variant, and by key of the recipe or of its `options`.
    """

    rows: Sequence[str]
    variants: Sequence[str]
    gpus: Sequence[int]
    steps: int
    scale: Scale
    device: Device
    options: Mapping[str, Mapping[str, Any]]

    def cases(self) -> Iterator[Case]:
        """Yield the cells, the variants of a row one after the other; a variant that a row does not have has none.

        Raises:
            ConfigError: a row, a variant or an option is not known.
        """
        recipes = {tuple(name.rsplit("-", 1)): recipe for name, recipe in load(self.scale).items()}
        _check("row", self.rows, sorted({row for row, _ in recipes}))
        _check("variant", map(_plain, self.variants), sorted({variant for _, variant in recipes}))
        _check("variant in --option", self.options, self.variants)
        for gpus in self.gpus:
            for row in self.rows:
                of_row = {variant: recipes.get((row, _plain(variant))) for variant in self.variants}
                found = {variant: recipe for variant, recipe in of_row.items() if recipe is not None}
                for variant, recipe in found.items():
                    if _divides(recipe, gpus):
                        yield self._case(row, variant, gpus, recipe)

    def _case(self, row: str, variant: str, gpus: int, recipe: Recipe) -> Case:
        over: dict[str, Any] = {"steps": self.steps}
        plain = recipe.model_dump(mode="json")
        if _shared_by_all(recipe):
            over["parallelism"] = {"tensor": gpus}
            del plain["options"]["tensor"]  # no engine knows it
        for key, value in self.options.get(variant, {}).items():
            over = merge(over, _nested(key, value))
        data = merge(plain, over)
        told = validate(Recipe, data, f"{row} {variant}")
        topology = Topology(nodes=1, gpus_per_node=gpus if self.device == "cuda" else 0, cpu_ranks_per_node=gpus)
        return Case(row=row, variant=variant, gpus=gpus, recipe=told.on(topology), topology=topology)


def load(scale: Scale) -> dict[str, Recipe]:
    """Every recipe of `rows.yaml`, by `ROW-VARIANT`."""
    return load_recipes([Path(__file__).parent], scale)


def parse_options(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read `VARIANT.KEY=VALUE`, the value as YAML has it, into values by variant and key.

    Raises:
        ConfigError: one is not of that form.
    """
    found: dict[str, dict[str, Any]] = {}
    for text in given:
        name, equals, value = text.partition("=")
        variant, dot, key = name.partition(".")
        if not (variant and dot and key and equals):
            raise ConfigError(f"--option {text!r}: write VARIANT.KEY=VALUE, such as megatron_core.attention=cudnn")
        found.setdefault(variant, {})[key] = yaml.safe_load(value)
    return found


def _shared_by_all(recipe: Recipe) -> bool:
    """Whether all GPUs of a launch share each layer."""
    return recipe.options.get("tensor") == "all"


def _divides(recipe: Recipe, gpus: int) -> bool:
    """Whether so many GPUs are whole copies of the model; alone there is nobody to share a layer with."""
    return gpus > 1 if _shared_by_all(recipe) else gpus % recipe.parallelism.tensor == 0


def _nested(key: str, value: Any) -> dict[str, Any]:
    """`a.b` of a recipe as mappings of mappings; what is no key of recipes is one of their `options`."""
    first, dot, rest = key.partition(".")
    if first not in Recipe.model_fields:
        return {"options": {key: value}}
    return {first: _deep(rest, value) if dot else value}


def _deep(key: str, value: Any) -> Any:
    first, dot, rest = key.partition(".")
    return {first: _deep(rest, value) if dot else value}


def _plain(variant: str) -> str:
    return variant.partition(":")[0]


def _check(what: str, given: Iterator[str] | Sequence[str] | Mapping[str, Any], legal: Sequence[str]) -> None:
    for name in given:
        if name not in legal:
            raise ConfigError(unknown(what, name, legal))
