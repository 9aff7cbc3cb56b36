"""Judging logs that were made elsewhere: the same readers, statistics, thresholds and reports, and no cluster.

`--replay DIR` looks for `DIR/<recipe>/`, with the logs of one run or a folder for each of several, or for a session
folder of ours (see `replay_session`). Facts that logs do not contain are in a `replay.yaml` next to them, in the run
record, or given by `--system` and `--nodes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from pytest_llmbench.cluster.runs import Replayed, RunSpec
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.schema import Strict, validate
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.yaml_files import read_yaml
from pytest_llmbench.engines.base import get_engine
from pytest_llmbench.session.replay.session import recipe_named, runs_of_session

FACTS_FILE = "replay.yaml"


class ReplayFacts(Strict):
    """`replay.yaml`: declared facts about the run of replayed logs."""

    nodes: PositiveInt | None = None
    """Nodes of the run; absent, as many as `hosts`, else `--nodes`, else the recipe's."""
    gpus_per_node: NonNegativeInt | None = None
    """GPUs of each; absent, `--gpus-per-node`, else the system's, else the recipe's."""
    ranks_per_node: PositiveInt | None = None
    """Ranks per node of a run without GPUs; absent, the system's."""
    hosts: tuple[str, ...] = ()
    """Its nodes."""
    gpu: str | None = None
    """GPU model of the run; absent, the system file's."""
    ended: Literal["steps", "time_limit"] = "steps"
    """`time_limit` for a run that was meant to be cut off there, and was; only of a recipe with `end: time_limit`, and
    not needed where Slurm's own line in the log says it.
    """
    wall_s: PositiveFloat | None = None
    """From launch to end, seconds; the steps must not add up to more."""
    source: str = ""
    """Origin of the logs."""

    @model_validator(mode="after")
    def _consistent(self) -> ReplayFacts:
        if self.hosts and self.nodes not in (None, len(self.hosts)):
            raise ValueError(f"nodes: {self.nodes}, and hosts names {len(self.hosts)}")
        return self


def find_replays(folder: Path, recipes: Mapping[str, Recipe], settings: Settings) -> dict[str, RunSpec]:
    """Find every run in a folder, by key.

    Raises:
        ConfigError: the folder or a run in it cannot be read, is of an unknown recipe, or there is none.
    """
    folder = folder.absolute()  # records name it, wherever they are read
    if not folder.is_dir():
        raise ConfigError(f"--replay {folder}: no such folder: give one with the logs of a run in {folder}/<recipe>/")
    session = (folder / layout.FOLDERS["run"]).is_dir()
    found = list(runs_of_session(folder, recipes) if session else _handed_in(folder, recipes, settings))
    if not found:
        raise ConfigError(f"--replay {folder}: no logs: put those of a run into {folder}/<recipe>/")
    return {spec.key: spec for spec in found}


def _handed_in(folder: Path, recipes: Mapping[str, Recipe], settings: Settings) -> Iterator[RunSpec]:
    """The runs of `folder/<recipe>/`."""
    for path in _visible(folder):
        if not path.is_dir():
            if path.name in recipes or path.stem in recipes:
                raise ConfigError(f"--replay: {path} is a file: put it into a folder {folder}/<recipe>/")
            continue
        recipe = recipe_named(path.name, recipes, path)
        runs = _runs_of(path, recipe)
        for number, logs in enumerate(runs, start=1):
            key = recipe.name if len(runs) == 1 else f"{recipe.name}-group{number}"
            replayed = _declared(logs, path, recipe, settings)
            group = None if len(runs) == 1 else number
            yield RunSpec(key=key, recipe=recipe.on(replayed.topology), group=group, replayed=replayed)


def _runs_of(folder: Path, recipe: Recipe) -> list[Path]:
    """The runs under a recipe's folder: a folder each, a log each where the engine keeps them so, or the folder.

    An empty folder is a run, too: one without a log, which must not go unseen.
    """
    there = [path for path in _visible(folder) if path.name != FACTS_FILE]
    if there and all(path.is_dir() for path in there):
        return there
    logs = sorted(folder.glob("*.log")) if get_engine(recipe.engine).log_per_run else []
    return logs or [folder]


def _visible(folder: Path) -> list[Path]:
    """Files of a folder, in order, without hidden ones."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _declared(logs: Path, folder: Path, recipe: Recipe, settings: Settings) -> Replayed:
    own = logs / FACTS_FILE
    path = own if own.is_file() else folder / FACTS_FILE
    facts = validate(ReplayFacts, read_yaml(path), str(path)) if path.exists() else ReplayFacts()
    if facts.ended not in {"steps", recipe.end}:
        raise ConfigError(f"{path}: ended: {facts.ended}, and recipe {recipe.name} has to do all its steps")
    shape = settings.topology(recipe)
    gpu = settings.system.gpu
    gpus_per_node = shape.gpus_per_node if facts.gpus_per_node is None else facts.gpus_per_node
    return Replayed(
        logs=logs, nodes=facts.nodes or len(facts.hosts) or shape.nodes, gpus_per_node=gpus_per_node,
        ranks_per_node=gpus_per_node or facts.ranks_per_node or settings.system.cpu_ranks_per_node, hosts=facts.hosts,
        gpu=facts.gpu or (gpu.model if gpu and gpus_per_node else None),
        cut_off=f"ended at its time limit, as {path} says" if facts.ended == "time_limit" else None,
        wall_s=facts.wall_s, provenance={"replayed_from": facts.source or str(logs)},
    )  # fmt: skip
