"""`--llmbench-compare-to`: the earlier runs of the history that a new run is compared with, and the verdict."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.quantity import counted, for_people
from pytest_llmbench.core.record.records import RunRecord, Verdict
from pytest_llmbench.history.compare import (
    COARSE,
    NOT_JUDGED,
    Change,
    Compared,
    compare_runs,
    not_comparable,
    run_of_record,
    usual_spread,
)
from pytest_llmbench.history.database import Connection, History
from pytest_llmbench.history.queries import PastRun, newest_runs
from pytest_llmbench.history.rows import MetricRow, measurement_of
from pytest_llmbench.history.scatter import LEAST_PAST, current_level
from pytest_llmbench.history.wanted import Wanted

# This many earlier runs, the newest, show the difference between runs.
_MOST_PAST = 50
# Number of runs of a recipe that are read to find a baseline.
_MOST_RUNS = 2000
_SPEED = "throughput"


def check_wanted(history: History, wanted: Wanted) -> None:
    """Check that the history has the tag or the commit of a baseline, before the session starts.

    Raises ConfigError if the tag or the commit is missing.
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
    """Compare new runs, grouped as they are judged, with the baseline that the user asked for.

    `session` is the id of the new runs' session, whose records are left out of the baseline.
    """
    lines: list[Compared] = []
    with history.reading() as connection:
        for records in runs:
            new = [run_of_record(record) for record in records]
            digests = [digest for record in records if (digest := measurement_of(record.steps)) is not None]
            line = _comparable(new, records[0].recipe.statistic_of_record)
            if line.verdict != NOT_JUDGED:
                lines.append(line)
                continue
            # On any machine, and without further readings of these measurements.
            others = "(n.measurement IS NULL OR n.measurement NOT IN :measurements)"
            earlier = newest_runs(
                connection, new[0].series.recipe, others, _MOST_RUNS, leave_out=[session], metric=line.metric,
                measurements=[*digests, ""],
            )  # fmt: skip
            lines.append(_baseline(connection, history.shown, line, new, earlier, wanted))
    return compare_runs(lines, partial(_judge, wanted))


def _comparable(runs: Sequence[PastRun], statistic_of_record: str) -> Compared:
    """The statistic to compare new runs by; for incomparable runs, their verdict."""
    run = runs[0].name
    if runs[0].simulated is not None:
        reason = f"simulated fault {runs[0].simulated}: no measurement"
        return Compared(name=run, verdict=Verdict.SKIP, reason=reason)
    if problem := next((run.problem for run in runs if run.problem is not None), None):
        reason = f"the run cannot be judged ({problem.partition(':')[0]}), and so not be compared"
        return Compared(name=run, verdict=Verdict.SKIP, reason=reason)
    candidates = (_SPEED, statistic_of_record, *runs[0].metrics)
    metric = next((name for name in candidates if all(_is_usable(run.metrics.get(name)) for run in runs)), None)
    if metric is None:
        reason = "no number of it has an interval and a direction: too few steps, or none with a duration; train longer"
        return Compared(name=run, verdict=Verdict.INCONCLUSIVE, reason=reason)
    return Compared(name=run, metric=metric)


def _is_usable(row: MetricRow | None) -> bool:
    return row is not None and row.better is not None and row.low is not None and row.high is not None


def _baseline(
    connection: Connection, shown: str, line: Compared, new: Sequence[PastRun], earlier: Sequence[PastRun],
    wanted: Wanted,
) -> Compared:  # fmt: skip
    """The numbers of the new runs and of their baseline; without a baseline, the verdict.

    A new recipe is SKIP; one that ran before on another machine, or was changed, is INCONCLUSIVE.
    """
    series, metric = new[0].series, line.metric
    have = f"{counted(len(earlier), 'earlier run')} of {series.recipe}"
    same = [run for run in earlier if run.series == series]
    measured = [run for run in same if run.problem is None and metric in run.metrics]
    sessions, candidates = _choose(connection, measured, wanted, metric)
    chosen = [run for run in same if run.session in sessions]
    usable = [run for run in measured if run.session in sessions and _is_usable(run.metrics[metric])]
    before, after = ([run.metrics[metric] for run in runs] for runs in (usable, new))
    if not earlier:
        reason = f"no baseline: the history {shown} has no earlier run of {series.recipe}"
        return replace(line, verdict=Verdict.SKIP, reason=reason)
    if not same:
        obstacle = f"{have}, and none is comparable. The newest differs: {earlier[-1].series.differs_from(series)}"
    elif not chosen:
        obstacle = f"none of {have} on this machine is of {wanted}"
    elif not usable:
        obstacle = f"none of the runs of {wanted} could be judged, or has an interval of its {metric}"
    else:
        obstacle = not_comparable(before, after)
    if obstacle:
        return replace(line, verdict=Verdict.INCONCLUSIVE, reason=f"no baseline: {obstacle}")
    return replace(
        line, before=before, after=after, past=[run.metrics[metric] for run in measured][-_MOST_PAST:],
        usual=usual_spread(series), candidates=candidates, sessions=tuple(dict.fromkeys(run.session for run in usable)),
    )  # fmt: skip


def _choose(
    connection: Connection, measured: Sequence[PastRun], wanted: Wanted, metric: str
) -> tuple[Collection[str], int]:
    """The sessions of the wanted baseline, and the number of those that the best one was chosen from.

    The last sessions are those since the last change of the metric.
    """
    if wanted.kind in {"tag", "commit"}:
        return _sessions_of(connection, wanted), 1
    rows: dict[str, list[MetricRow]] = {}
    for run in measured:
        rows.setdefault(run.session, []).append(run.metrics[metric])
    means = {session: fmean(row.value for row in of_one) for session, of_one in rows.items()}
    higher = bool(measured) and measured[-1].metrics[metric].better == "higher"
    if wanted.kind == "best":
        ranked = sorted(means, key=lambda session: means[session], reverse=higher)
        return ranked[:1], max(1, len(means))
    newest = [*means][-max(wanted.count, _MOST_PAST) :]
    level = current_level([means[session] for session in newest], higher=higher)
    return [newest[i] for i in level[-wanted.count :]], 1


def _sessions_of(connection: Connection, wanted: Wanted) -> set[str]:
    if wanted.kind == "tag":
        return {*connection.column("SELECT session FROM llmbench_tags WHERE tag = :tag", tag=wanted.name)}
    commits = (
        "SELECT DISTINCT r.session FROM llmbench_runs r JOIN llmbench_sessions o ON o.id = r.session "
        "WHERE substr(coalesce(r.git_commit, o.git_commit), 1, :length) = :beginning"
    )
    return {*connection.column(commits, beginning=wanted.name, length=len(wanted.name))}


def _judge(wanted: Wanted, line: Compared, change: Change) -> Compared:
    line = replace(line, verdict=change.verdict)
    if change.verdict is Verdict.PASS:
        return line
    share, word = for_people(100 * abs(change.share), 2), "lower" if change.share < 0.0 else "higher"
    what = f"{line.metric} is {share} % {word} than in {wanted} ({', '.join(line.sessions[-3:])})"
    if change.low is None or change.high is None:
        return replace(line, reason=f"{what}: {change.reason}")
    what += f": between {for_people(100 * change.low, 2)} and {for_people(100 * change.high, 2)} %"
    if change.verdict is Verdict.FAIL:
        return replace(line, reason=f"{what}, which is beyond the uncertainty of both")
    advice = change.reason or (
        "train longer, make several runs (--llmbench-repeat), or compare with more earlier runs "
        f"(last:{max(LEAST_PAST, 2 * change.runs_before)})"
    )
    reason = f"{what}. A regression of more than {100 * COARSE:g} % could hide in that: {advice}"
    return replace(line, reason=reason)
