"""The replayer: in the runner's place, it reads and concludes what ran elsewhere."""

from __future__ import annotations

from pytest_llmbench.checks.base import get_check
from pytest_llmbench.cluster.heartbeat import Heartbeat
from pytest_llmbench.cluster.runs import Plan, Replayed, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.core.files import make_folder
from pytest_llmbench.core.record.health import Report
from pytest_llmbench.core.record.records import Problem, RunRecord
from pytest_llmbench.core.record.series import StepSeries
from pytest_llmbench.engines.base import get_engine
from pytest_llmbench.judging.sanity import Evidence, Origin, first_problem
from pytest_llmbench.session.ending.conclude import identity_of, judged, peak_of
from pytest_llmbench.session.keeper import Keeper
from pytest_llmbench.session.validation import health_record
from pytest_llmbench.workloads.rank.context import token_of


class Replayer(Keeper):
    """Concludes every run of a session from logs, at once and in the caller's thread."""

    def __init__(self, settings: Settings, session: Session) -> None:
        super().__init__(settings.system)
        self._settings = settings
        self._session = session

    def start(self, plan: Plan) -> None:
        """Read and conclude the runs. There are no nodes to check."""
        for name in plan.checks:
            report = Report(skip="logs are replayed: no node is there to be checked")
            record = health_record(get_check(name), self._settings, self._session, report=report, hosts=(), job_id=None)
            self.keep_check(record)
        make_folder(self._session.folder)
        heartbeat = Heartbeat(self._session.folder).start()  # logs may be long, and workers wait for a sign of life
        for run in plan.runs:
            if run.replayed is not None:
                self.keep(self.record(run, run.replayed))
        heartbeat.stop()

    def record(self, run: RunSpec, replayed: Replayed) -> RunRecord:
        """Read the log of one run, and say what it measured or why it cannot be judged."""
        engine, topology, gpu = get_engine(run.recipe.engine), replayed.topology, self._settings.system.gpu
        series = engine.read(replayed.logs, run.recipe)
        device = replayed.gpu or (series.ranks[0].device if series.ranks else None)
        evidence = Evidence(
            recipe=run.recipe,
            topology=topology,
            series=series,
            hosts=replayed.hosts,
            wall_s=replayed.wall_s,
            gpu=gpu.model if gpu else None,
            kind=engine.kind,
            device=replayed.gpu,
            proof=engine.proof,
            cut_off=replayed.cut_off,
            doubts=tuple(engine.doubts(run.recipe, topology, series)),
            origin=Origin(
                token=replayed.token or token_of(replayed.logs), launched=replayed.launched, ended=replayed.ended
            ),
            peak_tflops=peak_of(run.recipe, topology, self._settings.system, device),
            expected=engine.expected(run.recipe, topology),
            asks=engine.asks(run.recipe, topology),
        )
        problem = replayed.problem or _empty(replayed, series) or first_problem(evidence)
        ranks = series.ranks
        return RunRecord(
            **{**identity_of(run, topology, self._settings, self._session), "run_token": evidence.origin.token},
            **judged(evidence, self._settings.system, problem),
            hosts=replayed.hosts,
            device=device,
            versions=ranks[0].versions if ranks else {},
            rank_info=ranks,
            provenance=replayed.provenance,
            cut_off=replayed.cut_off,
            replayed=str(replayed.logs),
        )


def _empty(replayed: Replayed, series: StepSeries) -> Problem | None:
    """Report that there is nothing to judge, the likeliest mistake in a replay."""
    if series.steps or series.totals or series.ranks or series.unread or series.failure:
        return None
    message = f"no line of a run in {replayed.logs}: are these the logs of this engine?"
    return Problem(kind="no_log", message=message, log=str(replayed.logs))
