"""The plan of a session as plain data, which crosses processes: runs, tests and the session itself."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.core.record.series import EarlyVerdict
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.core.wire import layout


class Replayed(Strict):
    """Logs that were made elsewhere, with the facts that are missing from them."""

    logs: Path
    """The folder or the one file they are in."""
    nodes: PositiveInt
    """Number of nodes of the run."""
    gpus_per_node: NonNegativeInt
    """Number of GPUs of each node."""
    ranks_per_node: PositiveInt
    """Number of ranks of each node."""
    hosts: tuple[str, ...] = ()
    """Host names of the nodes, where they are known."""
    gpu: str | None = None
    """The GPU model of the run, as declared with the logs, or as in its run record."""
    cut_off: str | None = None
    """How a run that is meant to be cut off at its time limit was, as declared or recorded."""
    early: EarlyVerdict | None = None
    """Whether and where its session ended it early, as recorded."""
    wall_s: PositiveFloat | None = None
    """Time from launch to end, seconds, where it is known."""
    token: str | None = None
    """Token of the run, which its ranks have in their logs; None if unknown."""
    launched: float | None = None
    """Unix time of the launch, where it is known."""
    ended: float | None = None
    """Unix time of the end, where it is known."""
    problem: Problem | None = None
    """Problem in the run's own record; a replay never takes it back."""
    provenance: Mapping[str, str] = {}
    """Provenance in the run's own record."""
    simulated: str | None = None
    """The fault of `--llmbench-simulate` in its own run record."""
    as_recorded: str | None = None
    """How its own recipe, by which it is judged, differs from the one of today."""
    disagrees: str = ""
    """How files of its session's folder disagree about it; empty if they agree."""

    @property
    def topology(self) -> Topology:
        """The shape of the run."""
        return Topology(nodes=self.nodes, gpus_per_node=self.gpus_per_node, cpu_ranks_per_node=self.ranks_per_node)


class EarlyPlan(Strict):
    """Thresholds of a run that may be ended early, as known before it begins."""

    references: tuple[str, ...] = ()
    """Names of the references by which the run's tests judge it."""
    whole: str | None = None
    """Reason why the run has to run whole."""


# A key becomes a folder, which stays inside the session's also where a session of somebody else is read again.
_FOLDER_NAME, _LONGEST_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$", 100
FolderName = Annotated[str, Field(pattern=_FOLDER_NAME, max_length=150)]


class RunSpec(Strict):
    """One run that tests wait for. It crosses processes as JSON."""

    key: FolderName
    """Name of the run within the session, and of its folder."""
    recipe: Recipe
    group: PositiveInt | None = None
    """Number of the session's group of nodes that runs it, from 1; None where the nodes are not split."""
    repeat: PositiveInt = 1
    """Number of the run among the runs that are judged together, from 1."""
    look: NonNegativeInt = 0
    """0 for a planned run; for a repeat, the number of the look that asked for it."""
    replayed: Replayed | None = None
    """Logs of the run, if it ran elsewhere."""
    early: EarlyPlan | None = None
    """With `--llmbench-early-verdict`, what decides on its end."""

    @property
    def series(self) -> str:
        """Key of the first of the runs that are judged together with it."""
        return self.key if self.repeat == 1 else self.key.removesuffix(f"-repeat{self.repeat}")

    def repeated(self, number: int, look: int = 0) -> Self:
        """The repeat with that number of this first run."""
        return self.model_copy(update={"key": repeat_key(self.key, number), "repeat": number, "look": look})


def repeat_key(series: str, number: int) -> str:
    """Key of the run with that number among those that are judged together."""
    return series if number == 1 else f"{series}-repeat{number}"


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
        for name in self._recipes:
            yield from self._keys(name)

    def __len__(self) -> int:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """One pytest session's identity on disk and in Slurm."""

    id: str  # unique and readable
    folder: Path  # `<run dir>/<id>`; with `--llmbench-session-name`, that name replaces the id

    @property
    def token(self) -> str:
        """The comment of every Slurm job of this session."""
        return f"llmbench:{self.id}"

    def run_token(self, key: str) -> str:
        """The name of one run among all runs, which its ranks write into their logs."""
        return f"{self.token}/{key}"

    def run_folder(self, key: str) -> Path:
        """The folder of a run."""
        return self.folder_of("run", key)

    def folder_of(self, about: Literal["run", "check"], name: str) -> Path:
        """The folder of a run or a check."""
        return self.folder / layout.FOLDERS[about] / name


class Declared(Strict):
    """A test that was collected and selected, and that waits for a run or a check: it ends in one verdict."""

    test: str
    """Node id of the test."""
    run: str | None = None
    """Key of the run that the test waits for, or of the first of several."""
    repeats: PositiveInt = 1
    """Number of runs that the test waits for, which are judged together."""
    reference: str | None = None
    """Name of the reference that the test applies, if it applies one."""
    check: str | None = None
    """Name of the check that the test waits for."""
    slot: NonNegativeInt | None = None
    """Slot of the node that the test is about; None where it is about all nodes together."""
    line: PositiveInt | None = None
    """Line of the test's function in its file, from 1; None where pytest has none."""

    @property
    def file(self) -> str:
        """Its file, relative to pytest's root folder."""
        return self.test.partition("::")[0]


class Plan(Strict):
    """Everything a session's tests wait for, handed from a worker to the controller."""

    runs: tuple[RunSpec, ...]
    checks: tuple[str, ...] = ()
    """Names of the checks that the nodes are validated with, in the order they run."""
    gate: bool = False
    """Whether runs stay away from nodes that a check found unfit."""
    tests: tuple[Declared, ...] = ()
    """The tests that wait, in their order."""
    began: float | None = None
    """Unix time at which the session began; None before."""
    refused: str | None = None
    """Reason why nothing of the plan can be done; then the rest is empty."""

    @property
    def empty(self) -> bool:
        """True if the plan is without runs and checks."""
        return not self.runs and not self.checks


def new_session(run_dir: Path, name: str | None = None) -> Session:
    """Give a session its id and its folder.

    Args:
        run_dir: folder of all sessions.
        name: of its folder; without it, its id. Jobs and logs have the id, whatever the name is.

    Raises ConfigError if the name is taken.
    """
    made = layout.new_id()
    folder = run_dir / (name or made)
    if name is not None and os.path.lexists(folder):
        raise ConfigError(
            f"--llmbench-session-name {name}: {folder} exists: give another name, or move that folder away"
        )
    return Session(id=made, folder=folder)


def session_name(text: str) -> str:
    """Read the name of a session, which becomes a folder. Raises ConfigError if the text cannot name a folder."""
    if not re.fullmatch(_FOLDER_NAME, text) or len(text) > _LONGEST_NAME or text == layout.LATEST:
        raise ConfigError(
            f"{text!r} must be letters, digits, dots, hyphens and underscores, at most {_LONGEST_NAME}, begin with a "
            f"letter or a digit, and not be {layout.LATEST}"
        )
    return text
