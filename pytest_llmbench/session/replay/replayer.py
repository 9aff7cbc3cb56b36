"""In the runner's place: reads and concludes what ran elsewhere, at once and in the caller's thread."""

from pytest_llmbench.checks.base import get_check
from pytest_llmbench.cluster.heartbeat import Heartbeat
from pytest_llmbench.cluster.runs import Plan, Replayed, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.core.files import make_folder
from pytest_llmbench.core.record.health import Report
from pytest_llmbench.core.record.records import Problem, RunRecord, RunTraces
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


def replayed_record(run: RunSpec, replayed: Replayed, settings: Settings, session: Session) -> RunRecord:
    """Read the log of one run, and say what it measured or why it cannot be judged."""
    token = replayed.token or token_of(replayed.logs)
    evidence = Evidence(
        recipe=run.recipe, topology=replayed.topology, hosts=replayed.hosts, wall_s=replayed.wall_s,
        series=get_engine(run.recipe.engine).read(replayed.logs, run.recipe), device=replayed.gpu,
        cut_off=replayed.cut_off, early=replayed.early,
        origin=Origin(token=token, launched=replayed.launched, ended=replayed.ended),
    )  # fmt: skip
    evidence = with_expectations(evidence, settings.system)
    problem = replayed.problem or _empty(replayed, evidence.series) or first_problem(evidence)
    recorded = {"run_token": token, "simulated": replayed.simulated or strikes(replayed.logs)}
    return RunRecord.of(
        run_identity(run, settings, session).model_copy(update=recorded),
        RunTraces(hosts=replayed.hosts),
        conclude_logs(evidence, settings.system, problem, replayed.provenance),
    )


def _empty(replayed: Replayed, series: StepSeries) -> Problem | None:
    """Report that there is nothing to judge, the likeliest mistake in a replay."""
    if series.steps or series.totals or series.ranks or series.unread or series.failure:
        return None
    message = f"no line of a run in {replayed.logs}: are these the logs of this engine?"
    #: problem no_log: a replayed log has no line of a run
    return Problem(kind="no_log", message=message, log=str(replayed.logs))
