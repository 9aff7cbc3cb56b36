"""A run, prepared once: its plan, its launch, its watch and its end all read the same values."""

from dataclasses import dataclass

from pytest_llmbench.cluster.runs import EarlyPlan, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import gpus_here
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.plain import refuse_unplain
from pytest_llmbench.core.recipe.environments import Environment
from pytest_llmbench.core.recipe.recipes import Preparation, Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.core.wire.fault import SimulatedFault
from pytest_llmbench.engines.base import Engine, Place, RankTask, Script, get_engine
from pytest_llmbench.session.script.preparing import preparations
from pytest_llmbench.session.script.requests import Startable, run_request
from pytest_llmbench.session.script.scripts import write_script
from pytest_llmbench.workloads.node.command import run_command
from pytest_llmbench.workloads.rank.main import run_rank


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedRun:
    """A run that can be launched.

    Attributes:
        spec: the run as the plan has it.
        place: the place in which a command will run; its folder is the run's, whatever the engine.
        work: a task for every rank, or the script of a command.
        script: the bash script of a command; None where the ranks are our own.
        preparations: preparations of a command before its first start.
        processes: the ranks, or the driver of the command.
    """

    spec: RunSpec
    engine: Engine
    topology: Topology
    place: Place
    work: RankTask | Script
    script: str | None
    preparations: tuple[Preparation, ...]
    processes: Startable

    @property
    def key(self) -> str:
        """The run's name in the session."""
        return self.spec.key

    @property
    def early(self) -> EarlyPlan | None:
        """With `--llmbench-early-verdict`, what decides on its end: also whether its ranks can end together."""
        plan = self.spec.early
        if plan is None or plan.whole is not None or (isinstance(self.work, RankTask) and self.work.ends_early):
            return plan
        why = f"engine {self.engine.name} cannot end all its ranks after the same step"
        return plan.model_copy(update={"whole": why})


def prepare(run: RunSpec, settings: Settings, session: Session) -> PreparedRun | Problem:
    """Prepare a run, or say why it cannot even be tried."""
    recipe, topology = run.recipe, settings.topology(run.recipe)
    try:
        engine = get_engine(recipe.engine)
    except ConfigError as error:  #: problem unknown_engine: no installed package has an engine of that name
        return Problem(kind="unknown_engine", message=f"recipe {recipe.name}: {error}")
    if (refusal := _refusal(engine, run, topology, settings)) is not None:
        return refusal
    driven = engine.kind == "command"
    place = Place(
        folder=session.run_folder(run.key),
        environment=settings.system.environments.get(recipe.engine, Environment()),
        slurm=settings.cluster == "slurm",
        time_limit_min=settings.time_limit_min(recipe),
    )
    try:
        work = engine.work(recipe, topology, place)
        script = None
        if isinstance(work, Script):
            script = write_script(work, place, topology, settings.system.env, run.key)
        else:
            refuse_unplain(work.config, f"engine {engine.name}: the config of its ranks")
        wanted = preparations(recipe, place) if driven else ()
    except ConfigError as error:
        return Problem(kind="environment_missing" if driven else "impossible", message=str(error))
    request = run_request(run, topology, settings, session, driven=driven)
    function = run_command if driven else run_rank
    processes = Startable(request=request, function=function, folder=place.folder, driven=driven)
    return PreparedRun(
        spec=run, engine=engine, topology=topology, place=place, work=work, script=script, preparations=wanted,
        processes=processes,
    )  # fmt: skip


def _refusal(engine: Engine, run: RunSpec, topology: Topology, settings: Settings) -> Problem | None:
    """The reason why the run cannot be tried here, whatever its script will be."""
    recipe, system = run.recipe, settings.system
    here = gpus_here() if settings.cluster in {"local", "debug"} and topology.gpus else None
    if here is not None and here < topology.gpus_per_node:  # the ranks of other nodes find out for themselves
        message = (
            f"the run asks for {topology.gpus_per_node} GPUs of this machine, which has {here or 'none'}: pass "
            f"--gpus-per-node {here}{'' if here else ' to train on the CPU'}, or run on a cluster (--cluster slurm)"
        )  #: problem no_gpu: a run of this machine asks for more GPUs than it has; nothing was started
        return Problem(kind="no_gpu", message=message)
    if (missing := engine.missing() if system.python is None else None) is not None:
        #: problem engine_missing: the engine's software is not installed; the message has the command that installs it
        return Problem(kind="engine_missing", message=missing)
    if problems := list(engine.problems(recipe, topology)):
        #: problem impossible: the recipe cannot run on this topology, as when a batch does not divide
        return Problem(kind="impossible", message="; ".join(problems))
    if settings.simulate is not None and (why := _unstruck(settings.simulate, engine, recipe, topology)) is not None:
        return Problem(kind="not_struck", message=f"--llmbench-simulate {settings.simulate} can never strike: {why}")
    if engine.kind == "command" and recipe.engine not in system.environments:
        message = (
            f"engine {recipe.engine} is a command with an environment of its own, and system {system.name} has no "
            f"entry for it: add `environments: {{{recipe.engine}: {{root: ...}}}}` to its file"
        )
        #: problem environment_missing: the system file lacks the engine's environment, or a place in it
        return Problem(kind="environment_missing", message=message)
    return None


def _unstruck(fault: SimulatedFault, engine: Engine, recipe: Recipe, topology: Topology) -> str | None:
    """The reason why a fault cannot be caused in a run."""
    if engine.kind == "command":
        return f"engine {engine.name} is a program of its own, and faults are caused in ranks of ours"
    if fault.step > recipe.steps:
        return f"recipe {recipe.name} has {recipe.steps} steps"
    if fault.name == "wrong-numbers" and topology.world_size == 1:
        return "a run of one rank has no other to compare its numbers with"
    return None
