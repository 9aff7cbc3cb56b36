"""Questions to the history about sessions and series."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, RowMapping, and_, func, or_, select

from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.wire import layout
from pytest_llmbench.history.store.database import History
from pytest_llmbench.history.store.rows import MetricRow, Series
from pytest_llmbench.history.store.tables import METRICS, RUNS, SERIES, SESSIONS, TAGS, VERDICTS

_SERIES_COLUMNS = tuple(SERIES.c[name] for name in Series.__slots__)
# As many as a question of SQL may name.
_AT_ONCE = 500
# So many earlier runs say how runs differ.
_MOST_BEFORE = 50


class SeriesPoint(NamedTuple):
    """One run in a series.

    Attributes:
        time: Unix time at which it began.
        git_commit: of the framework's checkout, else of the session's; None where neither is known.
        series: number of the series: those of another machine or setup have another.
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

    @property
    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return self._asdict()


@dataclass(frozen=True, kw_only=True, slots=True)
class PastRun:
    """A run of the history that can be compared.

    Attributes:
        problem: the reason that it cannot be judged; None of a sane one.
        metrics: by name.
    """

    session: str
    name: str
    time: float
    series: Series
    problem: str | None
    simulated: bool
    metrics: Mapping[str, MetricRow]


def list_sessions(history: History, limit: int | None = None) -> list[dict[str, Any]]:
    """The sessions, newest first, each with its number of records and of verdicts by word."""
    with history.reading() as connection:
        chosen = select(SESSIONS).order_by(SESSIONS.c.began.desc(), SESSIONS.c.id.desc()).limit(limit)
        sessions: list[dict[str, Any]] = [dict(row) for row in connection.execute(chosen).mappings()]
        ids = [session["id"] for session in sessions]
        counts: dict[str, dict[str, int]] = {}
        for part in _parts(ids):
            records = (
                select(RUNS.c.session, RUNS.c.about, func.count())
                .where(RUNS.c.session.in_(part))
                .group_by(RUNS.c.session, RUNS.c.about)
            )
            for session, about, count in connection.execute(records):
                counts.setdefault(session, {})[f"{about}s"] = count
            verdicts = (
                select(RUNS.c.session, VERDICTS.c.verdict, func.count())
                .join(VERDICTS, VERDICTS.c.run == RUNS.c.id)
                .where(RUNS.c.session.in_(part))
                .group_by(RUNS.c.session, VERDICTS.c.verdict)
            )
            for session, verdict, count in connection.execute(verdicts):
                counts.setdefault(session, {})[verdict] = count
        tags = _tags_of(connection, ids)
    for session in sessions:
        told = counts.get(session["id"], {})
        session |= {
            "runs": told.pop("runs", 0), "checks": told.pop("checks", 0), "verdicts": told,
            "tags": tags.get(session["id"], []),
        }  # fmt: skip
    return sessions


def show_session(history: History, given: str) -> dict[str, Any]:
    """Everything of one session.

    Raises:
        ConfigError: there is none of that name.
    """
    with history.reading() as connection:
        session = find_session(connection, given)
        row = dict(connection.execute(select(SESSIONS).where(SESSIONS.c.id == session)).mappings().one())
        found = connection.execute(
            select(RUNS, *(column.label(f"series_{column.name}") for column in _SERIES_COLUMNS))
            .outerjoin(SERIES, SERIES.c.id == RUNS.c.series)
            .where(RUNS.c.session == session)
            .order_by(RUNS.c.about.desc(), RUNS.c.name)
        )
        runs = [dict(each) for each in found.mappings()]
        ids = [run["id"] for run in runs]
        metrics = _rows_of(connection, METRICS, ids, METRICS.c.name)
        verdicts = _rows_of(connection, VERDICTS, ids, VERDICTS.c.number)
        tags = _tags_of(connection, [session]).get(session, [])
    records = []
    for run in runs:
        told = {name: value for name, value in run.items() if name not in {"id", "series", "session"}}
        told["metrics"] = {
            each["name"]: {name: each[name] for name in ("value", "unit", "low", "high", "better")}
            for each in metrics.get(run["id"], ())
        }
        told["verdicts"] = [
            {name: value for name, value in each.items() if name not in {"run", "number"}}
            for each in verdicts.get(run["id"], ())
        ]
        records.append(told)
    return {**row, "tags": tags, "records": records}


def find_session(connection: Connection, given: str) -> str:
    """The id of a session that is named whole, by a beginning that no other has, or by the name of its folder.

    Raises:
        ConfigError: there is none, or several.
    """
    whole = connection.execute(select(SESSIONS.c.id).where(SESSIONS.c.id == given)).scalar()
    if whole is not None:
        return str(whole)
    begins = SESSIONS.c.id.startswith(given, autoescape=True)
    found = connection.execute(select(SESSIONS.c.id).where(begins).order_by(SESSIONS.c.id).limit(6)).scalars().all()
    if not found:  # `--llmbench-session-name` names the folder, and not the session
        inside = (RUNS.c.path.contains(f"/{given}/{name}/", autoescape=True) for name in layout.FOLDERS.values())
        named = select(RUNS.c.session).where(or_(*inside)).distinct().order_by(RUNS.c.session).limit(6)
        found = connection.execute(named).scalars().all()
    if len(found) == 1:
        return str(found[0])
    if found:
        raise ConfigError(f"several sessions have the name {given!r}: {', '.join(found)}; write the whole id of one")
    newest = connection.execute(select(SESSIONS.c.id).order_by(SESSIONS.c.began.desc()).limit(5)).scalars().all()
    raise ConfigError(f"{unknown('session', given, newest)} (the newest; `llmbench history list` has all)")


def read_series(
    history: History, recipe: str, metric: str, *, last: int | None = None, series: int | None = None
) -> list[SeriesPoint]:
    """The measured values of a metric of a recipe, oldest first; simulated runs and second readings are left out.

    Args:
        history: the history.
        recipe: its name.
        metric: name of a statistic.
        last: at most this many, the newest.
        series: number of one series only.

    Raises:
        ConfigError: no run of the recipe is there, or none has the metric.
    """
    with history.reading() as connection:
        about = (SERIES.c.id, SERIES.c.system, SERIES.c.nodes, SERIES.c.hardware, SERIES.c.scale)
        of_recipe = connection.execute(select(*about).where(SERIES.c.recipe == recipe))
        # Not joined to each run: there are few series, and a history has many runs.
        facts = {number: told for number, *told in of_recipe if series in {None, number}}
        if not facts:
            known = connection.execute(select(SERIES.c.recipe).distinct()).scalars()
            raise ConfigError(unknown("recipe of the history", recipe, known))
        chosen = (
            select(
                RUNS.c.session, RUNS.c.name.label("run"), METRICS.c.time, METRICS.c.value, METRICS.c.unit,
                METRICS.c.low, METRICS.c.high, METRICS.c.better,
                func.coalesce(RUNS.c.git_commit, SESSIONS.c.git_commit).label("git_commit"), SESSIONS.c.version,
                METRICS.c.series,
            )
            .join(RUNS, RUNS.c.id == METRICS.c.run)
            .join(SESSIONS, SESSIONS.c.id == RUNS.c.session)
            .where(METRICS.c.series.in_(facts), METRICS.c.name == metric, RUNS.c.counts)
            .order_by(METRICS.c.time.desc(), METRICS.c.run.desc())
            .limit(last)
        )  # fmt: skip
        points = [SeriesPoint._make((*told, *facts[number], number)) for *told, number in connection.execute(chosen)]
        if not points:
            have = connection.execute(select(METRICS.c.name).where(METRICS.c.series.in_(facts)).distinct()).scalars()
            raise ConfigError(unknown(f"metric of {recipe} in the history", metric, have))
    return points[::-1]


def runs_of(history: History, sessions: Sequence[str]) -> list[PastRun]:
    """The runs of some sessions with their metrics, simulated ones and second readings marked or left out."""
    found: list[PastRun] = []
    with history.reading() as connection:
        for part in _parts(sessions):
            chosen = and_(
                RUNS.c.session.in_(part), RUNS.c.about == "run", or_(RUNS.c.counts, RUNS.c.simulated.isnot(None))
            )
            found += past_runs(connection, chosen)
    return found


def runs_before(history: History, recipe: str, until: float, *, leave_out: Collection[str]) -> list[PastRun]:
    """The newest runs of a recipe before a Unix time that are measurements of their own, oldest first."""
    newest = (
        select(RUNS.c.id)
        .join(SERIES, SERIES.c.id == RUNS.c.series)
        .where(SERIES.c.recipe == recipe, RUNS.c.time < until, RUNS.c.counts, RUNS.c.session.notin_(leave_out))
        .order_by(RUNS.c.time.desc())
        .limit(_MOST_BEFORE)
    )
    with history.reading() as connection:
        return past_runs(connection, RUNS.c.id.in_(newest))


def past_runs(connection: Connection, chosen: Any, metric: str | None = None) -> list[PastRun]:
    """The runs that a condition chooses, oldest first, with their metrics, or that one."""
    found = connection.execute(
        select(RUNS.c.id, RUNS.c.session, RUNS.c.name, RUNS.c.time, RUNS.c.problem, RUNS.c.simulated)
        .add_columns(*_SERIES_COLUMNS)
        .join(SERIES, SERIES.c.id == RUNS.c.series)
        .where(chosen)
        .order_by(RUNS.c.time, RUNS.c.id)
    )
    runs = [dict(each) for each in found.mappings()]
    only = METRICS.c.name == metric if metric is not None else None
    metrics = _rows_of(connection, METRICS, [run["id"] for run in runs], METRICS.c.name, only)
    return [
        PastRun(
            session=run["session"], name=run["name"], time=run["time"], problem=run["problem"],
            simulated=run["simulated"] is not None,
            series=Series(**{name: run[name] for name in Series.__slots__}),
            metrics={
                each["name"]: MetricRow(**{name: each[name] for name in MetricRow.__slots__})
                for each in metrics.get(run["id"], ())
            },
        )
        for run in runs
    ]  # fmt: skip


def _rows_of(
    connection: Connection, table: Any, runs: Sequence[int], order: Any, only: Any = None
) -> dict[int, list[RowMapping]]:
    found: dict[int, list[RowMapping]] = {}
    for part in _parts(runs):
        chosen = select(table).where(table.c.run.in_(part)).order_by(table.c.run, order)
        for row in connection.execute(chosen if only is None else chosen.where(only)).mappings():
            found.setdefault(row["run"], []).append(row)
    return found


def _tags_of(connection: Connection, sessions: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for part in _parts(sessions):
        chosen = select(TAGS.c.session, TAGS.c.tag).where(TAGS.c.session.in_(part)).order_by(TAGS.c.tag)
        for session, tag in connection.execute(chosen):
            found.setdefault(session, []).append(tag)
    return found


def _parts(values: Sequence[Any]) -> list[Sequence[Any]]:
    return [values[start : start + _AT_ONCE] for start in range(0, len(values), _AT_ONCE)]
