"""The plan: jobs, scripts, node-hours, and impossible runs, before anything is submitted."""

import shlex
from collections.abc import Iterator, Sequence

from pytest_llmbench.checks.base import get_check
from pytest_llmbench.cluster.executors import sbatch_script
from pytest_llmbench.cluster.runs import Plan, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings, existing_allocation
from pytest_llmbench.core.quantity import counted, for_people
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.engines.base import get_engine, statistics_of
from pytest_llmbench.judging.feasibility import Demand, Peak, demand
from pytest_llmbench.judging.interval.early import looks
from pytest_llmbench.judging.interval.steady import LEAST
from pytest_llmbench.judging.references import why_not_applicable
from pytest_llmbench.session.border import Border
from pytest_llmbench.session.early import machine_of
from pytest_llmbench.session.script.prepared import PreparedRun, holder_request, prepare


def peak_of(recipe: Recipe, settings: Settings) -> Peak | None:
    """The published peak for a recipe; None on CPUs, at scale smoke, and where peak or FLOPs are unknown."""
    gpu, topology = settings.system.gpu, settings.topology(recipe)
    tflops = gpu.peak_tflops.get(recipe.precision) if gpu is not None else None
    if gpu is None or tflops is None or topology.gpus == 0 or recipe.scale != "full":
        return None
    if not get_engine(recipe.engine).counts_flops(recipe):
        return None
    return Peak(recipe=recipe, topology=topology, gpu=gpu.model, tflops_per_gpu=tflops)


def demand_of(reference: Reference, recipe: Recipe, settings: Settings) -> Demand | None:
    """Demand of a reference on the GPUs; None if it is for other machines or statistics, or the peak is unknown."""
    peak = peak_of(recipe, settings)
    if peak is None:
        return None
    if why_not_applicable(reference, machine_of(settings, recipe, peak.topology, peak.gpu)) is not None:
        return None
    return demand(reference, statistics_of(get_engine(recipe.engine))[reference.statistic], peak)


def describe(plan: Plan, settings: Settings, session: Session) -> tuple[list[str], bool]:
    """The lines of the plan (each job, its script and node-hours, and the sum), and True if all runs can be tried."""
    runs = plan.runs
    steps = [counted(len(plan.checks), "check")] if plan.checks else []
    steps += [counted(len(runs), "run")] if runs or not plan.checks else []
    where = f"system {settings.system.name}, cluster {settings.cluster}"
    lines = [f"{where}, {', then '.join(steps)}, nothing is submitted", ""]
    lines += [f"check {name}: {get_check(name).summary}" for name in plan.checks]
    lines += [
        f"{run.key}: engine {run.recipe.engine}, {run.replayed.topology}, replayed from {run.replayed.logs}"
        for run in runs if run.replayed is not None
    ]  # fmt: skip
    prepared = [(run, prepare(run, settings, session)) for run in runs if run.replayed is None]
    lines += [_describe_run(run, result, settings, runs) for run, result in prepared if run.repeat == 1]
    if settings.left_over:
        lines.append(
            f"NOT TESTED: {settings.left_over} of {settings.nodes} nodes, too few for a group of "
            f"{settings.nodes_per_run}"
        )
    ready = [result for _, result in prepared if isinstance(result, PreparedRun)]
    for run in ready:
        if run.script is not None and run.spec.repeat == 1:
            script = Border(settings.system).text(run.script.rstrip())
            lines += ["", f"# script of {run.key}, run on its first node", script]
    return [*lines, *_describe_jobs(plan, ready, settings, session)], len(ready) == len(prepared)


def _describe_jobs(plan: Plan, ready: Sequence[PreparedRun], settings: Settings, session: Session) -> list[str]:
    if settings.cluster != "slurm" or not (ready or plan.checks):
        return []
    if existing_allocation() is not None:
        return ["", f"All runs are steps of Slurm job {existing_allocation()}, which this process is in."]
    held = settings.allocation == "session"
    lines = []
    requests = [run.processes.request for run in ready]
    if held:
        feasible = plan.model_copy(update={"runs": tuple(run.spec for run in ready)})
        requests = [holder_request(feasible, settings, session)]
    if held and ready:
        lines += ["", "# srun command of each run, once the nodes are there"]
        lines += [
            shlex.join(run.processes.step_command("JOB", [f"NODE{number + 1}" for number in range(run.topology.nodes)]))
            for run in ready
        ]
    for request in requests:
        lines += ["", f"# sbatch script of {request.name}", sbatch_script(request).rstrip()]
    hours = sum(request.nodes * request.time_min / 60 for request in requests)
    several = f"{len(requests)} jobs, one per run" if len(requests) > 1 else "1 job for the one run"
    kinds = " and ".join(kind for kind, there in (("check", plan.checks), ("run", ready)) if there)
    what = f"1 job holds the nodes, each {kinds} is a step in it" if held else several
    return [*lines, "", f"{what}: at most {for_people(hours)} node-hours"]


def _describe_run(run: RunSpec, prepared: PreparedRun | Problem, settings: Settings, runs: Sequence[RunSpec]) -> str:
    recipe, topology = run.recipe, settings.topology(run.recipe)
    what = (
        f"{run.key}: engine {recipe.engine}, {topology}, {topology.world_size} ranks, {recipe.steps} steps of "
        f"{recipe.tokens_per_step} tokens, at most {settings.time_limit_min(recipe)} min"
    )
    repeats = [other.key for other in runs if other.series == run.key and other is not run]
    again = [f"then {', '.join(repeats)}, judged together with it"] if repeats else []
    refused = [f"CANNOT RUN: {prepared.message}"] if isinstance(prepared, Problem) else []
    ends = []
    if isinstance(prepared, PreparedRun) and (early := prepared.early) is not None:
        *before, last = looks(recipe.steps, recipe.warm_up.steps)
        at = f"is looked at after {', '.join(map(str, before))} and {last} steps"
        ends = [at if early.whole is None else f"runs whole: {early.whole}"]
    return "\n  ".join([what, *again, *refused, *_too_short(run, settings), *ends, *_feasibility(run, settings)])


def _too_short(run: RunSpec, settings: Settings) -> Iterator[str]:
    """Name the bounds on speed that so few steps will leave undecided."""
    recipe, topology, gpu = run.recipe, settings.topology(run.recipe), settings.system.gpu
    known = statistics_of(get_engine(recipe.engine))
    judged = recipe.steps - recipe.warm_up.steps
    bounds = [reference for reference in recipe.references if known[reference.statistic].steady is not None]
    if gpu is not None or topology.gpus == 0 or recipe.scale != "full":
        machine = machine_of(settings, recipe, topology, gpu.model if gpu and topology.gpus else "cpu")
        bounds = [reference for reference in bounds if why_not_applicable(reference, machine) is None]
    if bounds and recipe.end == "steps" and judged < LEAST:
        names = ", ".join(reference.name for reference in bounds)
        yield (
            f"TOO SHORT: {counted(judged, 'step')} after the warm-up will hardly decide on {names}: give the recipe at "
            f"least {recipe.warm_up.steps + LEAST} steps"
        )


def _feasibility(run: RunSpec, settings: Settings) -> Iterator[str]:
    peak = peak_of(run.recipe, settings)
    if peak is None:
        return
    yield f"feasibility: {peak.limit}"
    for reference in run.recipe.references:
        asked = demand_of(reference, run.recipe, settings)
        if asked is not None:
            yield f"{'CANNOT BE MET: ' if asked.impossible else 'WARNING: ' if asked.bold else ''}{asked}"
