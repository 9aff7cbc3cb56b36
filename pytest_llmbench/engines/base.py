"""What an engine is, and how one is found by name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pytest_llmbench import engines
from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.recipes import Recipe
from pytest_llmbench.core.series import StepSeries
from pytest_llmbench.core.topology import Topology

_NOT_ENGINES = {"base"}


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTask:
    """A callable that every rank runs, importable on the nodes.

    Attributes:
        entry: `package.module:function`; it is called with
            `(workloads.context.RankContext, workloads.steplog.StepLog)`.
        config: plain data, handed to each rank as `RankContext.config`.
    """

    entry: str
    config: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """The last step that a run has logged so far, as quickly as it can be had: to look on, not to judge.

    Attributes:
        step: its number.
        seconds: how long it took.
    """

    step: int
    seconds: float


class Engine(Protocol):
    """The framework that trains. A module of this package provides one as `ENGINE`."""

    name: str

    def missing(self) -> str | None:
        """Say what is not installed and how to get it, or None when the engine can run."""

    def problems(self, recipe: Recipe, topology: Topology) -> Iterator[str]:
        """Yield every reason why this recipe cannot run on this topology."""

    def task(self, recipe: Recipe, topology: Topology) -> RankTask:
        """Build what each rank runs."""

    def read(self, folder: Path) -> StepSeries:
        """Read what the ranks logged so far under a run's folder."""

    def progress(self, folder: Path) -> Progress | None:
        """Return the last step logged, at constant cost; None before the first."""

    def laggards(self, folder: Path) -> str:
        """Say, as well as the logs allow, which ranks are behind the others and where each stands."""


def engine_names() -> list[str]:
    """Names of every engine this package has, without importing any."""
    return sorted(
        module.name for module in pkgutil.iter_modules(engines.__path__)
        if module.name not in _NOT_ENGINES and not module.name.startswith("_")
    )  # fmt: skip


def get_engine(name: str) -> Engine:
    """Import one engine.

    Raises:
        ConfigError: there is no engine of that name.
    """
    if name not in engine_names():
        raise ConfigError(unknown("engine", name, engine_names()))
    engine: Engine = importlib.import_module(f"{engines.__name__}.{name}").ENGINE
    return engine
