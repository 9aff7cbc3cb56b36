"""Replay: logs that were made elsewhere are read and judged by the same statistics and thresholds, without a cluster.

`--replay DIR` reads `DIR/<recipe>/`, with the logs of one run or a folder for each of several; facts that logs lack are
in a `replay.yaml` next to them, or given by `--system` and `--nodes`. DIR may also be a session's folder. A run without
a record was under way when that session was killed, or never began: it is judged by its task and its logs.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal, Self

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, ValidationError, model_validator

from pytest_llmbench import __version__
from pytest_llmbench.checks.base import get_check
from pytest_llmbench.cluster.heartbeat import Heartbeat
from pytest_llmbench.cluster.runs import Plan, Replayed, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.errors import ConfigError, LLMBenchError, unknown
from pytest_llmbench.core.files import make_folder, read_regular, refuse_special_files
from pytest_llmbench.core.quantity import listed
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.health import HealthRecord, Report
from pytest_llmbench.core.record.records import JobTraces, Problem, Record, RunOutcome, RunRecord, RunTraces
from pytest_llmbench.core.schema import Strict, validate
from pytest_llmbench.core.text import harmless
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.driver import read_report
from pytest_llmbench.core.wire.fault import strikes
from pytest_llmbench.core.yaml_files import read_yaml
from pytest_llmbench.engines.base import get_engine
from pytest_llmbench.judging.recount import differences
from pytest_llmbench.judging.references import applied
from pytest_llmbench.judging.sanity import Evidence, Origin, first_problem
from pytest_llmbench.judging.sanity.ranks import check_world_size
from pytest_llmbench.judging.sanity.work import check_claims
from pytest_llmbench.readers.lines import is_packed
from pytest_llmbench.session.agreement import Agreement, read_task
from pytest_llmbench.session.ending import conclude_logs, problem_of, run_identity, with_expectations
from pytest_llmbench.session.folder import read_plan, record_files
from pytest_llmbench.session.forecast import machine_of
from pytest_llmbench.session.law import Law, published_nodes
from pytest_llmbench.session.nodes.answers import differences_of_answers
from pytest_llmbench.session.nodes.validation import health_record
from pytest_llmbench.session.record_store import RecordStore
from pytest_llmbench.workloads.rank.context import token_of

FACTS_FILE = "replay.yaml"
# Fields of a run's record that follow from its logs; the others follow from its steps.
_OF_LAUNCH = {"provenance", "cut_off", "early", "problem"}
OF_LOGS = ["steps", *sorted(RunOutcome.model_fields.keys() - _OF_LAUNCH - {"steps"})]
# Those that follow from its system as well; and those that another version may word, or compute, differently.
_OF_SYSTEM = {"findings", "metrics", "unjudged"}
_OF_VERSION = {"findings", "settings", "steady", "times", "transport", "unconfirmed", "unreadable"}


class ReplayFacts(Strict):
    """`replay.yaml`: declared facts about the run of replayed logs."""

    nodes: PositiveInt | None = None
    """Number of nodes of the run; absent, as many as `hosts`, else `--nodes`, else the recipe's number."""
    gpus_per_node: NonNegativeInt | None = None
    """Number of GPUs of each node; absent, `--gpus-per-node`, else the system's number, else the recipe's."""
    ranks_per_node: PositiveInt | None = None
    """Ranks per node of a run without GPUs; absent, the system's."""
    hosts: tuple[str, ...] = ()
    """Host names of the run's nodes."""
    gpu: str | None = None
    """GPU model of the run; absent, the system file's."""
    ended: Literal["steps", "time_limit"] = "steps"
    """`time_limit` for a run that was meant to be cut off at its limit, and was.

    It needs a recipe with `end: time_limit`.
    """
    wall_s: PositiveFloat | None = None
    """Seconds from launch to end; the steps must not add up to more."""
    source: str = ""
    """Origin of the logs."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.hosts and self.nodes not in (None, len(self.hosts)):
            raise ValueError(f"nodes: {self.nodes}, and hosts names {len(self.hosts)}")
        return self


def find_replays(folder: Path, recipes: Mapping[str, Recipe], settings: Settings) -> dict[str, RunSpec]:
    """Find every run in a folder, by key; runs of a session may be judged by their own recipes, `settings.as_recorded`.

    Raises ConfigError: no log is there, or one is unreadable or belongs to no recipe.
    """
    folder = folder.absolute()  # records name it, wherever they are read
    if not folder.is_dir():
        what, given = ("a file", folder.parent) if folder.exists() else ("no such folder", folder)
        raise ConfigError(f"--replay {folder}: {what}: give a folder with the logs of a run in {given}/<recipe>/")
    refuse_special_files(folder)
    session = (folder / layout.FOLDERS["run"]).is_dir()
    if not session and (folder / layout.FOLDERS["check"]).is_dir():
        raise ConfigError(f"--replay {folder}: a session without runs: `llmbench report {folder}` shows its checks")
    if settings.as_recorded and not session:
        raise ConfigError(f"--replay as-recorded:{folder}: records of a session have recipes, and this folder has none")
    asked = settings.nodes_per_run or settings.nodes
    law = Law(
        recipes={(name, recipe.scale): recipe for name, recipe in recipes.items()}, as_recorded=settings.as_recorded,
        nodes=lambda recipe: asked or published_nodes(recipe),
    )  # fmt: skip
    runs = list(runs_of_session(folder, law) if session else _runs_by_recipe(folder, recipes, settings))
    if not runs:
        raise ConfigError(f"--replay {folder}: no logs: put those of a run into {folder}/<recipe>/")
    return {spec.key: spec for spec in runs}


def _runs_by_recipe(folder: Path, recipes: Mapping[str, Recipe], settings: Settings) -> Iterator[RunSpec]:
    for path in _list_visible(folder):
        if not path.is_dir():
            if path.name in recipes or path.stem in recipes:
                raise ConfigError(f"--replay: {path} is a file: put it into a folder {folder}/<recipe>/")
            continue
        of_engine = [recipe for recipe in recipes.values() if recipe.engine == path.name]
        candidates = of_engine if path.name not in recipes and of_engine else [find_recipe(path.name, recipes, path)]
        runs = _runs_of(path, candidates[0])
        for number, logs in enumerate(runs, start=1):
            recipe, replayed = _find_nearest(logs, path, candidates, settings)
            key = recipe.name if len(runs) == 1 else f"{recipe.name}-group{number}"
            group = None if len(runs) == 1 else number
            yield RunSpec(key=key, recipe=recipe.on(replayed.topology), group=group, replayed=replayed)


def _runs_of(folder: Path, recipe: Recipe) -> list[Path]:
    """The runs under a recipe's folder: a folder each, a log each where the engine has them so, or the folder.

    An empty folder counts as a run whose log is missing.
    """
    there = [path for path in _list_visible(folder) if path.name != FACTS_FILE]
    each = get_engine(recipe.engine).log_per_run
    if there and all(path.is_dir() for path in there):
        return [run for path in there for run in _runs_of(path, recipe)] if each else there
    return [path for path in there if each and fnmatch(path.name, each)] or [folder]


def _find_nearest(
    logs: Path, folder: Path, candidates: Sequence[Recipe], settings: Settings
) -> tuple[Recipe, Replayed]:
    """The recipe that what is known of a run fits, or the one from which it differs least, and the run's facts.

    Raises:
        ConfigError: it fits several.
    """
    if len(candidates) == 1:
        return candidates[0], _read_facts(logs, folder, candidates[0], settings)
    engine = get_engine(candidates[0].engine)
    series = engine.read(logs, candidates[0])
    found = []
    for recipe in candidates:
        replayed = _read_facts(logs, folder, recipe, settings)
        evidence = Evidence(
            recipe=recipe.on(replayed.topology), topology=replayed.topology, hosts=(), wall_s=None, series=series,
            asks=engine.asks(recipe, replayed.topology), compared=engine.compare(recipe, replayed.topology, series),
        )  # fmt: skip
        unlike = [problem.message for check in (check_claims, check_world_size) for problem in check(evidence)]
        machine = machine_of(settings, recipe, replayed.topology, replayed.gpu or "unknown GPUs")
        rows = [reference for reference in recipe.references if reference.applies_to is not None]
        if not any(isinstance(applied(reference, machine), Reference) for reference in rows):
            unlike.append(f"it has no reference for {machine}")
        found.append((unlike, recipe, replayed))
    unlike, recipe, replayed = min(found, key=lambda candidate: len(candidate[0]))
    fitting = [candidate.name for differences, candidate, _ in found if not differences]
    if len(fitting) > 1:
        raise ConfigError(
            f"--replay: {logs} fits recipes {listed(fitting)}: their difference is not in the log: put it into "
            f"{folder.parent}/<recipe>/, or declare more in {FACTS_FILE}"
        )
    words = f"{recipe.name} of {len(candidates)} recipes of engine {recipe.engine}"
    given = f"the log gives {listed(sorted({claim.name for claim in series.claims}))}"
    said = f"nearest is {words}: {'; '.join(unlike)}" if unlike else f"fits {words}; {given}"
    return recipe, replayed.model_copy(update={"provenance": {**replayed.provenance, "recipe_found": said}})


def _list_visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _read_facts(logs: Path, folder: Path, recipe: Recipe, settings: Settings) -> Replayed:
    files = [place / FACTS_FILE for place in (logs, logs.parent, folder)]
    path = next((file for file in files if file.is_file()), files[-1])
    facts = validate(ReplayFacts, read_yaml(path), str(path)) if path.exists() else ReplayFacts()
    if facts.ended not in {"steps", recipe.end}:
        raise ConfigError(f"{path}: ended: {facts.ended}, and recipe {recipe.name} has to do all its steps")
    shape = settings.topology(recipe)
    gpu = settings.system.gpu
    gpus_per_node = shape.gpus_per_node if facts.gpus_per_node is None else facts.gpus_per_node
    return Replayed(
        logs=logs, nodes=facts.nodes or len(facts.hosts) or shape.nodes, gpus_per_node=gpus_per_node,
        ranks_per_node=gpus_per_node or facts.ranks_per_node or settings.system.cpu_ranks_per_node, hosts=facts.hosts,
        gpu=facts.gpu or (gpu.model if gpu and gpus_per_node else None),
        cut_off=f"ended at its time limit, as {path} says" if facts.ended == "time_limit" else None,
        wall_s=facts.wall_s, provenance={"replayed_from": facts.source or str(logs)},
    )  # fmt: skip


def runs_of_session(folder: Path, law: Law) -> Iterator[RunSpec]:
    """Yield every run of a session's folder, by the plan and by the records. Its recipe has to be the one of today.

    A run of another recipe has a problem, unless it is judged as recorded: then its own says what had to run. The
    thresholds are those of today in any case.

    Raises ConfigError: the plan, a record or a task is unreadable, or is of an unknown recipe or another scale.
    """
    try:
        planned = {run.key: run for run in read_plan(folder).runs}
    except ConfigError as error:
        raise ConfigError(
            f"--replay: {folder / layout.PLAN} cannot be read. It lists the runs that this session declared; without "
            "it, a run without logs would go unnoticed. To judge single runs, put the logs of each into a folder "
            f"DIR/<recipe>/ and give --replay DIR. ({error})"
        ) from error
    recorded, agreement = {path.parent.name for path in record_files(folder, "run")}, Agreement(folder)
    today = {name: recipe for (name, _), recipe in law.recipes.items()}
    made: RunRecord | RunSpec
    for key in [*planned, *sorted(recorded - set(planned))]:
        run = folder / layout.FOLDERS["run"] / key
        if key in recorded:
            record = RunRecord.read(run / layout.RECORD)
            if record.look and record.problem is not None and record.problem.kind == "not_repeated":
                continue  # a repeat for which the time was too short
            ran, replayed, made = record.recipe, as_replayed(record, run), record
            objections = agreement.objections(record) if record.problem is None else []
            objections += differences_of_logs(agreement, record)
        else:
            ran, made, objections = planned[key].recipe, planned[key], list[str]()
            replayed = planned[key].replayed or _facts_on_disk(run, ran)
        current = today.get(ran.name, ran) if law.as_recorded else find_recipe(ran.name, today, run)
        if ran.scale != current.scale:
            raise ConfigError(f"{run}: run at scale {ran.scale}: give --scale {ran.scale}")
        group, topology = planned[key].group if key in planned else None, replayed.topology
        recipe, problem = current.on(topology), replayed.problem
        if wrong := law.wrong_work(ran, topology):
            #: problem wrong_work: another recipe than that of today's folder
            problem = problem or Problem(kind="wrong_work", message=wrong)
        if wrong or law.as_recorded:
            recipe = ran.model_copy(update={"references": recipe.references})
        as_recorded = law.note(ran, topology) if law.as_recorded else None
        facts = {"problem": problem, "as_recorded": as_recorded, "disagrees": "; ".join(objections[:3])}
        replayed = replayed.model_copy(update=facts)
        yield RunSpec(key=key, recipe=recipe, group=group, repeat=made.repeat, look=made.look, replayed=replayed)


def find_recipe(name: str, recipes: Mapping[str, Recipe], path: Path) -> Recipe:
    """Find the recipe of logs. Raises ConfigError: the name is unknown."""
    if name not in recipes:
        raise ConfigError(f"--replay: {path}: {unknown('recipe', name, recipes)}")
    return recipes[name]


def as_replayed(record: RunRecord, folder: Path, logs: Path | None = None) -> Replayed:
    """The facts of a run that its logs lack, as its record has them; `logs` is a copy of the logs that it replayed."""
    if record.replayed is not None:
        logs = logs or Path(record.replayed)
    started, ended, driver = record.timings.submitted, record.timings.ended, read_report(folder)
    if get_engine(record.recipe.engine).kind == "ranks" and logs is None:
        device = None  # ranks of our own log their device
    else:
        device = driver.device if driver is not None else record.device
    return Replayed(
        logs=logs or folder, nodes=record.nodes, gpus_per_node=record.topology.gpus_per_node,
        ranks_per_node=max(record.ranks // record.nodes, 1), hosts=record.hosts, gpu=device, cut_off=record.cut_off,
        early=record.early, launched=started, ended=ended,
        wall_s=ended - started if started and ended and ended > started else None, token=record.run_token,
        problem=record.problem, provenance=record.provenance, simulated=record.simulated,
    )  # fmt: skip


def _facts_on_disk(run: Path, recipe: Recipe) -> Replayed:
    """The facts of a run whose record is missing, by the files of its launch."""
    task = read_task(run)
    if task is None:
        message = "the session that declared this run was killed before the run began: run it again"
        gpus = recipe.gpus_per_node
        problem = Problem(kind="session_ended", message=message, log=str(run.parent.parent))
        return Replayed(logs=run, nodes=recipe.nodes, gpus_per_node=gpus, ranks_per_node=gpus or 1, problem=problem)
    driver, traces = read_report(run), None
    with contextlib.suppress(OSError, ValidationError):  # killed before this file: the hosts come from the ranks
        traces = JobTraces.model_validate_json(read_regular(run / layout.JOB))
    recovered = "the session was killed before it wrote this run's record: judged by its logs"
    return Replayed(
        logs=run, nodes=task.nodes, gpus_per_node=task.ranks_per_node if task.device == "cuda" else 0,
        ranks_per_node=task.ranks_per_node, hosts=driver.hosts if driver else (traces.hosts if traces else ()),
        gpu=driver.device if driver else None, token=task.token, launched=traces.submitted if traces else None,
        problem=problem_of(driver), provenance={**(driver.provenance if driver else {}), "recovered": recovered},
    )  # fmt: skip


def replay(plan: Plan, settings: Settings, session: Session, store: RecordStore) -> None:
    """Read and conclude the runs of a session, and skip its checks."""
    for name in plan.checks:
        report = Report(skip="logs are replayed: no node is there to be checked")
        store.keep(health_record(get_check(name), settings, session, report=report))
    make_folder(session.folder)
    heartbeat = Heartbeat(session.folder).start()  # logs may be long, and workers wait for a sign of life
    for run in plan.runs:
        if run.replayed is not None:
            store.keep(replayed_record(run, run.replayed, settings, session))
    heartbeat.stop()


@dataclass(frozen=True, kw_only=True, slots=True)
class Recount:
    """A run's record computed again from its logs."""

    token: str | None  # the run that the logs are to be of; None if unknown
    outcome: RunOutcome  # the part of the record that follows from the logs
    problem: Problem | None  # the problem that the logs show, also where the record has another one


def recount(recipe: Recipe, replayed: Replayed, system: System) -> Recount:
    """Read a run's logs again and compute its outcome (raises ConfigError and OSError: a log cannot be read)."""
    token = replayed.token or token_of(replayed.logs)
    series = get_engine(recipe.engine).read(replayed.logs, recipe)
    evidence = with_expectations(
        Evidence(
            recipe=recipe, topology=replayed.topology, hosts=replayed.hosts, wall_s=replayed.wall_s, series=series,
            device=replayed.gpu, cut_off=replayed.cut_off, early=replayed.early,
            origin=Origin(token=token, launched=replayed.launched, ended=replayed.ended),
        ),
        system,
    )  # fmt: skip
    if series.steps or series.totals or series.ranks or series.unread or series.failure:
        problem = first_problem(evidence)
    else:
        packed = sorted(path.name for path in replayed.logs.rglob("*") if is_packed(path))
        cure = f"; {listed(packed)}: unpack it, or convert it to UTF-8" if packed else ""
        message = f"no line of a run in {replayed.logs}: are these the logs of this engine?{cure}"
        #: problem no_log: a replayed log has no line of a run
        problem = Problem(kind="no_log", message=message, log=str(replayed.logs))
    if problem is None and replayed.disagrees:
        #: problem implausible: files of a session's folder that disagree about a run
        problem = Problem(kind="implausible", message=replayed.disagrees)
    outcome = conclude_logs(evidence, system, replayed.problem or problem, replayed.provenance)
    return Recount(token=token, outcome=outcome, problem=problem if replayed.problem else outcome.problem)


def differences_of_logs(agreement: Agreement, record: Record) -> list[str]:
    """How a record of a session differs from its logs, or answers; empty where these cannot be read."""
    if isinstance(record, HealthRecord):
        return differences_of_answers(record, agreement)
    if not isinstance(record, RunRecord):
        return []
    try:
        run, kept = agreement.folder / layout.FOLDERS["run"] / record.key, agreement.kept
        facts = as_replayed(record, run) if record.replayed is None else _untouched_logs(agreement, record)
        if facts is None:
            return []
        system = kept.system if kept is not None else System(name="elsewhere", cluster="slurm")
        again = recount(record.recipe, facts, system)
    except (LLMBenchError, OSError):
        return []
    if not (again.outcome.steps or again.outcome.rank_info or again.outcome.totals):
        return []  # a folder of records alone
    return differences_of_record(record, again, () if kept else _OF_SYSTEM)


def _untouched_logs(agreement: Agreement, record: RunRecord) -> Replayed | None:
    """The facts of a replayed run by its plan; None if its logs, which lie elsewhere, may be others by now."""
    plan, planned = agreement.plan, agreement.planned.get(record.key)
    if plan is None or plan.began is None or planned is None or planned.replayed is None:
        return None
    logs = planned.replayed.logs
    links = (path for path in logs.parents if path.is_symlink())
    times = (
        path.stat(follow_symlinks=link).st_ctime for path in (logs, *logs.rglob("*"), *links) for link in (False, True)
    )
    return planned.replayed if max(times) < plan.began else None


def _has_grown(record: RunRecord, now: RunOutcome) -> bool:
    """True if the ranks of a run that was given up have written on since its record was made."""
    ends = [sum(bool(info.ended or info.failure) for info in ranks) for ranks in (record.rank_info, now.rank_info)]
    return ends[0] < ends[1] or len(record.steps) < len(now.steps) or len(record.rank_info) < len(now.rank_info)


def differences_of_record(record: RunRecord, again: Recount, unknown: Collection[str] = ()) -> list[str]:
    """How a record differs from what its logs come to, but for fields that are `unknown`."""
    if record.problem is None and again.problem is not None:
        says = f"{again.problem.kind}: {harmless(again.problem.message)}"
        return [f"the record says that it can be judged, the log says {says}"]
    if record.problem is not None and _has_grown(record, again.outcome):
        return []
    signed = record.made_by is not None and record.made_by.llmbench_version == __version__
    ours = signed or record.made_by is None
    left_out = {*unknown, *(() if ours else _OF_VERSION)}
    names = [name for name in OF_LOGS if (signed or name in record.model_fields_set) and name not in left_out]
    pairs = [(name, getattr(record, name), getattr(again.outcome, name)) for name in names]
    return [text for pair in pairs for text in differences(*pair, words=ours, whole=signed)]


def replayed_record(run: RunSpec, replayed: Replayed, settings: Settings, session: Session) -> RunRecord:
    """Make the record of one run from its logs: its numbers or its problem."""
    again = recount(run.recipe, replayed, settings.system)
    recorded = {"run_token": again.token, "simulated": replayed.simulated or strikes(replayed.logs)}
    return RunRecord.of(
        run_identity(run, settings, session).model_copy(update=recorded),
        RunTraces(hosts=replayed.hosts),
        again.outcome,
    )
