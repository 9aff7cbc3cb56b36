"""Questions to the history about sessions and series."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.history.database import Connection, History
from pytest_llmbench.history.rows import MetricRow, Series

# Number of earlier runs whose scatter is used.
_MOST_BEFORE = 50
_SERIES_COLUMNS = ", ".join(f"s.{name}" for name in Series.__slots__)


class SeriesPoint(NamedTuple):
    """One run in a series, which began at the Unix time `time`.

    `git_commit` is that of the framework's checkout, else of the session's; `series` a number for machine and setup.
    """

    session: str
    run: str
    time: float
    value: float
    unit: str
    low: float | None
    high: float | None
    better: str | None
    git_commit: str | None
    version: str | None
    system: str
    nodes: int
    hardware: str
    scale: str
    series: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PastRun:
    """A run of the history that can be compared.

    `time` is the Unix time at which it began, `problem` that of an unjudged run, `simulated` a fault of a simulated
    one; `metrics` are its numbers by name.
    """

    session: str
    name: str
    time: float | None
    series: Series
    problem: str | None
    simulated: str | None
    metrics: Mapping[str, MetricRow]


def list_sessions(history: History, limit: int = 50) -> list[dict[str, Any]]:
    """The newest sessions, newest first, with their numbers of runs, checks and verdicts."""
    with history.reading() as connection:
        newest = "SELECT id FROM llmbench_sessions ORDER BY began DESC, id DESC LIMIT :limit"
        sessions = [_read_session(connection, session) for session in connection.column(newest, limit=limit)]
    for session in sessions:
        records = session.pop("records")
        kinds = Counter(record["about"] for record in records)
        session |= {"runs": kinds["run"], "checks": kinds["check"]}
        session["verdicts"] = dict(Counter(row["verdict"] for record in records for row in record["verdicts"]))
    return sessions


def show_session(history: History, given: str) -> dict[str, Any]:
    """The facts, tags and records of one session, with numbers and verdicts.

    Raises ConfigError if the name is unknown or ambiguous.
    """
    with history.reading() as connection:
        return _read_session(connection, find_session(connection, given))


def _read_session(connection: Connection, session: str) -> dict[str, Any]:
    (row,) = connection.rows("SELECT * FROM llmbench_sessions WHERE id = :session", session=session)
    series = ", ".join(f"s.{name} AS series_{name}" for name in Series.__slots__)
    runs = connection.rows(
        f"SELECT r.*, {series} FROM llmbench_runs r LEFT JOIN llmbench_series s ON s.id = r.series "
        "WHERE r.session = :session ORDER BY r.about DESC, r.name",
        session=session,
    )
    by_id: dict[int, dict[str, Any]] = {}
    for run in runs:
        facts = {name: value for name, value in run.items() if name not in {"id", "series", "session"}}
        by_id[run["id"]] = facts | {"metrics": {}, "verdicts": []}
    own = "run IN (SELECT id FROM llmbench_runs WHERE session = :session) ORDER BY run"
    numbers = f"SELECT run, name, value, unit, low, high, better FROM llmbench_metrics WHERE {own}, name"
    for metric in connection.rows(numbers, session=session):
        by_id[metric.pop("run")]["metrics"][metric.pop("name")] = metric
    facts_of_verdict = "run, test, verdict, statistic, measured, threshold, reference, reason"
    for verdict in connection.rows(
        f"SELECT {facts_of_verdict} FROM llmbench_verdicts WHERE {own}, number", session=session
    ):
        by_id[verdict.pop("run")]["verdicts"].append(verdict)
    tags = connection.column("SELECT tag FROM llmbench_tags WHERE session = :session ORDER BY tag", session=session)
    return {**row, "tags": tags, "records": [*by_id.values()]}


def find_session(connection: Connection, given: str) -> str:
    """The id of a session that is given by its id, by a unique beginning of it, or by the name of its folder.

    Raises ConfigError if the name is unknown or ambiguous.
    """
    begins = "SELECT id FROM llmbench_sessions WHERE substr(id, 1, :length) = :given ORDER BY id LIMIT 6"
    matches = connection.column(begins, given=given, length=len(given))
    if given in matches:
        return given
    if not matches:  # `--llmbench-session-name` gives the folder its name
        places = connection.rows("SELECT DISTINCT session, path FROM llmbench_runs")
        matches = sorted({row["session"] for row in places if Path(row["path"]).parts[-4:-3] == (given,)})[:6]
    if len(matches) == 1:
        return str(matches[0])
    if matches:
        raise ConfigError(f"several sessions have the name {given!r}: {', '.join(matches)}; write the whole id of one")
    newest = connection.column("SELECT id FROM llmbench_sessions ORDER BY began DESC LIMIT 5")
    raise ConfigError(f"{unknown('session', given, newest)} (the newest; `llmbench history show` has all)")


def read_series(
    history: History, recipe: str, metric: str, *, last: int | None = None, series: int | None = None
) -> list[SeriesPoint]:
    """The measured values of a metric of a recipe, oldest first, without simulated runs and second readings.

    `last` is the number of newest values to read, `series` the number of the only series. Raises ConfigError if the
    recipe, the metric or the series is unknown.
    """
    with history.reading() as connection:
        numbers = connection.column("SELECT id FROM llmbench_series WHERE recipe = :recipe", recipe=recipe)
        if series is not None and numbers:
            if series not in numbers:
                raise ConfigError(f"recipe {recipe}: {unknown('series', str(series), map(str, numbers))}")
            numbers = [series]
        if not numbers:
            known = connection.column("SELECT DISTINCT recipe FROM llmbench_series")
            raise ConfigError(f"history {history.shown}: {unknown('recipe', recipe, known)}")
        newest = "" if last is None else f"LIMIT {last}"
        rows = connection.rows(
            "SELECT r.session, r.name AS run, m.time, m.value, m.unit, m.low, m.high, m.better, "
            "coalesce(r.git_commit, o.git_commit) AS git_commit, o.version, s.system, s.nodes, s.hardware, s.scale, "
            "m.series FROM llmbench_metrics m JOIN llmbench_runs r ON r.id = m.run "
            "JOIN llmbench_sessions o ON o.id = r.session JOIN llmbench_series s ON s.id = m.series "
            "WHERE m.series IN :numbers AND m.name = :metric AND r.counts "
            f"ORDER BY m.time DESC, m.run DESC {newest}",
            numbers=numbers, metric=metric,
        )  # fmt: skip
        if not rows:
            names = "SELECT DISTINCT name FROM llmbench_metrics WHERE series IN :numbers"
            known = connection.column(names, numbers=numbers)
            raise ConfigError(f"history {history.shown}: recipe {recipe}: {unknown('metric', metric, known)}")
    return [SeriesPoint(**row) for row in reversed(rows)]


def runs_of(history: History, session: str) -> list[PastRun]:
    """The runs of a session with their metrics: simulated ones are marked, second readings left out."""
    with history.reading() as connection:
        own = "r.session = :session AND (r.counts OR r.simulated IS NOT NULL)"
        return _past_runs(connection, own, session=session)


def runs_before(history: History, runs: Sequence[PastRun]) -> dict[str, list[PastRun]]:
    """The newest runs before those of a session that are measurements of their own, oldest first, by recipe."""
    until = min((run.time for run in runs if run.time is not None), default=0.0)
    recipes, sessions = {run.series.recipe for run in runs}, {run.session for run in runs}
    with history.reading() as connection:
        return {
            recipe: newest_runs(
                connection, recipe, "n.time < :until", _MOST_BEFORE, leave_out=sessions, until=until
            ) for recipe in recipes
        }  # fmt: skip


def newest_runs(
    connection: Connection, recipe: str, condition: str, most: int, *, leave_out: Collection[str],
    metric: str | None = None, **parameters: Any,
) -> list[PastRun]:  # fmt: skip
    """The newest runs `n` of a recipe that are measurements of their own, oldest first, without those of some sessions.

    `condition` is further SQL about them, with its parameters; `metric` the only number to read.
    """
    newest = (
        "SELECT n.id FROM llmbench_runs n WHERE n.series IN (SELECT id FROM llmbench_series WHERE recipe = :recipe) "
        f"AND n.counts AND n.session NOT IN :leave_out AND {condition} ORDER BY n.time DESC LIMIT {most}"
    )
    parameters |= {"recipe": recipe, "leave_out": [*leave_out, ""]}
    return _past_runs(connection, f"r.id IN ({newest})", metric, **parameters)


def _past_runs(connection: Connection, condition: str, metric: str | None = None, **parameters: Any) -> list[PastRun]:
    """The runs `r` of a series `s` that an SQL condition chooses, oldest first, with all numbers or a single one."""
    only = "" if metric is None else "AND m.name = :metric"
    rows = connection.rows(
        f"SELECT r.id, r.session, r.name AS run, r.time, r.problem, r.simulated, {_SERIES_COLUMNS}, "
        "m.name, m.value, m.unit, m.low, m.high, m.better, m.steps, m.scatter FROM llmbench_runs r "
        "JOIN llmbench_series s ON s.id = r.series "
        f"LEFT JOIN llmbench_metrics m ON m.run = r.id {only} WHERE {condition} ORDER BY r.time, r.id, m.name",
        **parameters, **({} if metric is None else {"metric": metric}),
    )  # fmt: skip
    runs = []
    for _, group in groupby(rows, key=lambda row: row["id"]):
        row, *more = group
        numbers = [line for line in (row, *more) if line["name"] is not None]
        metrics = [MetricRow(**{name: line[name] for name in MetricRow.__slots__}) for line in numbers]
        runs.append(
            PastRun(
                session=row["session"], name=row["run"], time=row["time"], problem=row["problem"],
                simulated=row["simulated"], series=Series(**{name: row[name] for name in Series.__slots__}),
                metrics={metric.name: metric for metric in metrics},
            )
        )  # fmt: skip
    return runs
