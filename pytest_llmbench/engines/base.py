"""The engine protocol, its common defaults, and the look-up of engines by name."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.extensions import Extensions, named
from pytest_llmbench.core.quantity import Quantity, listed
from pytest_llmbench.core.recipe.environments import Environment
from pytest_llmbench.core.recipe.recipes import Parallelism, Recipe
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.recipe.shape import unusual
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.claims import Asks, Expected, SettingsCheck
from pytest_llmbench.core.record.series import Progress, StepSeries
from pytest_llmbench.core.schema import NoOptions, Strict, validate
from pytest_llmbench.engines.overrides import Rules
from pytest_llmbench.judging.memory import Footprint
from pytest_llmbench.judging.references import Machine, applied
from pytest_llmbench.judging.statistics import SHARED, Statistic

EngineOptions = TypeVar("EngineOptions", bound=Strict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTask:
    """A callable that every rank runs, importable on the nodes."""

    entry: str  # `package.module:function`, called with `(RankContext, StepLog)`
    config: Mapping[str, Any]  # plain data, handed to each rank as `RankContext.config`
    # Environment variables of the ranks, set before all other imports; those of the system's file override them.
    env: Mapping[str, str] = field(default_factory=dict)
    ends_early: bool = False  # whether all ranks end after the same step when `StepLog.enough` of rank 0 is true


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A program of the framework's own environment, and how it is started on the nodes of a run.

    The launcher is `once` on the first node (it starts the rest itself), `node` once on each, `srun` once per rank,
    `torchrun` once on each node as torchrun, which starts the ranks, `deepspeed` on the first node with a hostfile of
    all.
    """

    launcher: Literal["once", "node", "srun", "torchrun", "deepspeed"]
    # The program and its arguments; for `torchrun` and `deepspeed` the script they start and its arguments. A word may
    # use the shell variables of a run's script, such as `$LLMBENCH_HOSTS`; all else in it is quoted.
    argv: tuple[str, ...]
    launcher_args: tuple[str, ...] = ()  # of torchrun or deepspeed themselves
    env: Mapping[str, str] = field(default_factory=dict)  # of this command alone
    folder: str | None = None  # in which it starts; by default the run's
    bare: bool = False  # whether it runs outside the container of the environment
    shell: bool = False  # whether `argv` is a single word with lines for bash


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """The commands of one run, one after the other; the first that fails ends it."""

    commands: tuple[Command, ...]
    notes: tuple[str, ...] = ()  # the source's command, and the reasons for deviations, for the head of the script


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The place in which a command will run."""

    folder: Path  # of the run, on a file system that all nodes share
    environment: Environment  # the framework's own, from the system's file
    slurm: bool  # whether srun is there
    time_limit_min: int  # wall clock of the run, minutes


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchLog:
    """One run of a batch."""

    path: Path  # of its log, which may be missing
    hosts: tuple[str, ...]  # its nodes, as far as they are recorded


# The source's result file for the runs of a batch, in order, and a threshold in the unit of the statistic of record.
Evaluate = Callable[[Sequence[BatchLog], float], bytes]


class Engine(Protocol):
    """The framework that trains. A package registers its engines in the entry points `pytest_llmbench.engines`.

    Its kind is `ranks`, when every rank is our own process and keeps a step log, or `command`, when the framework is a
    command whose only evidence is its log. An engine that inherits from this class gets the defaults here.
    """

    name: str  # under which it is registered
    kind: Literal["ranks", "command"]
    proof: str  # that a run did all its work, in words
    options: type[Strict] = NoOptions  # the model of a recipe's `options`
    statistics: Mapping[str, Statistic] = {}  # rules of this engine alone, by name
    log_per_run: str | None = None  # of logs made elsewhere, the pattern of files that are a run of their own each
    evaluate: Evaluate | None = None  # the source's own evaluator of a batch, one run on each group of nodes
    # Keys of a recipe beyond a plain decoder that it trains, such as `model.experts`.
    shapes: frozenset[str] = frozenset()

    def missing(self, recipe: Recipe | None = None) -> str | None:
        """Return the packages that any recipe, or this one, lacks and how to install them; None if it can run."""
        return None

    def problems(self, recipe: Recipe, topology: Topology) -> Iterator[str]:
        """Yield every reason that keeps this recipe from running on this topology, without the recipe's name."""

    def uncounted(self, recipe: Recipe) -> str | None:
        """Return why the FLOPs of a step are unknown; None if it trains the whole decoder on every token."""
        return None

    def footprint(self, recipe: Recipe, topology: Topology) -> Footprint | None:
        """Return what a training keeps in the memory of its GPUs; None if that is unknown."""
        return None

    def asks(self, recipe: Recipe, topology: Topology) -> Asks:
        """Return values to compare a run's claims with, in addition to or instead of the recipe's fields."""
        return {}

    def compare(self, recipe: Recipe, topology: Topology, series: StepSeries) -> SettingsCheck:
        """Compare the settings that a log prints with those that the run was to have."""
        return Rules().compare(series.settings)

    def work(self, recipe: Recipe, topology: Topology, place: Place) -> RankTask | Script:
        """Build what runs: a task for every rank for kind `ranks`, else a script."""

    def read(self, folder: Path, recipe: Recipe) -> StepSeries:
        """Read what was logged so far under a run's folder."""

    def doubts(self, recipe: Recipe, topology: Topology, series: StepSeries) -> Iterator[str]:
        """Yield contradictions of a finished log with itself or the recipe that are specific to this engine."""
        yield from ()

    def expected(self, recipe: Recipe, topology: Topology) -> Expected | None:
        """Return what our own ranks must report of this training; None for a command."""
        return None

    def progress(self, folder: Path) -> Progress | None:
        """Return the last step logged, at constant cost; None before the first."""

    def laggards(self, folder: Path) -> str:
        """Describe which ranks are behind the others and where each stands, as far as the logs allow."""


ENGINES: Extensions[Engine] = Extensions("engine", "engines", named(Engine))
get_engine = ENGINES.load


def problems_of(engine: Engine, recipe: Recipe, topology: Topology) -> Iterator[str]:
    """Yield every reason that keeps this recipe from running on this topology, keys unknown to its engine first."""
    for problem in (*shape_problems(engine, recipe, topology), *engine.problems(recipe, topology)):
        yield f"recipe {recipe.name}: {problem}"


def shape_problems(engine: Engine, recipe: Recipe, topology: Topology) -> Iterator[str]:
    """Yield each key of the model and its layout that an engine would leave out, and train another model."""
    layout, ranks = recipe.parallelism, topology.world_size
    auto = [("parallelism.activation_checkpointing", "auto")] * (layout.activation_checkpointing == "auto")
    for key, value in (*unusual("model", recipe.model), *unusual("parallelism", layout, _LAYOUT), *auto):
        if key not in engine.shapes:
            given = str(value) if isinstance(value, int | str) else "..."
            able = listed(name for name, other in ENGINES.usable().items() if key in other.shapes)
            hint = f"engine: {able} can" if able else "no installed engine can"
            yield f"engine {engine.name} cannot train {key}: {given}; {hint}"
    experts = recipe.model.experts
    if layout.expert > 1 and (experts is None or experts.number % layout.expert):
        yield f"parallelism.expert {layout.expert} does not divide {experts.number if experts else 0} experts"
    if layout.expert > 1 and ranks % (layout.pipeline * layout.expert):
        yield f"{ranks} ranks ({topology}) do not divide by pipeline {layout.pipeline} × expert {layout.expert}"


# Layouts that engines have always checked by themselves.
_LAYOUT = frozenset(Parallelism.model_fields) - {"context", "expert"}


def statistics_of(engine: Engine) -> Mapping[str, Statistic]:
    """Return every statistic that a run of this engine can be judged by."""
    return {**SHARED.usable(), **engine.statistics}


def asks_for_speed(statistic: str, engine: str, op: str, bound: Quantity) -> bool:
    """True if a slow run misses the bound: a least rate above 0, or a longest time, of a statistic of speed."""
    of_speed = statistics_of(get_engine(engine))[statistic].of_speed
    return bool(of_speed) and bound.value > 0 and (op in {">=", ">"}) != (bound.dimension == "time")


def known_statistics(recipe: Recipe) -> Mapping[str, Statistic]:
    """Return the statistics of a recipe's engine; none where its package is missing."""
    try:
        return statistics_of(get_engine(recipe.engine))
    except ConfigError:
        return {}


def on_machine(reference: Reference, recipe: Recipe, machine: Machine) -> Reference | str:
    """A reference of a recipe as it counts on a machine, or the reason why it is left out."""
    return applied(reference, machine, known_statistics(recipe).get(reference.statistic), recipe.precision)


def options_of(recipe: Recipe, model: type[EngineOptions]) -> EngineOptions:
    """Validate the recipe's `options` as the engine's model.

    Raises ConfigError if a key is unknown or a value is invalid.
    """
    return validate(model, recipe.options, f"recipe {recipe.name}: options")
