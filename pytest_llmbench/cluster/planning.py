"""What would run: jobs, scripts, node-hours, and what cannot run, known before anything is submitted."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from pytest_llmbench.cluster.executors import sbatch_script
from pytest_llmbench.cluster.requests import holder_request, run_request, step_command
from pytest_llmbench.cluster.runs import RunSpec, Session
from pytest_llmbench.cluster.settings import Settings, existing_allocation
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipes import Recipe
from pytest_llmbench.core.records import Problem
from pytest_llmbench.engines.base import get_engine


def preflight(recipe: Recipe, settings: Settings) -> Problem | None:
    """Say why a run cannot even be tried, or None."""
    topology = settings.topology(recipe)
    try:
        engine = get_engine(recipe.engine)
    except ConfigError as error:
        return Problem(kind="unknown_engine", message=f"recipe {recipe.name}: {error}")
    missing = engine.missing() if settings.system.python is None else None
    if missing is not None:
        return Problem(kind="engine_missing", message=missing)
    problems = list(engine.problems(recipe, topology))
    if problems:
        return Problem(kind="impossible", message="; ".join(problems))
    return None


def describe(runs: Sequence[RunSpec], settings: Settings, session: Session) -> list[str]:
    """Write the plan: one paragraph per job, its script, its node-hours, and the sum."""
    plural = "" if len(runs) == 1 else "s"
    lines = [
        f"system {settings.system.name}, cluster {settings.cluster}, {len(runs)} run{plural}, nothing is submitted",
        "",
    ]
    lines += [_describe_run(run, settings) for run in runs]
    feasible = [run for run in runs if preflight(run.recipe, settings) is None]
    if settings.cluster != "slurm" or not feasible:
        return lines
    if existing_allocation() is not None:
        return [
            *lines,
            "",
            f"All runs are steps of Slurm job {existing_allocation()}, which this process is in.",
        ]
    held = settings.allocation == "session"
    requests = (
        [holder_request(feasible, settings, session)]
        if held
        else [run_request(run, settings, session) for run in feasible]
    )
    if held:
        lines += ["", "# srun command of each run, once the nodes are there"]
        lines += [shlex.join(step_command(run, settings, session, job_id="JOB", hosts=["NODES"])) for run in feasible]
    for request in requests:
        lines += ["", f"# sbatch script of {request.name}", sbatch_script(request).rstrip()]
    hours = sum(request.nodes * request.time_min / 60 for request in requests)
    what = "1 job holds the nodes, each run is a step in it" if held else f"{len(requests)} jobs, one per run"
    return [*lines, "", f"{what}: at most {hours:g} node-hours"]


def _describe_run(run: RunSpec, settings: Settings) -> str:
    recipe, topology = run.recipe, settings.topology(run.recipe)
    what = (
        f"{run.key}: engine {recipe.engine}, {topology}, {topology.world_size} ranks, {recipe.steps} steps of "
        f"{recipe.tokens_per_step} tokens, at most {settings.time_limit_min(recipe)} min"
    )
    problem = preflight(recipe, settings)
    return f"{what}\n  CANNOT RUN: {problem.message}" if problem else what
