"""The plan: jobs, scripts, node-hours, and impossible runs, known before anything is submitted."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from pytest_llmbench.checks.base import get_check
from pytest_llmbench.cluster.executors import sbatch_script
from pytest_llmbench.cluster.runs import Plan, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings, existing_allocation
from pytest_llmbench.cluster.system import gpus_here
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.engines.base import Place, Script, get_engine, statistics_of
from pytest_llmbench.judging.feasibility import Demand, Peak, demand
from pytest_llmbench.judging.references import Machine, why_not_applicable
from pytest_llmbench.session.script.preparing import preparations
from pytest_llmbench.session.script.requests import holder_request, run_request, run_script, step_command
from pytest_llmbench.session.script.scripts import write_script


def preflight(recipe: Recipe, settings: Settings) -> Problem | None:
    """Say why a run cannot even be tried, or None; one that is over needs nothing."""
    if settings.replay is not None:
        return None
    topology = settings.topology(recipe)
    try:
        engine = get_engine(recipe.engine)
    except ConfigError as error:
        return Problem(kind="unknown_engine", message=f"recipe {recipe.name}: {error}")
    no_gpu = _no_gpu(settings, topology)
    if no_gpu is not None:
        return no_gpu
    missing = engine.missing() if settings.system.python is None else None
    if missing is not None:
        return Problem(kind="engine_missing", message=missing)
    problems = list(engine.problems(recipe, topology))
    if problems:
        return Problem(kind="impossible", message="; ".join(problems))
    return _homeless(recipe, settings) if engine.kind == "command" else None


def _no_gpu(settings: Settings, topology: Topology) -> Problem | None:
    """Say that this machine lacks GPUs, where runs are its processes; what other nodes have, their ranks find out."""
    here = gpus_here() if settings.cluster in {"local", "debug"} and topology.gpus else None
    if here is None or here >= topology.gpus_per_node:
        return None
    message = (
        f"the run asks for {topology.gpus_per_node} GPUs of this machine, which has {here or 'none'}: give "
        f"--gpus-per-node {here}{'' if here else ' to train on the CPU'}, or run on a cluster (--cluster slurm)"
    )
    return Problem(kind="no_gpu", message=message)


def _homeless(recipe: Recipe, settings: Settings) -> Problem | None:
    """Say what a command lacks: an environment, or something in it that the recipe speaks of."""
    system = settings.system
    if recipe.engine not in system.environments:
        message = (
            f"engine {recipe.engine} is a command with an environment of its own, and system {system.name} says "
            f"nothing of one: add `environments: {{{recipe.engine}: {{root: ...}}}}` to its file"
        )
        return Problem(kind="environment_missing", message=message)
    place = Place(
        folder=settings.run_dir,
        environment=system.environments[recipe.engine],
        slurm=settings.cluster == "slurm",
        time_limit_min=settings.time_limit_min(recipe),
    )
    topology = settings.topology(recipe)
    try:
        work = get_engine(recipe.engine).work(recipe, topology, place)
        if isinstance(work, Script):
            write_script(work, place, topology, system.env)
        preparations(recipe, place)
    except ConfigError as error:
        return Problem(kind="environment_missing", message=str(error))
    return None


def peak_of(recipe: Recipe, settings: Settings) -> Peak | None:
    """The published peak of what a recipe would run on; None on the CPU, at scale smoke, and where nothing is known.

    Nor is there one to hold a recipe against whose FLOPs are not known.
    """
    gpu, topology = settings.system.gpu, settings.topology(recipe)
    tflops = gpu.peak_tflops.get(recipe.precision) if gpu is not None else None
    if gpu is None or tflops is None or topology.gpus == 0 or recipe.scale != "full":
        return None
    if not get_engine(recipe.engine).counts_flops(recipe):
        return None
    return Peak(recipe=recipe, topology=topology, gpu=gpu.model, tflops_per_gpu=tflops)


def demand_of(reference: Reference, recipe: Recipe, settings: Settings) -> Demand | None:
    """Demand of a reference on the GPUs; None where it is about no speed or another machine, or no peak is known."""
    peak = peak_of(recipe, settings)
    if peak is None:
        return None
    topology = peak.topology
    machine = Machine(
        system=settings.system.name, device=peak.gpu, gpus=topology.gpus, nodes=topology.nodes, scale=recipe.scale
    )
    if why_not_applicable(reference, machine) is not None:
        return None
    return demand(reference, statistics_of(get_engine(recipe.engine))[reference.statistic], peak)


def describe(plan: Plan, settings: Settings, session: Session) -> list[str]:
    """Write the plan: one paragraph per job, its script, its node-hours, and the sum."""
    runs = plan.runs
    steps = [_count(plan.checks, "check")] if plan.checks else []
    steps += [_count(runs, "run")] if runs or not plan.checks else []
    where = f"system {settings.system.name}, cluster {settings.cluster}"
    lines = [f"{where}, {', then '.join(steps)}, nothing is submitted", ""]
    lines += [f"check {name}: {get_check(name).summary}" for name in plan.checks]
    lines += [_describe_run(run, settings) for run in runs]
    if settings.left_over:
        lines.append(
            f"NOT TESTED: {settings.left_over} of {settings.nodes} nodes, too few for a group of "
            f"{settings.nodes_per_run}"
        )
    feasible = [run for run in runs if preflight(run.recipe, settings) is None]
    for run in feasible:
        script = run_script(run, settings, session) if run.replayed is None else None
        if script is not None:
            lines += ["", f"# script of {run.key}, run on its first node", script.rstrip()]
    if settings.cluster != "slurm" or not (feasible or plan.checks):
        return lines
    if existing_allocation() is not None:
        return [
            *lines,
            "",
            f"All runs are steps of Slurm job {existing_allocation()}, which this process is in.",
        ]
    held = settings.allocation == "session"
    requests = (
        [holder_request(plan.model_copy(update={"runs": tuple(feasible)}), settings, session)]
        if held
        else [run_request(run, settings, session) for run in feasible]
    )
    if held and feasible:
        lines += ["", "# srun command of each run, once the nodes are there"]
        lines += [_planned_step(run, settings, session) for run in feasible]
    for request in requests:
        lines += ["", f"# sbatch script of {request.name}", sbatch_script(request).rstrip()]
    hours = sum(request.nodes * request.time_min / 60 for request in requests)
    several = f"{len(requests)} jobs, one per run" if len(requests) > 1 else "1 job for the one run"
    kinds = " and ".join(kind for kind, there in (("check", plan.checks), ("run", feasible)) if there)
    what = f"1 job holds the nodes, each {kinds} is a step in it" if held else several
    return [*lines, "", f"{what}: at most {hours:g} node-hours"]


def _count(things: Sequence[object], word: str) -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"


def _describe_run(run: RunSpec, settings: Settings) -> str:
    recipe, topology = run.recipe, settings.topology(run.recipe)
    if run.replayed is not None:
        return f"{run.key}: engine {recipe.engine}, {run.replayed.topology}, replayed from {run.replayed.logs}"
    what = (
        f"{run.key}: engine {recipe.engine}, {topology}, {topology.world_size} ranks, {recipe.steps} steps of "
        f"{recipe.tokens_per_step} tokens, at most {settings.time_limit_min(recipe)} min"
    )
    problem = preflight(recipe, settings)
    refused = [f"CANNOT RUN: {problem.message}"] if problem else []
    return "\n  ".join([what, *refused, *_feasibility(run, settings)])


def _feasibility(run: RunSpec, settings: Settings) -> Iterator[str]:
    peak = peak_of(run.recipe, settings)
    if peak is None:
        return
    yield f"feasibility: {peak.limit}"
    for reference in run.recipe.references:
        asked = demand_of(reference, run.recipe, settings)
        if asked is not None:
            yield f"{'CANNOT BE MET: ' if asked.impossible else 'WARNING: ' if asked.bold else ''}{asked}"


def _planned_step(run: RunSpec, settings: Settings, session: Session) -> str:
    """The srun command of a run, with as many names as it will have nodes."""
    hosts = [f"NODE{number}" for number in range(1, settings.topology(run.recipe).nodes + 1)]
    return shlex.join(step_command(run, settings, session, job_id="JOB", hosts=hosts))
