"""`--compare-to`: the earlier runs of the history that a new run is compared with, and the verdict."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.quantity import counted, for_people
from pytest_llmbench.core.record.records import RunRecord, Verdict
from pytest_llmbench.history.compare import (
    COARSE,
    Change,
    Compared,
    NumberPair,
    compare_runs,
    usual_spread,
    verdict_of_change,
)
from pytest_llmbench.history.database import Connection, History
from pytest_llmbench.history.queries import PastRun, past_runs
from pytest_llmbench.history.rows import MetricRow, Series, measurement_of, metrics_of, series_of
from pytest_llmbench.history.scatter import LEAST_PAST
from pytest_llmbench.history.wanted import Wanted

# The newest of these earlier runs show the difference between runs.
_MOST_PAST = 50
# Number of runs of a recipe that are read to find a baseline.
_MOST_RUNS = 2000
_SPEED = "throughput"


def check_wanted(history: History, wanted: Wanted) -> None:
    """Check that the history has the tag or the commit of a baseline.

    Raises:
        ConfigError: it has not.
    """
    if wanted.kind in {"last", "best"}:
        return
    with history.reading() as connection:
        if _sessions_of(connection, wanted):
            return
        if wanted.kind == "tag":
            known = connection.column("SELECT DISTINCT tag FROM llmbench_tags")
            raise ConfigError(f"--llmbench-compare-to {wanted}: {unknown('tag of the history', wanted.name, known)}")
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
    lines: list[Compared | tuple[Compared, NumberPair]] = []
    with history.reading() as connection:
        for records in runs:
            new = _new_runs(records)
            lines.append(new if isinstance(new, Compared) else _baseline(connection, history, session, new, wanted))
    changes = iter(compare_runs([line[1] for line in lines if isinstance(line, tuple)]))
    return [line if isinstance(line, Compared) else _judge(line[0], next(changes), wanted) for line in lines]


@dataclass(frozen=True, kw_only=True, slots=True)
class _NewRuns:
    """New runs that can be compared: the number of each, and digests of their steps."""

    key: str
    series: Series
    metric: str
    rows: tuple[MetricRow, ...]
    measurements: tuple[str, ...]


def _new_runs(records: Sequence[RunRecord]) -> _NewRuns | Compared:
    first = records[0]
    if first.simulated is not None:
        reason = f"simulated fault {first.simulated}: no measurement"
        return Compared(name=first.key, verdict=Verdict.SKIP, reason=reason)
    broken = next((record.problem for record in records if record.problem is not None), None)
    if broken is not None:
        reason = f"the run cannot be judged ({broken.kind}), and so not be compared"
        return Compared(name=first.key, verdict=Verdict.SKIP, reason=reason)
    tables = [{row.name: row for row in metrics_of(record)} for record in records]
    candidates = (_SPEED, first.recipe.statistic_of_record, *tables[0])
    metric = next((name for name in candidates if all(_usable(table.get(name)) for table in tables)), None)
    if metric is None:
        reason = "no number of it has an interval and a direction: too few steps, or none with a duration; train longer"
        return Compared(name=first.key, verdict=Verdict.INCONCLUSIVE, reason=reason)
    digests = (measurement_of(record.steps) for record in records)
    return _NewRuns(
        key=first.key, series=series_of(first), metric=metric, rows=tuple(table[metric] for table in tables),
        measurements=tuple(digest for digest in digests if digest is not None),
    )  # fmt: skip


def _usable(row: MetricRow | None) -> bool:
    return row is not None and row.better is not None and row.low is not None and row.high is not None


def _baseline(
    connection: Connection, history: History, session: str, new: _NewRuns, wanted: Wanted
) -> Compared | tuple[Compared, NumberPair]:
    """The pair of the new runs and their baseline, or the verdict where there is no baseline."""
    earlier = _earlier_runs(connection, session, new)
    same = [run for run in earlier if run.series == new.series]
    chosen = _choose(connection, same, wanted)
    usable = [run for run in chosen if run.problem is None and _usable(run.metrics.get(new.metric))]
    line = Compared(name=new.key, metric=new.metric)
    if not usable:
        return _without_baseline(line, new.series, earlier, same, chosen, wanted, history.shown)
    usable, candidates = _best(usable, new.metric) if wanted.kind == "best" else (usable, 1)
    past = [run.metrics[new.metric].value for run in same if run.problem is None and new.metric in run.metrics]
    pair = NumberPair(
        metric=new.metric, before=[run.metrics[new.metric] for run in usable], after=new.rows, past=past[-_MOST_PAST:],
        usual=usual_spread(gpus=new.series.gpus, scale=new.series.scale), candidates=candidates,
    )  # fmt: skip
    return replace(line, sessions=tuple(dict.fromkeys(run.session for run in usable))), pair


def _earlier_runs(connection: Connection, session: str, new: _NewRuns) -> list[PastRun]:
    """The earlier runs of the recipe on any machine, oldest first, without other readings of the new ones."""
    newest = (
        "SELECT n.id FROM llmbench_runs n WHERE n.series IN (SELECT id FROM llmbench_series WHERE recipe = :recipe) "
        "AND n.session <> :session AND n.counts AND (n.measurement IS NULL OR n.measurement NOT IN :measurements) "
        f"ORDER BY n.time DESC LIMIT {_MOST_RUNS}"
    )
    return past_runs(
        connection, f"r.id IN ({newest})", new.metric, recipe=new.series.recipe, session=session,
        measurements=[*new.measurements, ""],
    )  # fmt: skip


def _choose(connection: Connection, runs: Sequence[PastRun], wanted: Wanted) -> list[PastRun]:
    """The runs of the wanted baseline."""
    if wanted.kind == "best":
        return [*runs]
    if wanted.kind == "last":
        # Of sessions in which it could be measured.
        measured = dict.fromkeys(run.session for run in reversed(runs) if run.problem is None)
        sessions = {*[*measured][: wanted.count]}
    else:
        sessions = _sessions_of(connection, wanted)
    return [run for run in runs if run.session in sessions]


def _sessions_of(connection: Connection, wanted: Wanted) -> set[str]:
    if wanted.kind == "tag":
        return {*connection.column("SELECT session FROM llmbench_tags WHERE tag = :tag", tag=wanted.name)}
    commits = (
        "SELECT DISTINCT r.session FROM llmbench_runs r JOIN llmbench_sessions o ON o.id = r.session "
        "WHERE substr(coalesce(r.git_commit, o.git_commit), 1, :length) = :beginning"
    )
    return {*connection.column(commits, beginning=wanted.name, length=len(wanted.name))}


def _best(runs: Sequence[PastRun], metric: str) -> tuple[list[PastRun], int]:
    """The runs of the session with the best mean, and the number of sessions."""
    sessions: dict[str, list[PastRun]] = {}
    for run in runs:
        sessions.setdefault(run.session, []).append(run)
    higher = runs[-1].metrics[metric].better == "higher"
    means = {name: fmean(run.metrics[metric].value for run in of_one) for name, of_one in sessions.items()}
    best = (max if higher else min)(means, key=lambda name: means[name])
    return sessions[best], len(sessions)


def _without_baseline(
    line: Compared,
    series: Series,
    earlier: Sequence[PastRun],
    same: Sequence[PastRun],
    chosen: Sequence[PastRun],
    wanted: Wanted,
    shown: str,
) -> Compared:
    """A new recipe is skipped; one that ran before on another machine, or was changed, is not decided."""
    recipe = series.recipe
    if not earlier:
        reason = f"no baseline: the history {shown} has no earlier run of {recipe}"
        return replace(line, verdict=Verdict.SKIP, reason=reason)
    have = counted(len(earlier), "earlier run")
    if not same:
        differs = earlier[-1].series.differs_from(series)
        reason = f"no baseline: {have} of {recipe}, and none is comparable. The newest differs: {differs}"
    elif not chosen:
        reason = f"no baseline: none of {have} of {recipe} on this machine is of {wanted}"
    else:
        reason = f"no baseline: none of the runs of {wanted} could be judged, or has an interval of its {line.metric}"
    return replace(line, verdict=Verdict.INCONCLUSIVE, reason=reason)


def _judge(line: Compared, change: Change, wanted: Wanted) -> Compared:
    verdict = verdict_of_change(change)
    reason = "" if verdict is Verdict.PASS else _reason(line, change, verdict, wanted)
    return replace(line, verdict=verdict, change=change, reason=reason)


def _reason(line: Compared, change: Change, verdict: Verdict, wanted: Wanted) -> str:
    share = for_people(100 * abs(change.share), 2)
    word = "lower" if change.share < 0.0 else "higher"
    what = f"{line.metric} is {share} % {word} than in {wanted} ({', '.join(line.sessions[-3:])})"
    if change.low is None or change.high is None:
        return f"{what}: {change.reason}"
    between = f"between {for_people(100 * change.low, 2)} and {for_people(100 * change.high, 2)} %"
    if verdict is Verdict.FAIL:
        return f"{what}: {between}, which is beyond the uncertainty of both"
    return (
        f"{what}: {between}. A regression of more than {100 * COARSE:g} % could hide in that: train longer, make "
        f"several runs (--llmbench-repeat), or keep {LEAST_PAST} earlier runs or more"
    )
