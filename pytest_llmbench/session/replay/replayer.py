"""In the runner's place: reads and concludes what ran elsewhere, at once and in the caller's thread."""

from dataclasses import dataclass

from pytest_llmbench.checks.base import get_check
from pytest_llmbench.cluster.heartbeat import Heartbeat
from pytest_llmbench.cluster.runs import Plan, Replayed, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.files import make_folder
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.health import Report
from pytest_llmbench.core.record.records import Problem, RunOutcome, RunRecord, RunTraces
from pytest_llmbench.core.record.series import StepSeries
from pytest_llmbench.core.wire.fault import strikes
from pytest_llmbench.engines.base import get_engine
from pytest_llmbench.judging.sanity import Evidence, Origin, first_problem
from pytest_llmbench.session.ending.conclude import conclude_logs, run_identity, with_expectations
from pytest_llmbench.session.nodes.validation import health_record
from pytest_llmbench.session.record_store import RecordStore
from pytest_llmbench.workloads.rank.context import token_of


def replay(plan: Plan, settings: Settings, session: Session, store: RecordStore) -> None:
    """Read and conclude the runs of a session. There are no nodes to check."""
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
    """A run's record computed again from its logs.

    Attributes:
        token: the run that the logs are to be of; None if unknown.
        outcome: the part of the record that follows from the logs.
        problem: the problem that the logs show, also where the record has another one.
    """

    token: str | None
    outcome: RunOutcome
    problem: Problem | None


def recount(recipe: Recipe, replayed: Replayed, system: System) -> Recount:
    """Read a run's logs again and compute its outcome, for a replay and for the verification of a bundle.

    Raises:
        ConfigError: a log cannot be read.
        OSError: likewise.
    """
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
    problem = _empty(replayed, series) or first_problem(evidence)
    outcome = conclude_logs(evidence, system, replayed.problem or problem, replayed.provenance)
    return Recount(token=token, outcome=outcome, problem=problem if replayed.problem else outcome.problem)


def replayed_record(run: RunSpec, replayed: Replayed, settings: Settings, session: Session) -> RunRecord:
    """Make the record of one run from its logs: its numbers, or the reason why it cannot be judged."""
    again = recount(run.recipe, replayed, settings.system)
    recorded = {"run_token": again.token, "simulated": replayed.simulated or strikes(replayed.logs)}
    return RunRecord.of(
        run_identity(run, settings, session).model_copy(update=recorded),
        RunTraces(hosts=replayed.hosts),
        again.outcome,
    )


def _empty(replayed: Replayed, series: StepSeries) -> Problem | None:
    """Report that there is nothing to judge, the likeliest mistake in a replay."""
    if series.steps or series.totals or series.ranks or series.unread or series.failure:
        return None
    message = f"no line of a run in {replayed.logs}: are these the logs of this engine?"
    #: problem no_log: a replayed log has no line of a run
    return Problem(kind="no_log", message=message, log=str(replayed.logs))
