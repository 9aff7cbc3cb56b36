"""The state of one pytest session: its settings, recipes, planned runs, and where their records come from."""

import os
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import pytest

from pytest_llmbench.checks.base import CHECKS, get_check
from pytest_llmbench.cluster.recipes import RECIPES, check_recipes, with_references
from pytest_llmbench.cluster.runs import (
    Declared,
    Plan,
    ReplayChoices,
    RunChoices,
    RunSpec,
    Session,
    new_session,
    repeat_key,
)
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.extensions import Extensions
from pytest_llmbench.core.files import find_group, refuse_shared
from pytest_llmbench.core.quantity import for_people
from pytest_llmbench.core.recipe.recipes import Recipe, recipes_by_file
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.health import HealthRecord, Report
from pytest_llmbench.core.record.records import Problem, RunRecord
from pytest_llmbench.core.text import harmless
from pytest_llmbench.core.wire import layout
from pytest_llmbench.engines.base import ENGINES
from pytest_llmbench.plugin.collection.checks import refuse_unknown
from pytest_llmbench.plugin.history import check_history
from pytest_llmbench.plugin.options import Options
from pytest_llmbench.plugin.ours import is_worker
from pytest_llmbench.plugin.settings import settings_of, with_installed
from pytest_llmbench.session.early import early_plan
from pytest_llmbench.session.ending import run_identity
from pytest_llmbench.session.journal.earlier import Earlier, session_to_resume, take_over
from pytest_llmbench.session.journal.journal import Journal
from pytest_llmbench.session.nodes.validation import health_record
from pytest_llmbench.session.record_store import AnyRecord
from pytest_llmbench.session.replay import find_replays
from pytest_llmbench.session.script.prepared import hours_at_most, refuse_unimportable

KEY = pytest.StashKey["Bench"]()


class Waiter(Protocol):
    """The place at which tests wait for the record of their run or check."""

    def wait(self, kind: type[AnyRecord], name: str) -> AnyRecord:
        """Block until the run or check of that name has a record."""

    def repeat(self, series: str, number: int, look: int) -> None:
        """Request repeats up to that number. Each of them eventually gets a record."""


class Bench:
    """The state of one session, resolved lazily: only tests of ours make it read recipes and probe the machine.

    Its properties and methods raise ConfigError where an option, a file, a recipe or a folder of the user is wrong.

    Attributes:
        earlier: remains of the earlier processes of a resumed session.
        planned: tasks that the collected tests wait for: runs in the order of the tests, checks in their own.
        waiter: set once the runs are under way.
    """

    def __init__(self, config: pytest.Config, options: Options, session: Session | None = None) -> None:
        self.options = options
        self._config = config
        self._given_session = session
        self.planned = Plan(runs=())
        self.earlier: Earlier | None = None
        self.waiter: Waiter | None = None

    @cached_property
    def session(self) -> Session:
        """This session's id and folder."""
        which, name, given = self.options.resume, self.options.session_name, self._given_session
        if given is not None and (which is name is None or is_worker(self._config)):
            return given
        if which is None:
            return new_session(self.options.run_dir, name)
        if name is not None:
            raise ConfigError("--llmbench-session-name with --resume: a session keeps its name; leave one of them out")
        return session_to_resume(self.options.run_dir, which)

    @cached_property
    def journal(self) -> Journal | None:
        """The session's journal, made when its runs start; None in a replay. Raises OSError if writing it fails."""
        if self.settings.replay is not None:
            return None
        journal = self.earlier.journal if self.earlier is not None else Journal(self.session.folder / layout.JOURNAL)
        self._config.add_cleanup(journal.close)
        return journal

    @cached_property
    def settings(self) -> Settings:
        """The settings that the user's options amount to."""
        if not is_worker(self._config):
            check_history(self.options)
        return settings_of(self.options)

    @cached_property
    def recipes(self) -> dict[str, Recipe]:
        """Every recipe by name, in the shape that the settings give it."""
        return {name: recipe.on(self.settings.topology(recipe)) for name, recipe in self._published.items()}

    @cached_property
    def _files(self) -> dict[Path, dict[str, Recipe]]:
        """The recipes of each file, at the scale asked for: reading thousands takes seconds."""
        return recipes_by_file(with_installed(self.options.recipes, RECIPES), self.settings.scale)

    @cached_property
    def _published(self) -> dict[str, Recipe]:
        """Every recipe by name, at the scale asked for, with this site's own references added."""
        read = {name: recipe for recipes in self._files.values() for name, recipe in recipes.items()}
        own = self.settings.system.references
        strangers = set(own) - set(read)
        if strangers:
            raise ConfigError(
                f"system {self.settings.system.name}: references: {unknown('recipe', min(strangers), read)}"
            )
        merged = {name: with_references(recipe, own.get(name, ()), self.settings) for name, recipe in read.items()}
        check_recipes(merged.values())
        return merged

    @property
    def left_out(self) -> dict[str, list[Reference]]:
        """References of each recipe's file that have no test here, being for other machines."""
        kept = {name: {reference.name for reference in recipe.references} for name, recipe in self._published.items()}
        return {
            name: [reference for reference in recipe.references if reference.name not in kept[name]]
            for recipes in self._files.values() for name, recipe in recipes.items()
        }  # fmt: skip

    @cached_property
    def recipes_of_unmarked(self) -> Collection[str]:
        """The recipes of a test without names of recipes: the user's own; all in a replay, or if the user has none.

        So a forgotten marker plans the user's own benchmarks instead of every published one.
        """
        installed = RECIPES.usable().values()
        own = [name for path, recipes in self._files.items() if path.parent not in installed for name in recipes]
        if self.settings.replay is not None:
            return {spec.recipe.name for spec in self.choices.values()}
        return own or self.recipes

    def check(self) -> None:
        """Resolve all names that the user gave, and check that reports can be written."""
        _ = self.choices
        name = str(self.options.run_dir)
        if harmless(name) != name or {"\\", "\n"} & {*name}:  # to sbatch and srun it would be another name
            raise ConfigError(
                f"--llmbench-run-dir {harmless(name)}: its name has a backslash, a line end, a control character, or "
                "bytes that are not UTF-8; give another --llmbench-run-dir"
            )
        there = next(path for path in (self.options.run_dir, *self.options.run_dir.parents) if path.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            raise ConfigError(
                f"--llmbench-run-dir {self.options.run_dir}: {there} cannot be written; give another --llmbench-run-dir"
            )
        if self.settings.cluster in {"local", "slurm"} and self.settings.replay is None:
            refuse_shared(self.options.run_dir)
        if self.settings.system.group is not None:
            find_group(self.settings.system.group)

    def take_over(self) -> None:
        """With `--resume`, take over the session before any worker or test reads its folder."""
        if self.options.resume is None or self._config.option.collectonly:
            return
        if self.settings.replay is not None:
            raise ConfigError("--resume with --replay: a replay makes no runs; leave one of them out")
        self.earlier = take_over(self.session, self.settings.cluster)

    @cached_property
    def choices(self) -> RunChoices | ReplayChoices:
        """Every possible run by key: each recipe once, or once on each group of nodes."""
        settings = self.settings
        if settings.replay is not None:
            return ReplayChoices(find_replays(settings.replay, self._published, settings))
        return RunChoices(self.recipes, settings.groups)

    @cached_property
    def nodes_to_check(self) -> int:
        """Number of nodes to check."""
        settings = self.settings
        refuse_unknown(settings.system.name, {**settings.system.validation})
        return settings.nodes or 1

    def check_nodes_are_held(self) -> None:
        """Check that the session holds nodes for its checks, and that the number of their GPUs is known."""
        settings = self.settings
        if not self.planned.checks:
            return
        if settings.cluster == "slurm" and settings.nodes is None:
            raise ConfigError("checks need nodes that the session holds: give their number with --nodes")
        if settings.cluster == "slurm" and settings.allocation == "run":
            raise ConfigError(
                "llmbench_allocation = run makes a Slurm job per run, and no node is held that could be "
                "checked: leave it out"
            )
        if settings.cluster == "slurm" and settings.gpus_of_a_node is None:
            raise ConfigError(
                f"system {settings.system.name} does not give the number of GPUs of a node: pass "
                "--gpus-per-node (0 for none), or a --system that has it"
            )

    def check_budget(self) -> None:
        """Check that the planned runs and checks stay within `--llmbench-budget`."""
        settings = self.settings
        if settings.budget is None or settings.replay is not None:
            return
        if settings.rerun and not (settings.cluster == "slurm" and settings.allocation == "session"):
            raise ConfigError(
                "--llmbench-budget with --llmbench-inconclusive rerun: further runs are bounded only where the session "
                "holds its nodes: add --nodes, or leave out one of the two"
            )
        hours = hours_at_most(self.planned, settings, self.session)
        if hours > settings.budget:
            raise ConfigError(
                f"--llmbench-budget {settings.budget:g}: by their time limits, the runs and checks could take "
                f"{for_people(hours)} GPU-hours, so nothing was started: give a shorter --time, select fewer tests "
                "(-k), or raise --llmbench-budget"
            )

    def plan(self, tests: Sequence[Declared], checks: Sequence[str]) -> None:
        """Set what the collected tests need, each run and check once."""
        asked: dict[str, int] = {}
        for test in tests:
            if test.run is not None:
                asked[test.run] = max(asked.get(test.run, 0), test.repeats)
        repeated = {key for key, most in asked.items() if most > 1 or self.settings.rerun}
        for other in self.choices if repeated else ():  # they are wrong where an ini file is
            key = other.rpartition("-repeat")[0]
            if key in repeated and self.choices[other].series != key:
                raise ConfigError(f"a repeat of {key} could have the name of recipe {other}: rename that recipe")
        runs = tuple(self._run(key, number) for key, most in asked.items() for number in range(1, most + 1))
        needed: tuple[tuple[Extensions[Any], Iterable[str]], ...] = (
            (ENGINES, dict.fromkeys(run.recipe.engine for run in runs)),
            (CHECKS, checks),
        )
        entries = {
            f"{known.kind} {name}": entry
            for known, names in needed for name in names if not known.is_ours(name)
            if (entry := getattr(known.load(name), "entry", None)) is not None
        }  # fmt: skip
        # In this order: only in a session with tests of ours are unusable settings an error.
        if entries and self.settings.replay is None and self.settings.cluster != "debug":
            refuse_unimportable(entries, self.settings)
        if runs and self.settings.early_verdict and self.settings.replay is None:
            runs = tuple(
                run.model_copy(
                    update={"early": early_plan(run, [test for test in tests if test.run == run.series], self.settings)}
                )
                for run in runs
            )
        gate = bool(checks) and (self.settings.gate in {"on", "links"} or (self.settings.gate == "auto" and bool(runs)))
        self.planned = Plan(runs=runs, checks=tuple(checks), gate=gate, tests=tuple(tests))

    def _run(self, series: str, number: int) -> RunSpec:
        key, first = repeat_key(series, number), self.choices[series]
        if key in self.choices:
            return self.choices[key]
        repeat = first.repeated(number)
        if first.replayed is None:
            return repeat
        have = sum(spec.series == series for spec in self.choices.values())
        message = (
            f"{number} runs of {series} are asked for, and the logs have {have}: give --llmbench-repeat {have}, or "
            "more logs"
        )
        problem = Problem(kind="no_log", message=message)
        return repeat.model_copy(update={"replayed": first.replayed.model_copy(update={"problem": problem})})

    def add_repeats(self, series: str, number: int, look: int) -> tuple[RunSpec, ...]:
        """Plan further runs of a series up to that number, and return the new ones."""
        first = next(run for run in self.planned.runs if run.key == series)
        have = max(run.repeat for run in self.planned.runs if run.series == series)
        new = tuple(first.repeated(repeat, look) for repeat in range(have + 1, number + 1))
        self.planned = self.planned.model_copy(update={"runs": (*self.planned.runs, *new)})
        return new

    @property
    def requires_verdict(self) -> bool:
        """True if a run without a verdict on its speed fails the session, as by default at scale full."""
        asked = self.options.require_verdict
        return asked == "yes" if asked is not None else self.settings.scale == "full"

    def unmade(self, key: str) -> RunRecord:
        """Facts of a planned run before it starts."""
        run = next(run for run in self.planned.runs if run.key == key)
        return RunRecord.of(run_identity(run, self.settings, self.session))

    def unmade_check(self, name: str) -> HealthRecord:
        """Facts of a planned check before it starts."""
        report = Report(problem="it was not made")
        return health_record(get_check(name), self.settings, self.session, report=report)


def bench_of(config: pytest.Config) -> Bench:
    """The session's state."""
    return config.stash[KEY]
