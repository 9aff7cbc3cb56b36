"""What would run: jobs, scripts, node-hours, and what cannot run, known before anything is submitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_llmbench.cluster.executors import JobRequest, sbatch_script
from pytest_llmbench.cluster.runs import RunSpec, Session
from pytest_llmbench.cluster.settings import SLURM_DEFAULTS, Settings, existing_allocation
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


def holder_request(runs: Sequence[RunSpec], settings: Settings, session: Session) -> JobRequest:
    """The job that holds `--nodes` nodes for all runs of the session."""
    return JobRequest(
        name="llmbench-hold",
        folder=session.folder / "allocation",
        nodes=settings.nodes or 1,
        gpus_per_node=max(settings.topology(run.recipe).gpus_per_node for run in runs),
        tasks_per_node=1,
        time_min=_session_minutes(runs, settings),
        use_srun=False,
        **_common(settings, session),
    )


def run_request(run: RunSpec, settings: Settings, session: Session) -> JobRequest:
    """The job, or the local processes, of one run."""
    topology = settings.topology(run.recipe)
    return JobRequest(
        name=f"llmbench-{run.key}",
        folder=session.run_folder(run.key) / "logs",
        nodes=topology.nodes,
        gpus_per_node=topology.gpus_per_node,
        tasks_per_node=topology.ranks_per_node,
        time_min=settings.time_limit_min(run.recipe),
        **_common(settings, session),
    )


def describe(runs: Sequence[RunSpec], settings: Settings, session: Session) -> list[str]:
    """Write the plan: one paragraph per job, its script, its node-hours, and the sum."""
    lines = [
        f"system {settings.system.name}, cluster {settings.cluster}, {len(runs)} runs, nothing is submitted",
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


def _session_minutes(runs: Sequence[RunSpec], settings: Settings) -> int:
    """`--time`, or the runs' own limits added up over the runs that cannot share the nodes."""
    if settings.time_min is not None:
        return settings.time_min
    at_once = _runs_at_once(settings)
    limits = sorted((run.recipe.time_limit for run in runs), reverse=True)
    # Greedy on equal lanes: the longest run of each round bounds the round.
    return sum(limits[::at_once])


def _runs_at_once(settings: Settings) -> int:
    nodes = settings.nodes or 1
    lanes = nodes // (settings.nodes_per_run or nodes)
    return max(1, min(lanes, settings.max_runs or lanes))


def _common(settings: Settings, session: Session) -> dict[str, Any]:
    """What every job of a session asks for: the system file's defaults, the user's options over them."""
    system = settings.system
    defaults = {option: value for option in SLURM_DEFAULTS if (value := getattr(system, option)) is not None}
    return {
        "comment": " ".join(filter(None, (session.token, settings.slurm.get("comment")))),
        "slurm": defaults | dict(settings.slurm),
        "setup": system.setup,
        "srun_args": system.srun_args,
        "python": system.python,
    }
