"""Judging a session of ours again, also one that was killed: every run that it declared is judged or is an error.

`session.json` lists the runs. A run that was concluded has a record, which says how it was made. One without a record
was under way when the session was killed, or never began: its task says how many ranks it was to have, and its logs
are judged like any other, so that a run whose ranks all finished counts, and half a run does not.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from pytest_llmbench.cluster.runs import Plan, Replayed, RunSpec
from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.records import JobTraces, Problem, RunRecord
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.driver import CommandTask, read_report
from pytest_llmbench.core.wire.task import LaunchedTask, Task
from pytest_llmbench.engines.base import get_engine
from pytest_llmbench.session.ending.causes import problem_of
from pytest_llmbench.session.folder import read_plan, record_files


def runs_of_session(folder: Path, recipes: Mapping[str, Recipe]) -> Iterator[RunSpec]:
    """Yield every run of a session's folder, by the plan and by the records; the thresholds are those of today.

    Raises:
        ConfigError: the plan, a record or a task cannot be read, or is of an unknown recipe or another scale.
    """
    planned = {run.key: run for run in _plan(folder).runs}
    recorded = {path.parent.name for path in record_files(folder, "run")}
    made: RunRecord | RunSpec
    for key in [*planned, *sorted(recorded - set(planned))]:
        run = folder / layout.FOLDERS["run"] / key
        if key in recorded:
            record = RunRecord.read(run / layout.RECORD)
            if record.look and record.problem is not None and record.problem.kind == "not_repeated":
                continue  # there was no time for a further run, and none was planned
            ran, replayed, made = record.recipe, as_replayed(record, run), record
        else:
            ran, made = planned[key].recipe, planned[key]
            replayed = planned[key].replayed or _left_behind(run, ran)
        today = _of_today(ran, recipes, run).on(replayed.topology).references
        group = planned[key].group if key in planned else None
        recipe = ran.model_copy(update={"references": today})
        yield RunSpec(key=key, recipe=recipe, group=group, repeat=made.repeat, look=made.look, replayed=replayed)


def recipe_named(name: str, recipes: Mapping[str, Recipe], path: Path) -> Recipe:
    """Find the recipe of logs.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in recipes:
        raise ConfigError(f"--replay: {path}: {unknown('recipe', name, recipes)}")
    return recipes[name]


def _plan(folder: Path) -> Plan:
    try:
        return read_plan(folder)
    except ConfigError as error:
        raise ConfigError(
            f"--replay: {folder / layout.PLAN} cannot be read. It lists the runs that this session declared; without "
            "it, a run without logs would go unnoticed. To judge single runs, put the logs of each into a folder "
            f"DIR/<recipe>/ and give --replay DIR. ({error})"
        ) from error


def _of_today(ran: Recipe, recipes: Mapping[str, Recipe], path: Path) -> Recipe:
    recipe = recipe_named(ran.name, recipes, path)
    if ran.scale != recipe.scale:
        raise ConfigError(f"{path}: run at scale {ran.scale}: give --scale {ran.scale}")
    return recipe


def as_replayed(record: RunRecord, folder: Path, logs: Path | None = None) -> Replayed:
    """The facts of a run that its logs lack, as its record has them.

    Args:
        record: of the run.
        folder: of the run.
        logs: copy of the logs that it replayed; None for those that the record names.
    """
    if record.replayed is not None:
        logs = logs or Path(record.replayed)
    started, ended, driver = record.timings.submitted, record.timings.ended, read_report(folder)
    if get_engine(record.recipe.engine).kind == "ranks" and logs is None:
        device = None  # ranks of our own log their device
    else:
        device = driver.device if driver is not None else record.device
    return Replayed(
        logs=logs or folder, nodes=record.nodes, gpus_per_node=record.gpus // record.nodes,
        ranks_per_node=max(record.ranks // record.nodes, 1), hosts=record.hosts, gpu=device, cut_off=record.cut_off,
        early=record.early, launched=started, ended=ended,
        wall_s=ended - started if started and ended and ended > started else None, token=record.run_token,
        problem=record.problem, provenance=record.provenance, simulated=record.simulated,
    )  # fmt: skip


def _left_behind(run: Path, recipe: Recipe) -> Replayed:
    """Say how a run without a record was made, by what its launch left on disk."""
    task = read_task(run)
    if task is None:
        message = "the session that declared this run was killed before the run began: run it again"
        gpus = recipe.gpus_per_node
        problem = Problem(kind="session_ended", message=message, log=str(run.parent.parent))
        return Replayed(logs=run, nodes=recipe.nodes, gpus_per_node=gpus, ranks_per_node=gpus or 1, problem=problem)
    traces, driver = _traces(run), read_report(run)
    return Replayed(
        logs=run,
        nodes=task.nodes,
        gpus_per_node=task.ranks_per_node if task.device == "cuda" else 0,
        ranks_per_node=task.ranks_per_node,
        hosts=driver.hosts if driver else (traces.hosts if traces else ()),
        gpu=driver.device if driver else None,
        token=task.token,
        launched=traces.submitted if traces else None,
        problem=problem_of(driver),
        provenance={
            **(driver.provenance if driver else {}),
            "recovered": "the session was killed before it wrote this run's record: judged by its logs",
        },
    )


def read_task(run: Path) -> LaunchedTask | None:
    """Read what a run was launched with; None where it never was."""
    if (run / layout.COMMAND).exists():
        return CommandTask.read(run / layout.COMMAND)
    return Task.read(run / layout.TASK) if (run / layout.TASK).exists() else None


def _traces(run: Path) -> JobTraces | None:
    try:
        return JobTraces.model_validate_json((run / layout.JOB).read_bytes())
    except (OSError, ValidationError):  # killed between the launch and this file: the ranks say where they ran
        return None
