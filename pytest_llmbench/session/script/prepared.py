"""Prepares a run once for its plan, launch and end, and makes the requests to the cluster."""

import heapq
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_llmbench.checks.base import CheckSettings, Probe, deadline_of, get_check
from pytest_llmbench.cluster.containers import inside, srun_options
from pytest_llmbench.cluster.executors import JobRequest
from pytest_llmbench.cluster.runs import EarlyPlan, Plan, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings, existing_allocation, existing_nodes
from pytest_llmbench.cluster.slurm.commands import clean_environment
from pytest_llmbench.cluster.slurm.keys import SLURM_DEFAULTS
from pytest_llmbench.cluster.system import gpus_here, visible_gpus
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.plain import refuse_unplain
from pytest_llmbench.core.recipe.environments import Container, Environment, fill_in
from pytest_llmbench.core.recipe.recipes import Preparation, Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.driver import VARIABLES
from pytest_llmbench.core.wire.foreign import mapped
from pytest_llmbench.engines.base import Engine, Place, RankTask, Script, get_engine, problems_of
from pytest_llmbench.session.forecast import refusals
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
# A slow run is ended by its own limit, with a better message than that of the job that holds its node.
_SLACK_MIN = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Startable:
    """Processes that can be started: the ranks of a run or of a probe, or the driver of a command."""

    request: JobRequest
    function: Callable[[str], None]  # entry of each, called with `folder`; in a step, its module is the command
    folder: Path  # has their task
    driven: bool = False  # it is the driver of a command, one process on the first node
    end_together: bool = True  # one that fails ends the others

    def step_command(self, job_id: str, hosts: Sequence[str]) -> list[str]:
        """The srun command that starts them on nodes of a held job, from outside it."""
        request, together, on = self.request, self.end_together, hosts[:1] if self.driven else hosts
        argv = [*shlex.split(request.interpreter), "-u", "-m", self.function.__module__, str(self.folder)]
        if request.step_setup:
            argv = ["bash", "-c", "\n".join(["set -e", *request.step_setup, f"exec {shlex.join(argv)}"])]
        return [
            "srun", f"--jobid={job_id}", "--overlap", "--mem=0", f"--kill-on-bad-exit={int(together)}", "--unbuffered",
            "--cpu-bind=none", f"--nodes={len(on)}", f"--nodelist={','.join(on)}",
            f"--ntasks={len(on) * request.tasks_per_node}", f"--ntasks-per-node={request.tasks_per_node}",
            *([] if together else ["--wait=0", "--distribution=block"]),
            *([f"--gpus-per-node={request.gpus_per_node}"] if request.gpus_per_node else []),
            f"--job-name={request.name}", *request.step_logs, *request.srun_args, *argv,
        ]  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedRun:
    """A run that can be launched."""

    spec: RunSpec
    engine: Engine
    topology: Topology
    place: Place
    work: RankTask | Script
    script: str | None  # the bash script of a command; None where the ranks are our own
    preparations: tuple[Preparation, ...]  # of a command, before its first start
    processes: Startable  # the ranks, or the driver of the command

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
            script = write_script(work, place, topology, settings.env, run.key)
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
    recipe, system, driven = run.recipe, settings.system, engine.kind == "command"
    here = gpus_here() if settings.cluster in {"local", "debug"} and topology.gpus else None
    if here is not None and here < topology.gpus_per_node:  # the ranks of other nodes find out for themselves
        message = (
            f"the run asks for {topology.gpus_per_node} GPUs of this machine, which has {here or 'none'}"
            f"{'' if visible_gpus() is None else ' in CUDA_VISIBLE_DEVICES'}: pass "
            f"--gpus-per-node {here}{'' if here else ' to train on the CPU'}, or run on a cluster (--cluster slurm)"
        )  #: problem no_gpu: a run of this machine asks for more GPUs than it has
        return Problem(kind="no_gpu", message=message)
    if (missing := engine.missing(recipe) if system.python is None else None) is not None:
        #: problem engine_missing: the engine's software is not installed; the message has the command that installs it
        return Problem(kind="engine_missing", message=missing)
    if problems := list(problems_of(engine, recipe, topology)) or list(refusals(recipe, settings)):
        #: problem impossible: the recipe cannot run on this topology, as when a batch does not divide, its state is
        #:  larger than the GPUs' memory, or its time limit shorter than its steps at the published peak
        return Problem(kind="impossible", message="; ".join(problems))
    if (fault := settings.simulate) and not fault.env:
        reasons = {
            f"engine {engine.name} is a program of its own, and faults are caused in ranks of ours": driven,
            f"recipe {recipe.name} has {recipe.steps} steps": (fault.step or 0) > recipe.steps,
            "a run of one rank has no other to compare its numbers with": (
                fault.name == "wrong-numbers" and topology.world_size == 1
            ),
        }
        if reason := next((reason for reason, holds in reasons.items() if holds), None):
            return Problem(kind="not_struck", message=f"--llmbench-simulate {fault} can never strike: {reason}")
    if driven and recipe.engine not in system.environments:
        message = (
            f"engine {recipe.engine} is a command with an environment of its own, and system {system.name} has no "
            f"entry for it: add `environments: {{{recipe.engine}: {{root: ...}}}}` to its file"
        )
        #: problem environment_missing: the system file lacks the engine's environment, or a place in it
        return Problem(kind="environment_missing", message=message)
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
    environment is made on the nodes alone: by the system's `setup`, or with a Python of the nodes. Raises ConfigError
    if one cannot be imported.
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


def holder_request(plan: Plan, settings: Settings, session: Session) -> JobRequest:
    """The job that holds `--nodes` nodes for all checks and runs of the session."""
    checked = [settings.gpus_of_a_node or 0] if plan.checks else []
    return JobRequest(
        name="llmbench-hold",
        folder=session.folder / layout.HOLDER,
        nodes=settings.nodes or 1,
        gpus_per_node=max([*checked, *(settings.topology(run.recipe).gpus_per_node for run in plan.runs)]),
        tasks_per_node=1,
        time_min=_session_minutes(plan, settings),
        use_srun=False,
        # A check survives to report a dead node, and runs go on in the nodes that are left.
        outlives_nodes=True,
        **_common(settings, session),
    )


def run_request(run: RunSpec, topology: Topology, settings: Settings, session: Session, *, driven: bool) -> JobRequest:
    """The job, or the local processes, of one run; if `driven`, one process on the first node runs its script."""
    return JobRequest(
        name=f"llmbench-{run.key}",
        folder=session.run_folder(run.key) / layout.LOGS,
        nodes=topology.nodes,
        gpus_per_node=topology.gpus_per_node,
        tasks_per_node=1 if driven else topology.ranks_per_node,
        use_srun=not driven,
        time_min=settings.time_limit_min(run.recipe),
        **_common(settings, session),
    )


def probe_request(probe: Probe, folder: Path, nodes: int, settings: Settings, session: Session) -> JobRequest:
    """The step, or the local processes, of one probe of a check."""
    return JobRequest(
        name=f"llmbench-{probe.name}",
        folder=folder / layout.LOGS,
        nodes=nodes,
        gpus_per_node=(settings.gpus_of_a_node or 0) if probe.gpus else 0,
        tasks_per_node=probe.ranks_per_node,
        time_min=math.ceil(probe.deadline_s / 60),
        **_common(settings, session),
    )


def hours_at_most(plan: Plan, settings: Settings, session: Session) -> float:
    """GPU-hours that a session takes at worst, by its time limits; a node whose GPUs are not used counts as one."""
    if settings.cluster == "slurm" and settings.allocation == "session" and existing_allocation() is None:
        holder = holder_request(plan, settings, session)
        return holder.nodes * (holder.gpus_per_node or 1) * holder.time_min / 60 * (1 + settings.retries)
    runs = ((settings.topology(run.recipe), settings.time_limit_min(run.recipe)) for run in plan.runs)
    checked = (settings.nodes or existing_nodes() or 1) * (settings.gpus_of_a_node or 1)
    minutes = sum((topology.gpus or topology.nodes) * limit for topology, limit in runs)
    return (minutes * (1 + settings.retries) + checked * _check_minutes(plan, settings)) / 60


def _session_minutes(plan: Plan, settings: Settings) -> int:
    """`--time`, or the longest duration of checks and runs on the lanes of nodes."""
    if settings.time_min is not None:
        return settings.time_min
    longest = longest_lane((run.recipe.time_limit for run in plan.runs), settings)
    return _check_minutes(plan, settings) + math.ceil(longest) + _SLACK_MIN


def longest_lane(minutes: Iterable[float], settings: Settings) -> float:
    """Duration of these runs, in order, on a number of lanes of nodes."""
    nodes = settings.nodes or 1
    at_once = nodes // (settings.nodes_per_run or nodes)
    lanes = [0.0] * max(1, min(at_once, settings.max_runs or at_once))
    for duration in minutes:
        heapq.heappush(lanes, heapq.heappop(lanes) + duration)
    return max(lanes)


def _check_minutes(plan: Plan, settings: Settings) -> int:
    """Longest duration of all checks: the longest of each family, whose checks share measurements."""
    longest: dict[str, float] = {}
    for name in plan.checks:
        check = get_check(name)
        own = settings.system.validation.get(name, CheckSettings())
        longest[check.family] = max(longest.get(check.family, 0.0), deadline_of(check, own))
    return math.ceil(sum(longest.values()) / 60)


def _common(settings: Settings, session: Session) -> dict[str, Any]:
    system = settings.system
    defaults = {option: value for option in SLURM_DEFAULTS if (value := getattr(system, option)) is not None}
    return {
        "comment": " ".join(filter(None, (session.token, settings.slurm.get("comment")))),
        "slurm": defaults | dict(settings.slurm),
        "setup": system.setup,
        "srun_args": system.srun_args,
        "python": system.python,
    }
