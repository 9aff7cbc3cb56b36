"""The state of one pytest session: its settings, recipes, planned runs, and where their records come from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from pytest_llmbench.cluster import settings as cluster_settings
from pytest_llmbench.cluster.runs import RunSpec, Session, new_session
from pytest_llmbench.cluster.settings import SLURM_OPTIONS, Settings
from pytest_llmbench.cluster.system import load_system
from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.recipes import Recipe, load_recipes
from pytest_llmbench.core.reference import Reference
from pytest_llmbench.engines.base import engine_names
from pytest_llmbench.judging.statistics import STATISTICS
from pytest_llmbench.plugin import options

if TYPE_CHECKING:
    from pytest_llmbench.core.records import RunRecord

KEY = pytest.StashKey["Bench"]()


class Board(Protocol):
    """Where tests wait for the record of their run."""

    def wait(self, key: str) -> RunRecord:
        """Block until the run of that key has a record."""


class Bench:
    """Resolved lazily: a session without our tests reads no recipe and probes no machine.

    Attributes:
        session: id and folder; the folder is made when the first run starts.
        runs: planned runs, in the order of the tests.
        board: set once the runs are under way.
    """

    def __init__(self, config: pytest.Config, session: Session | None = None) -> None:
        self._config = config
        self._given_session = session
        self.runs: tuple[RunSpec, ...] = ()
        self.board: Board | None = None

    @cached_property
    def session(self) -> Session:
        """This session's id and folder."""
        return self._given_session or new_session(self.run_dir)

    @cached_property
    def run_dir(self) -> Path:
        """Where sessions leave their folders."""
        given = options.value(self._config, "run-dir") or Path("reports")
        return Path(self._config.invocation_params.dir, Path(given).expanduser())

    @cached_property
    def settings(self) -> Settings:
        """What the user asked for.

        Raises:
            ConfigError: it cannot be meant.
        """
        config = self._config
        asked = options.value(config, "cluster") or "auto"
        system_name, cluster = cluster_settings.resolve_cluster(asked, options.value(config, "system"))
        system = load_system(system_name, options.folders(config, "systems"))
        nodes = options.value(config, "nodes")
        if nodes is None and (cluster or system.cluster) == "slurm":
            nodes = cluster_settings.existing_nodes()
        settings = Settings(
            system=system,
            cluster=cluster or system.cluster,
            allocation=options.value(config, "allocation")
            or self._default_allocation(cluster or system.cluster, nodes),
            run_dir=self.run_dir,
            nodes=nodes,
            nodes_per_run=options.value(config, "nodes-per-run"),
            gpus_per_node=options.value(config, "gpus-per-node"),
            time_min=options.value(config, "time"),
            max_runs=options.value(config, "max-runs"),
            scale=options.value(config, "scale") or "full",
            slurm={name: text for name in SLURM_OPTIONS if (text := options.value(config, name)) is not None},
        )
        cluster_settings.check(settings)
        return settings

    @cached_property
    def recipes(self) -> dict[str, Recipe]:
        """Every recipe by name, at the scale asked for, with this site's own references added.

        Raises:
            ConfigError: a file is wrong, or a reference names an unknown statistic or recipe.
        """
        found = load_recipes(options.folders(self._config, "recipes"), self.settings.scale)
        own = self.settings.system.references
        strangers = set(own) - set(found)
        if strangers:
            raise ConfigError(
                f"system {self.settings.system.name}: references: {unknown('recipe', min(strangers), found)}"
            )
        merged = {name: _with_references(recipe, own.get(name, ())) for name, recipe in found.items()}
        for recipe in merged.values():
            _check(recipe)
        return merged

    def check(self) -> None:
        """Resolve everything the user named, and see that reports can be written.

        Raises:
            ConfigError: something cannot be meant, or the run directory cannot be written.
        """
        _ = self.recipes
        there = next(path for path in (self.run_dir, *self.run_dir.parents) if path.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            raise ConfigError(f"--run-dir {self.run_dir}: {there} cannot be written; give another --run-dir")

    def plan(self, names: Sequence[str]) -> None:
        """Set the runs that the collected tests need, each once."""
        self.runs = tuple(RunSpec(key=name, recipe=self.recipes[name]) for name in dict.fromkeys(names))

    @staticmethod
    def _default_allocation(cluster: str, nodes: int | None) -> cluster_settings.AllocationMode:
        held = cluster != "slurm" or nodes is not None or cluster_settings.existing_allocation() is not None
        return "session" if held else "run"


def bench_of(config: pytest.Config) -> Bench:
    """The session's state."""
    return config.stash[KEY]


def _with_references(recipe: Recipe, own: Sequence[Reference]) -> Recipe:
    taken = {reference.name for reference in own}
    kept = tuple(reference for reference in recipe.references if reference.name not in taken)
    return recipe.model_copy(update={"references": (*kept, *own)})


def _check(recipe: Recipe) -> None:
    if recipe.engine not in engine_names():
        raise ConfigError(f"recipe {recipe.name}: {unknown('engine', recipe.engine, engine_names())}")
    for reference in recipe.references:
        where = f"recipe {recipe.name}, reference {reference.name}"
        statistic = STATISTICS.get(reference.statistic)
        if statistic is None:
            raise ConfigError(f"{where}: {unknown('statistic', reference.statistic, STATISTICS)}")
        for _, bound in reference.bounds:
            try:
                bound.to(statistic.unit)
            except ConfigError as error:
                raise ConfigError(f"{where}: {reference.statistic} is in {statistic.unit}: {error}") from error
