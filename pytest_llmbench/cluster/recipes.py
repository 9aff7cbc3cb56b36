"""Folders of recipes that packages bring, and checks of recipes against their engines and the system."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.extensions import ExtensionError, Extensions
from pytest_llmbench.core.gpus import may_be_gpu
from pytest_llmbench.core.paths import folder_of, shipped
from pytest_llmbench.core.recipe.recipes import Recipe, load_recipes
from pytest_llmbench.core.recipe.reference import Reference, check_statistics, refuse_contradictions
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.engines.base import get_engine, options_of, statistics_of


def _accept(_: str, thing: object) -> Path:
    folder = folder_of(thing)
    if folder != shipped("recipes"):  # every session reads those, and a mistake in them is ours
        check_recipes(load_recipes([folder]).values())
    return folder


# By the name of who brings them.
RECIPES: Extensions[Path] = Extensions("folder of recipes", "recipes", _accept)


def check_recipes(recipes: Iterable[Recipe]) -> None:
    """Check each recipe's options and the statistics that it names against its engine; those of a broken engine pass.

    Raises ConfigError for an unknown name, or a bound in a unit of another kind.
    """
    units: dict[str, Mapping[str, str]] = {}  # of the statistics of an engine: thousands of recipes have the same
    for recipe in recipes:
        try:
            engine = get_engine(recipe.engine)
        except ExtensionError:
            continue  # only a session that plans a run of the recipe needs the engine
        except ConfigError as error:
            raise ConfigError(f"recipe {recipe.name}: {error}") from error
        options_of(recipe, engine.options)
        if recipe.engine not in units:
            units[recipe.engine] = {name: statistic.unit for name, statistic in statistics_of(engine).items()}
        known = units[recipe.engine]
        if recipe.statistic_of_record not in known:
            message = unknown("statistic", recipe.statistic_of_record, known)
            raise ConfigError(f"recipe {recipe.name}: statistic_of_record: {message}")
        check_statistics(recipe.references, known, f"recipe {recipe.name}, ")


def with_references(recipe: Recipe, own: Sequence[Reference], settings: Settings) -> Recipe:
    """Add the system's own references to a recipe, and leave out those for other machines or scales.

    Raises ConfigError if two of them contradict each other.
    """
    replaced = {reference.name for reference in own}
    kept = tuple(
        reference for reference in recipe.references
        if reference.name not in replaced and not _is_elsewhere(reference, recipe, settings)
    )  # fmt: skip
    try:
        refuse_contradictions(both := (*kept, *own))
    except ValueError as error:
        raise ConfigError(f"recipe {recipe.name}, with the references of the system's file: {error}") from error
    return recipe if both == recipe.references else recipe.model_copy(update={"references": both})


def _is_elsewhere(reference: Reference, recipe: Recipe, settings: Settings) -> bool:
    """True if a reference is left out here, being surely for another machine, number of nodes or scale."""
    wanted, gpu = reference.applies_to, settings.system.gpu
    if reference.elsewhere == "skip" or wanted is None or wanted.gpu is None:
        return False
    if settings.scale != "full" or settings.gpus_of_a_node == 0:
        return True
    other_gpu = gpu is not None and not may_be_gpu(wanted.gpu, gpu.model)
    return other_gpu or (settings.replay is None and is_of_another_size(reference, settings.topology(recipe)))


def is_of_another_size(reference: Reference, topology: Topology) -> bool:
    """True if a reference that is left out elsewhere is for another number of nodes or GPUs."""
    wanted = reference.applies_to
    if reference.elsewhere == "skip" or reference.per_node or wanted is None:
        return False
    return wanted.gpus not in (None, topology.gpus) or wanted.nodes not in (None, topology.nodes)
