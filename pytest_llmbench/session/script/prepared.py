"""A run, prepared once: its plan, its launch, its watch and its end all read the same values."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pytest_llmbench.cluster.containers import inside, srun_options
from pytest_llmbench.cluster.runs import EarlyPlan, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.slurm.commands import clean_environment
from pytest_llmbench.cluster.system import gpus_here
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.plain import refuse_unplain
from pytest_llmbench.core.recipe.environments import Container, Environment, fill_in
from pytest_llmbench.core.recipe.recipes import Preparation, Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.core.wire.driver import VARIABLES
from pytest_llmbench.core.wire.fault import SimulatedFault
from pytest_llmbench.core.wire.foreign import mapped
from pytest_llmbench.engines.base import Engine, Place, RankTask, Script, get_engine
from pytest_llmbench.session.script.requests import Startable, run_request
from pytest_llmbench.session.script.scripts import write_script
from pytest_llmbench.workloads.node.command import run_command
from pytest_llmbench.workloads.rank.main import run_rank

_MODULE = re.compile(r"\bpytest_llmbench(?:\.\w+)+")
_MARK = "llmbench-unimportable: "
_TRY = f"""
import importlib, json, sys
for entry in sys.argv[1:]:
    module, _, name = entry.partition(":")
    try:
        getattr(importlib.import_module(module), name)
    except BaseException as error:
        print("\\n{_MARK}" + json.dumps([entry, type(error).__name__ + ": " + str(error)]))
"""
_TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedRun:
    """A run that can be launched.

    Attributes:
        place: the run's folder and the environment of its command.
        script: the bash script of a command; None where the ranks are our own.
        preparations: of a command, before its first start.
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
        """The plan to end it early; with the reason to run whole if its ranks end one by one."""
        plan = self.spec.early
        if plan is None or plan.whole is not None or (isinstance(self.work, RankTask) and self.work.ends_early):
            return plan
        reason = f"engine {self.engine.name} cannot end all its ranks after the same step"
        return plan.model_copy(update={"whole": reason})


def prepare(run: RunSpec, settings: Settings, session: Session) -> PreparedRun | Problem:
    """Prepare a run, or return the problem that makes it impossible."""
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
    if (
        settings.simulate is not None
        and (reason := _why_no_fault(settings.simulate, engine, recipe, topology)) is not None
    ):
        return Problem(kind="not_struck", message=f"--llmbench-simulate {settings.simulate} can never strike: {reason}")
    if engine.kind == "command" and recipe.engine not in system.environments:
        message = (
            f"engine {recipe.engine} is a command with an environment of its own, and system {system.name} has no "
            f"entry for it: add `environments: {{{recipe.engine}: {{root: ...}}}}` to its file"
        )
        #: problem environment_missing: the system file lacks the engine's environment, or a place in it
        return Problem(kind="environment_missing", message=message)
    return None


def _why_no_fault(fault: SimulatedFault, engine: Engine, recipe: Recipe, topology: Topology) -> str | None:
    if engine.kind == "command":
        return f"engine {engine.name} is a program of its own, and faults are caused in ranks of ours"
    if fault.step > recipe.steps:
        return f"recipe {recipe.name} has {recipe.steps} steps"
    if fault.name == "wrong-numbers" and topology.world_size == 1:
        return "a run of one rank has no other to compare its numbers with"
    return None


def preparations(recipe: Recipe, place: Place) -> tuple[Preparation, ...]:
    """Preparations of a run, with every name of the environment filled in."""
    where, wanted = f"recipe {recipe.name}: prepare", (*_own_modules(recipe), *recipe.prepare)
    names = {**place.environment.names, "run": str(place.folder)}
    return tuple(
        item.model_copy(
            update={
                key: fill_in(text, names, f"{where}: {item.name}")
                for key in ("path", "check", "make")
                if (text := getattr(item, key)) is not None
            }
        )
        for item in wanted
    )


def _own_modules(recipe: Recipe) -> tuple[Preparation, ...]:
    """Modules of this package that a recipe needs in the framework's own environment: its options name them."""
    modules: dict[str, None] = {}

    def note(text: str) -> str:
        modules.update(dict.fromkeys(_MODULE.findall(text)))
        return text

    mapped(recipe.options, note)
    return tuple(
        Preparation(
            name=f"own-module-{number}",
            check=f"{{python}} -c 'from importlib.util import find_spec as find; assert find(\"{module}\")'",
            make="{python} -m pip install --no-deps pytest-llmbench, or PYTHONPATH of a checkout in its `env`",
            why=f"the recipe runs {module}, a module of pytest-llmbench, by the framework's own interpreter",
        )
        for number, module in enumerate(modules, 1)
    )


def setup_of(environment: Environment) -> tuple[str, ...]:
    """The shell lines that make an environment usable, in the order in which a run's script has them."""
    if environment.env_file is None:
        return environment.setup
    # Variables of the system's file override those of the file with `export` lines.
    own = (f"export {name}={shlex.quote(value)}" for name, value in environment.env.items())
    return (f". {shlex.quote(environment.env_file)}", *own, *environment.setup)


def container_prefix(container: Container, place: Place, variables: Iterable[str]) -> str:
    """Start of a shell command whose rest runs inside the image on the first node, with these `variables`."""
    folder = str(place.folder)
    if container.runtime == "pyxis":
        once = ["srun", "--nodes=1", "--ntasks=1", '--nodelist="$LLMBENCH_FIRST_HOST"']
        return " ".join([*once, *srun_options(container, folder)])
    return " ".join(inside(container, [], folder, sorted({*variables, *VARIABLES})))


def refuse_unimportable(entries: Mapping[str, str], settings: Settings) -> None:
    """Import each entry in a fresh Python, in an empty folder, with the environment of the ranks.

    An entry is `package.module:function`, by the engine or check that runs it. The trial is left out if the ranks'
    environment is made on the nodes alone: by the system's `setup`, or with a Python of the nodes.

    Raises:
        ConfigError: one cannot be imported.
    """
    system = settings.system
    interpreter = shlex.split(system.python) if system.python is not None else [sys.executable]
    if not entries or system.setup or shutil.which(interpreter[0]) is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*interpreter, "-c", _TRY, *dict.fromkeys(entries.values())],
            cwd=folder, env=clean_environment(system.env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, check=False, timeout=_TIMEOUT_S,
        )  # fmt: skip
    marked = (line.removeprefix(_MARK) for line in done.stdout.splitlines() if line.startswith(_MARK))
    reasons: dict[str, str] = dict(map(json.loads, marked))
    for who, entry in entries.items():
        if entry in reasons:
            raise ConfigError(
                f"{who}: the nodes could not import its function {entry!r}: a fresh Python outside this folder says "
                f"{reasons[entry]}; install its package on the nodes, or put it into a folder that they share and that "
                "PYTHONPATH names"
            )
