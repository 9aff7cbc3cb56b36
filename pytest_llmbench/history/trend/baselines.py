"""Baselines: the earlier runs that a new one is compared with, and how that ends."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from sqlalchemy import Connection, and_, or_, select

from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.quantity import BetweenRuns, counted, for_people
from pytest_llmbench.core.record.records import RunRecord, Verdict
from pytest_llmbench.history.store.database import History
from pytest_llmbench.history.store.queries import PastRun, past_runs
from pytest_llmbench.history.store.rows import MetricRow, Series, measurement_of, metrics_of, series_of
from pytest_llmbench.history.store.tables import RUNS, SERIES, SESSIONS, TAGS
from pytest_llmbench.history.trend.comparing import ALPHA_OF_SESSION, COARSE, Change, change, usual_spread
from pytest_llmbench.history.trend.scatter import LEAST_PAST, Scatter, scatter_of_runs, shared_scatter
from pytest_llmbench.history.trend.wanted import Wanted

# So many earlier runs say how runs differ, the newest ones.
_MOST_PAST = 50
# Of a series so many runs are looked at.
_MOST_RUNS = 2000
_SPEED = "throughput"


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """How the comparison of a run, or of several that are judged together, with its baseline ended.

    Attributes:
        key: of the first run.
        verdict: PASS, FAIL, INCONCLUSIVE, or SKIP where there is nothing to compare with.
        metric: the statistic that was compared.
        change: None where nothing was compared.
        sessions: those of the baseline.
        reason: the reason that it is not a PASS.
    """

    key: str
    verdict: Verdict
    metric: str | None = None
    change: Change | None = None
    sessions: tuple[str, ...] = ()
    reason: str = ""


def check_wanted(history: History, wanted: Wanted) -> None:
    """See that a tag or a commit is in the history at all.

    Raises:
        ConfigError: it is not.
    """
    with history.reading() as connection:
        if wanted.kind == "tag" and not _sessions_of(connection, wanted):
            known = connection.execute(select(TAGS.c.tag).distinct()).scalars()
            raise ConfigError(f"--llmbench-compare-to {wanted}: {unknown('tag of the history', wanted.name, known)}")
        if wanted.kind == "commit" and not _sessions_of(connection, wanted):
            raise ConfigError(f"--llmbench-compare-to {wanted}: the history {history.shown} has no run of that commit")


def compare_with_baseline(
    history: History, session: str, runs: Sequence[Sequence[RunRecord]], wanted: Wanted
) -> list[Compared]:
    """Compare runs with the baseline of each.

    Args:
        history: has the earlier runs.
        session: id of the session of the new ones: its own records are never a baseline.
        runs: those that are judged together, together.
        wanted: the baseline that the user asked for.
    """
    told = [_new(records) for records in runs]
    # Each may be wrong so seldom that all together keep to it.
    alpha = ALPHA_OF_SESSION / max(1, sum(isinstance(each, _New) for each in told))
    with history.reading() as connection:
        found = [
            each if isinstance(each, Compared) else _baseline(connection, history, session, each, wanted)
            for each in told
        ]
    shared = _shared(each for each in found if isinstance(each, _Baseline))
    return [each if isinstance(each, Compared) else _compare(each, wanted, alpha, shared[each.usual]) for each in found]


@dataclass(frozen=True, kw_only=True, slots=True)
class _New:
    """New runs that can be compared."""

    key: str
    series: Series
    metric: str
    rows: tuple[MetricRow, ...]
    measurements: tuple[str, ...]


def _new(records: Sequence[RunRecord]) -> "_New | Compared":
    first = records[0]
    if first.simulated is not None:
        return Compared(
            key=first.key, verdict=Verdict.SKIP, reason=f"simulated fault {first.simulated}: no measurement"
        )
    broken = next((record.problem for record in records if record.problem is not None), None)
    if broken is not None:
        reason = f"the run cannot be judged ({broken.kind}), and so not be compared"
        return Compared(key=first.key, verdict=Verdict.SKIP, reason=reason)
    tables = [{row.name: row for row in metrics_of(record)} for record in records]
    candidates = (_SPEED, first.recipe.statistic_of_record, *tables[0])
    metric = next((name for name in candidates if all(_usable(table.get(name)) for table in tables)), None)
    if metric is None:
        reason = "no number of it has an interval and a direction: too few steps, or none with a duration; train longer"
        return Compared(key=first.key, verdict=Verdict.INCONCLUSIVE, reason=reason)
    return _New(
        key=first.key, series=series_of(first), metric=metric, rows=tuple(table[metric] for table in tables),
        measurements=tuple(told for record in records if (told := measurement_of(record.steps)) is not None),
    )  # fmt: skip


def _usable(row: MetricRow | None) -> bool:
    return row is not None and row.better is not None and row.low is not None and row.high is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Baseline:
    """New runs with the earlier ones that they are compared with.

    Attributes:
        runs: the baseline.
        candidates: number of the sessions of which it is the best, else 1.
        past: the number in each of the newest earlier runs, in order of time.
        usual: how runs of such a series differ on other systems; None if that is not known.
    """

    new: _New
    runs: tuple[PastRun, ...]
    candidates: int
    past: tuple[float, ...]
    usual: BetweenRuns | None

    @property
    def rows(self) -> list[MetricRow]:
        """The number in each run of the baseline."""
        return [run.metrics[self.new.metric] for run in self.runs]

    @property
    def scatter(self) -> Scatter:
        """The scatter of these runs alone."""
        return scatter_of_runs(self.past, [row.value for row in self.rows], [row.value for row in self.new.rows])


def _baseline(
    connection: Connection, history: History, session: str, new: _New, wanted: Wanted
) -> "_Baseline | Compared":
    earlier = _earlier(connection, session, new)
    mine = [run for run in earlier if run.series == new.series]
    chosen = _chosen(connection, mine, wanted)
    usable = [run for run in chosen if run.problem is None and _usable(run.metrics.get(new.metric))]
    if not usable:
        return _without(new, earlier, mine, chosen, wanted, history.shown)
    usable, candidates = _best(usable, new.metric) if wanted.kind == "best" else (usable, 1)
    past = [run.metrics[new.metric].value for run in mine if run.problem is None and new.metric in run.metrics]
    return _Baseline(
        new=new, runs=tuple(usable), candidates=candidates, past=tuple(past[-_MOST_PAST:]),
        usual=usual_spread(gpus=new.series.gpus, scale=new.series.scale),
    )  # fmt: skip


def _shared(baselines: Iterable[_Baseline]) -> dict[BetweenRuns | None, Scatter | None]:
    """The scatter that series of one kind share: those on GPUs at full scale, and all others."""
    kinds: dict[BetweenRuns | None, list[Scatter]] = {}
    for each in baselines:
        kinds.setdefault(each.usual, []).append(each.scatter)
    return {usual: shared_scatter(scatters) for usual, scatters in kinds.items()}


def _compare(baseline: _Baseline, wanted: Wanted, alpha: float, shared: Scatter | None) -> Compared:
    new = baseline.new
    told = change(
        baseline.rows, new.rows, past=baseline.past, usual=baseline.usual, shared=shared,
        alpha=alpha / baseline.candidates,  # the best of many is better than it is
    )  # fmt: skip
    sessions = tuple(dict.fromkeys(run.session for run in baseline.runs))
    verdict = {True: Verdict.FAIL, False: Verdict.PASS, None: Verdict.INCONCLUSIVE}[told.regressed]
    compared = Compared(key=new.key, verdict=verdict, metric=new.metric, change=told, sessions=sessions)
    return compared if verdict is Verdict.PASS else replace(compared, reason=_reason(compared, told, wanted))


def _earlier(connection: Connection, session: str, new: _New) -> list[PastRun]:
    """The earlier runs of the recipe, of whatever machine, without other readings of the new ones; oldest first."""
    of_recipe = select(SERIES.c.id).where(SERIES.c.recipe == new.series.recipe)
    other = or_(RUNS.c.measurement.is_(None), RUNS.c.measurement.notin_(new.measurements))
    newest = (
        select(RUNS.c.id)
        .where(RUNS.c.series.in_(of_recipe), RUNS.c.session != session, RUNS.c.counts, other)
        .order_by(RUNS.c.time.desc())
        .limit(_MOST_RUNS)
    )
    return past_runs(connection, RUNS.c.id.in_(newest), new.metric)


def _chosen(connection: Connection, runs: Sequence[PastRun], wanted: Wanted) -> list[PastRun]:
    """Those of the wanted baseline."""
    if wanted.kind == "best":
        return [*runs]
    if wanted.kind == "last":
        # Of sessions in which it could be measured.
        measured = dict.fromkeys(run.session for run in reversed(runs) if run.problem is None)
        newest = [*measured][: wanted.count]
        return [run for run in runs if run.session in newest]
    sessions = _sessions_of(connection, wanted)
    return [run for run in runs if run.session in sessions]


def _sessions_of(connection: Connection, wanted: Wanted) -> set[str]:
    if wanted.kind == "tag":
        return set(connection.execute(select(TAGS.c.session).where(TAGS.c.tag == wanted.name)).scalars())
    chosen = select(RUNS.c.session).select_from(RUNS.join(SESSIONS)).where(_has_commit(wanted.name))
    return set(connection.execute(chosen.distinct()).scalars())


def _has_commit(beginning: str) -> Any:
    return or_(
        RUNS.c.git_commit.startswith(beginning, autoescape=True),
        and_(RUNS.c.git_commit.is_(None), SESSIONS.c.git_commit.startswith(beginning, autoescape=True)),
    )


def _best(runs: Sequence[PastRun], metric: str) -> tuple[list[PastRun], int]:
    """The runs of the best session, and among how many it is the best."""
    sessions: dict[str, list[PastRun]] = {}
    for run in runs:
        sessions.setdefault(run.session, []).append(run)
    higher = runs[-1].metrics[metric].better == "higher"
    means = {name: fmean(run.metrics[metric].value for run in of_one) for name, of_one in sessions.items()}
    best = (max if higher else min)(means, key=lambda name: means[name])
    return sessions[best], len(sessions)


def _without(
    new: _New,
    earlier: Sequence[PastRun],
    mine: Sequence[PastRun],
    chosen: Sequence[PastRun],
    wanted: Wanted,
    shown: str,
) -> Compared:
    """A run without a baseline: new is one thing, changed another."""
    name = new.series.recipe
    if not earlier:
        return Compared(
            key=new.key, verdict=Verdict.SKIP, metric=new.metric,
            reason=f"no baseline: the history {shown} has no earlier run of {name}",
        )  # fmt: skip
    have = counted(len(earlier), "earlier run")
    if not mine:
        differs = earlier[-1].series.differs_from(new.series)
        reason = f"no baseline: {have} of {name}, and none is comparable. The newest differs: {differs}"
    elif not chosen:
        reason = f"no baseline: none of {have} of {name} on this machine is of {wanted}"
    else:
        reason = f"no baseline: none of the runs of {wanted} could be judged, or has an interval of its {new.metric}"
    return Compared(key=new.key, verdict=Verdict.INCONCLUSIVE, metric=new.metric, reason=reason)


def _reason(compared: Compared, told: Change, wanted: Wanted) -> str:
    share = for_people(100 * abs(told.share), 2)
    word = "lower" if told.share < 0.0 else "higher"
    of = f"{compared.metric} is {share} % {word} than in {wanted} ({', '.join(compared.sessions[-3:])})"
    if told.low is None or told.high is None:
        return f"{of}: {told.why}"
    between = f"between {for_people(100 * told.low, 2)} and {for_people(100 * told.high, 2)} %"
    if compared.verdict is Verdict.FAIL:
        return f"{of}: {between}, which is beyond the uncertainty of both"
    return (
        f"{of}: {between}. A regression of more than {100 * COARSE:g} % could hide in that: train longer, make several "
        f"runs (--llmbench-repeat), or keep {LEAST_PAST} earlier runs or more"
    )
