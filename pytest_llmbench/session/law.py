"""The law: today's recipes, with which the recipe in a run's record is compared."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.quantity import counted
from pytest_llmbench.core.recipe.recipes import Recipe, Scale
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.engines.base import get_engine, options_of

# Fields of a recipe that may differ, and the reason. Any other one, of today or of a later version, may not.
MAY_DIFFER: Mapping[str, str] = {
    "description": "words for people",
    "source": "words for people",
    "references": "thresholds are today's",
    "statistic_of_record": "the choice of the judged number is today's",
    "prepare": "decides whether a run begins, and is looked at before it",
    "time_limit": "belongs to the schedule, as --time does; of a run that ends at its time limit, it may not differ",
    "deadlines": "a run that kept a shorter deadline keeps today's; a longer one may not differ",
}
_MOST_SHOWN = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Law:
    """The recipes of today by name and scale, and whether the one in the record decides all the same.

    `unread` is the reason if this folder has no recipes that can be read. `nodes` is how many nodes a run of a recipe
    was asked to have, if that is known.
    """

    recipes: Mapping[tuple[str, Scale], Recipe] = field(default_factory=dict)
    as_recorded: bool = False
    unread: str = ""
    nodes: Callable[[Recipe], int | None] = lambda _: None

    def wrong_work(self, ran: Recipe, topology: Topology) -> str:
        """How a run differs from what had to run; empty for the same work, if judged as recorded, or if uncompared."""
        differences = self._differences(ran, topology)
        if self.as_recorded or not differences:
            return ""
        return (
            f"it ran another recipe than today's: {differences}; to accept that, judge it as recorded: "
            "--replay as-recorded:SESSION, or --as-recorded of a command"
        )

    def note(self, ran: Recipe, topology: Topology) -> str:
        """How a run was judged by another recipe than today's; else empty."""
        differences = self._differences(ran, topology)
        if differences is None:
            return f"not compared with a recipe of today: {self.unread or f'this folder has no recipe {ran.name}'}"
        if not self.as_recorded:
            return self._note_on_nodes(ran, topology)
        return f"judged as recorded, by its own recipe: {differences or 'it is the same as the one of today'}"

    def notes(self, records: Iterable[RunRecord]) -> list[str]:
        """How runs were judged if not by a recipe of today, each way once with the number of its runs."""
        notes = Counter(note for record in records if (note := self.note(record.recipe, record.topology)))
        return [f"{counted(number, 'run')}: {note}" for note, number in notes.items()]

    def _note_on_nodes(self, ran: Recipe, topology: Topology) -> str:
        """Note a number of nodes other than the recipe's, because the record lacks the requested number."""
        today = self.recipes[ran.name, ran.scale]
        if (due := published_nodes(today)) in {None, topology.nodes} or self.nodes(today):
            return ""
        return f"on {counted(topology.nodes, 'node')}; today's recipe {today.name} is for {due}"

    def _differences(self, ran: Recipe, topology: Topology) -> str | None:
        today = self.recipes.get((ran.name, ran.scale))
        if today is None:
            return None
        differences = [
            f"{name}: the record has {kept}, today's recipe {today.name} {due}"
            for name, kept, due in recipe_differences(ran, today.on(topology))
        ]
        if (due := self.nodes(today)) not in {None, topology.nodes}:
            words = f"nodes: it ran on {topology.nodes}, and should have run on {due}; --nodes gives another number"
            differences.insert(0, words)
        more = [f"and {len(differences) - _MOST_SHOWN} more"] if len(differences) > _MOST_SHOWN else []
        return "; ".join([*differences[:_MOST_SHOWN], *more])


def published_nodes(recipe: Recipe) -> int | None:
    """The number of nodes that a recipe is for; None if it is for any."""
    return recipe.nodes if recipe.scale == "full" and "nodes" in recipe.model_fields_set else None


def recipe_differences(ran: Recipe, today: Recipe) -> Iterator[tuple[str, Any, Any]]:
    """Yield each field, with both values, in which the recipe of a run is not the one of today."""
    kept, due = (flatten(_with_defaults(recipe)) for recipe in (ran, today))
    for name in sorted(kept.keys() | due.keys()):
        if kept.get(name) != due.get(name) and not _may_differ(name, kept.get(name), due.get(name), ran):
            yield name, kept.get(name, "nothing"), due.get(name, "nothing")


def _may_differ(name: str, kept: Any, due: Any, ran: Recipe) -> bool:
    field_name = name.partition(".")[0]
    if field_name == "time_limit":
        return ran.end == "steps"
    if field_name == "deadlines":
        return kept is not None and (due is None or kept < due)
    return field_name in MAY_DIFFER


def _with_defaults(recipe: Recipe) -> dict[str, Any]:
    """A recipe as plain data; options of an engine that is here with those that were left out."""
    plain = recipe.model_dump(mode="json")
    with suppress(ConfigError):  # of a package that is missing here, or of another version: as they were written
        plain["options"] = options_of(recipe, get_engine(recipe.engine).options).model_dump(mode="json")
    return plain


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested plain data by their paths, such as `model.layers`."""
    flat: dict[str, Any] = {}
    for name, part in value.items():
        flat |= flatten(part, f"{prefix}{name}.") if isinstance(part, Mapping) and part else {prefix + name: part}
    return flat
