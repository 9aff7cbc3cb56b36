"""The rows of `llmbench list`."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.checks.base import all_checks
from pytest_llmbench.cli.site.reading import call_in_site
from pytest_llmbench.cluster.recipes import RECIPES
from pytest_llmbench.cluster.system import ELSEWHERE, LOCAL, SLURM, SYSTEMS, System, load_system
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.recipe.recipes import recipes_by_file
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.engines.base import ENGINES
from pytest_llmbench.judging.statistics import SHARED
from pytest_llmbench.plugin import lending
from pytest_llmbench.plugin.options import read_options
from pytest_llmbench.plugin.settings import with_installed

ListRow = dict[str, Any]


def rows_of(kind: str) -> tuple[list[ListRow], list[str]]:
    """The rows of a kind, and the faults of extensions of other packages that are left out.

    Raises ConfigError for a wrong ini, recipe or system file.
    """
    return call_in_site(lambda config: (list(KINDS[kind][0](config)), lending.unusable()))


def _recipes(config: pytest.Config) -> Iterator[ListRow]:
    for path, recipes in recipes_by_file(folders_of(config, "recipes")).items():
        for recipe in recipes.values():
            yield {
                "recipe": recipe.name, "engine": recipe.engine, "nodes": recipe.nodes,
                "gpus_per_node": recipe.gpus_per_node, "description": recipe.description,
                "source": recipe.source,
                "references": [reference.name for reference in recipe.references], "file": str(path),
            }  # fmt: skip


def _systems(config: pytest.Config) -> Iterator[ListRow]:
    folders = folders_of(config, "systems")
    named = [(None, load_system(name, folders)) for name in (LOCAL, SLURM, ELSEWHERE)]
    for path, system in [*named, *_system_files(config)]:
        yield {
            "system": system.name, "cluster": system.cluster, "gpus_per_node": system.gpus_per_node,
            "gpu": system.gpu.model if system.gpu is not None else None, "description": system.description,
            "file": path,
        }  # fmt: skip


def _checks(_: pytest.Config) -> Iterator[ListRow]:
    for name, check in all_checks().items():
        yield {
            "check": name, "family": check.family, "scope": check.scope, "question": check.summary,
            "options": list(check.options.model_fields), "statistics": dict(check.statistics),
        }  # fmt: skip


def _engines(_: pytest.Config) -> Iterator[ListRow]:
    for name, engine in ENGINES.usable().items():
        yield {
            "engine": name, "kind": engine.kind, "options": list(engine.options.model_fields),
            "statistics": list(engine.statistics), "missing": engine.missing(),
        }  # fmt: skip


def _statistics(_: pytest.Config) -> Iterator[ListRow]:
    owned = [(name, statistic, "all") for name, statistic in SHARED.usable().items()]
    for engine in ENGINES.usable().values():
        owned += [(name, statistic, engine.name) for name, statistic in engine.statistics.items()]
    for name, statistic, engines in owned:
        yield {"statistic": name, "unit": statistic.unit, "engine": engines, "rule": statistic.rule}


def _references(config: pytest.Config) -> Iterator[ListRow]:
    for recipes in recipes_by_file(folders_of(config, "recipes")).values():
        for recipe in recipes.values():
            for reference in recipe.references:
                yield _reference(reference, recipe.name, None)
    for _, system in _system_files(config):
        of_checks = {check: settings.references for check, settings in system.validation.items()}
        for name, references in [*system.references.items(), *of_checks.items()]:
            for reference in references:
                yield _reference(reference, name, system.name)


def _reference(reference: Reference, of: str, system: str | None) -> ListRow:
    machine = str(reference.applies_to) if reference.applies_to is not None else "any"
    return {
        "of": of, "reference": reference.name, "statistic": reference.statistic, "bound": reference.asked,
        "for": machine, "system": system, "date": reference.date.isoformat(), "source": reference.source,
        "why": reference.why,
    }  # fmt: skip


def _schemas(_: pytest.Config) -> Iterator[ListRow]:
    for path in sorted(shipped("schemas").glob("*.json")):
        schema = json.loads(path.read_text(encoding="utf-8"))
        yield {"schema": path.stem, "title": schema["title"], "id": schema["$id"], "file": str(path)}


def folders_of(config: pytest.Config, kind: str) -> list[Path]:
    """The folders of `recipes` or `systems`: those that packages bring, and those of the ini file."""
    options = read_options(config)
    return with_installed(options.recipes, RECIPES) if kind == "recipes" else with_installed(options.systems, SYSTEMS)


def _system_files(config: pytest.Config) -> Iterator[tuple[str, System]]:
    for folder in folders_of(config, "systems"):
        yield from ((str(path), load_system(str(path), [])) for path in sorted(folder.glob("*.yaml")))


# Rows of each kind, and the columns that a terminal has room for; JSON has all.
KINDS: Mapping[str, tuple[Callable[[pytest.Config], Iterator[ListRow]], tuple[str, ...]]] = {
    "recipes": (_recipes, ("recipe", "engine", "nodes", "gpus_per_node", "description")),
    "systems": (_systems, ("system", "cluster", "gpus_per_node", "gpu", "description")),
    "checks": (_checks, ("check", "family", "scope", "question")),
    "engines": (_engines, ("engine", "kind", "missing")),
    "statistics": (_statistics, ("statistic", "unit", "engine", "rule")),
    "references": (_references, ("of", "reference", "statistic", "bound", "for", "system", "date")),
    "schemas": (_schemas, ("schema", "file")),
}
