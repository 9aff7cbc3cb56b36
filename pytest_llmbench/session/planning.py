"""Describes the plan before anything is submitted: jobs, scripts, node-hours and impossible runs."""

import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from pytest_llmbench.checks.base import get_check
from pytest_llmbench.cluster.allocation import ask_slurm
from pytest_llmbench.cluster.executors import sbatch_script
from pytest_llmbench.cluster.runs import Plan, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings, existing_allocation, existing_nodes
from pytest_llmbench.cluster.slurm.commands import NoAnswerError
from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.core.quantity import counted, for_people
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.engines.base import get_engine, statistics_of
from pytest_llmbench.judging.feasibility import PLAUSIBLE
from pytest_llmbench.judging.interval.early import looks
from pytest_llmbench.judging.interval.steady import LEAST
from pytest_llmbench.session.forecast import as_foreseen, demand_of, doubts, numbers, outlook, outlook_of_check, peak_of
from pytest_llmbench.session.redaction import Redactor
from pytest_llmbench.session.script.prepared import PreparedRun, holder_request, longest_lane, prepare

_NO_SPEED = (
    "NO SPEED WILL BE JUDGED: write a reference for this machine: in its system file, references: {recipe}: (how-to "
    'guide "Set your own threshold")'
)


def describe(
    plan: Plan,
    settings: Settings,
    session: Session,
    *,
    left_out: Mapping[str, Sequence[Reference]],
    required: bool,
    session_min: int | None,
) -> tuple[list[str], bool]:
    """Describe a plan: each job with script and node-hours, the sum, and whether such a session could pass.

    References in `left_out` have no test here, as they are for other machines. With `required`, a run without a verdict
    on its speed fails the session. `session_min` is the longest wall clock of the session, minutes; None for any.
    """
    runs = plan.runs
    steps = [counted(len(plan.checks), "check")] if plan.checks else []
    steps += [counted(len(runs), "run")] if runs or not plan.checks else []
    where = f"system {settings.system.name}, cluster {settings.cluster}"
    lines = [f"{where}, {', then '.join(steps)}, nothing is submitted", ""]
    for name in plan.checks:
        lines += [
            f"check {name}: {get_check(name).summary}",
            *(f"  {line}" for line in outlook_of_check(name, settings)),
        ]
    lines += [
        f"{run.key}: engine {run.recipe.engine}, {run.replayed.topology}, replayed from {run.replayed.logs}"
        for run in runs if run.replayed is not None
    ]  # fmt: skip
    prepared = [(run, prepare(run, settings, session)) for run in runs if run.replayed is None]
    good = all(isinstance(result, PreparedRun) for _, result in prepared)
    for run, result in prepared:
        if run.repeat == 1:
            tests = [test for test in plan.tests if test.run == run.key]
            foreseen, speed = outlook(run, tests, settings, left_out.get(run.recipe.name, ()))
            lines += [_describe_run(run, result, settings, runs), *(f"  {line}" for line in foreseen)]
            if not speed and settings.scale == "full":
                lines.append(f"  {_NO_SPEED.format(recipe=run.recipe.name)}")
                good = good and not required
    if settings.left_over:
        lines.append(
            f"NOT TESTED: {settings.left_over} of {settings.nodes} nodes, too few for a group of "
            f"{settings.nodes_per_run}"
        )
    ready = [result for _, result in prepared if isinstance(result, PreparedRun)]
    for prepared_run in ready:
        if prepared_run.script is not None and prepared_run.spec.repeat == 1:
            script = Redactor(settings.system).text(prepared_run.script.rstrip())
            lines += ["", f"# script of {prepared_run.key}, run on its first node", script]
    jobs, accepted = _describe_jobs(plan, ready, settings, session)
    together, ends = _describe_time(ready, settings, session_min)
    return [*lines, *jobs, *together], good and accepted and ends


def _describe_jobs(
    plan: Plan, ready: Sequence[PreparedRun], settings: Settings, session: Session
) -> tuple[list[str], bool]:
    """Lines on the jobs, and whether Slurm accepts them, as far as it is here to be asked."""
    if settings.cluster != "slurm" or not (ready or plan.checks):
        return [], True
    if (job := existing_allocation()) is not None:
        nodes, asked = existing_nodes(), settings.nodes or 1
        enough = nodes is None or asked <= nodes
        few = [] if enough else [f"CANNOT RUN: --nodes {asked}, but that job has {counted(nodes or 0, 'node')}"]
        return ["", f"All runs are steps of Slurm job {job}, which this process is in.", *few], enough
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
    gpu_hours = sum(request.nodes * request.gpus_per_node * request.time_min / 60 for request in requests)
    kinds = " and ".join(kind for kind, there in (("check", plan.checks), ("run", ready)) if there)
    several = f"{counted(len(requests), 'job')}, one per run"
    what = f"1 job holds the nodes, each {kinds} is a step in it" if held else several
    in_gpus = f"{for_people(gpu_hours)} GPU-hours, " if gpu_hours else ""
    lines += ["", f"{what}: at most {in_gpus}{for_people(hours)} node-hours"]
    try:
        asked_slurm, accepted = [ask_slurm(requests)], True
    except ClusterError as error:
        accepted = isinstance(error, NoAnswerError)
        asked_slurm = [f"{'NOT CHECKED' if accepted else 'CANNOT RUN'}: {error}"]
    return [*lines, *asked_slurm], accepted


def _describe_time(ready: Sequence[PreparedRun], settings: Settings, session_min: int | None) -> tuple[list[str], bool]:
    """Lines on the time that all runs take together, and whether at their peak they are within the session's limits."""
    peaks = [peak_of(run.spec.recipe, settings) for run in ready if run.spec.recipe.end == "steps"]
    known = [peak for peak in peaks if peak is not None]
    if not known:
        return [], True
    hours = sum(peak.topology.gpus * peak.minutes(PLAUSIBLE) for peak in known) / 60
    lines = [f"all trainings together are expected to take {for_people(hours, 3)} GPU-hours"]
    ends, job = os.environ.get("SLURM_JOB_END_TIME", ""), existing_allocation()
    limits: dict[str, float | None] = {
        "--llmbench-session-time": session_min,
        "--time": None if job or settings.allocation == "run" else settings.time_min,
        f"the rest of Slurm job {job}": (float(ends) - time.time()) / 60 if job and ends.isdecimal() else None,
    }
    at_once = max if settings.runs_are_jobs else partial(longest_lane, settings=settings)
    for name, limit in limits.items():
        least, expected = [peak.least_minutes for peak in known], [peak.minutes(PLAUSIBLE) for peak in known]
        for minutes, word, at in ((least, "CANNOT RUN", "at the published peak"), (expected, "WARNING", "as expected")):
            needed = at_once(minutes)
            if limit is not None and needed > limit and not settings.early_verdict:
                lines.append(f"{word}: together the runs take {needed:.3g} min {at}, and {name} is {limit:.3g} min")
                break
    return lines, not any(line.startswith("CANNOT") for line in lines)


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
    may_fail = [] if refused else [f"WARNING: {text}" for text in doubts(recipe, settings)]
    demands = filter(None, (demand_of(reference, recipe, settings) for reference in recipe.references))
    asked = [f"{'CANNOT BE MET: ' if one.impossible else 'WARNING: ' if one.bold else ''}{one}" for one in demands]
    foreseen = [*_too_short(run, settings), *ends, *numbers(recipe, settings), *asked]
    return "\n  ".join([what, *again, *refused, *may_fail, *foreseen])


def _too_short(run: RunSpec, settings: Settings) -> Iterator[str]:
    """Name the bounds on speed that so few steps will leave undecided."""
    recipe = run.recipe
    known = statistics_of(get_engine(recipe.engine))
    judged = recipe.steps - recipe.warm_up.steps
    bounds = [
        reference for reference in recipe.references
        if known[reference.statistic].steady is not None and as_foreseen(reference, recipe, settings) is not None
    ]  # fmt: skip
    if bounds and recipe.end == "steps" and judged < LEAST:
        names = ", ".join(reference.name for reference in bounds)
        yield (
            f"TOO SHORT: {counted(judged, 'step')} after the warm-up will hardly decide on {names}: give the recipe at "
            f"least {recipe.warm_up.steps + LEAST} steps"
        )
