"""Records of sessions into the history: each once, whole, and never another under the same name."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, and_, delete, insert, select, update

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.quantity import counted
from pytest_llmbench.core.wire import layout
from pytest_llmbench.history.store.database import History
from pytest_llmbench.history.store.rows import RecordRows, Series, read_rows, uuids_in
from pytest_llmbench.history.store.tables import (
    DEVICES,
    METRICS,
    RUNS,
    SERIES,
    SESSIONS,
    SIGHTINGS,
    TAGS,
    VERDICTS,
)
from pytest_llmbench.session.folder import has_ended, record_files

# More records without a verdict are counted, and not named.
_MOST_DOUBTS = 5


@dataclass(kw_only=True, slots=True)
class Imported:
    """The outcome of an import.

    Attributes:
        new: records that the history did not have.
        renewed: records of a session that had not ended, in another state than before.
        known: records that it had.
        refused: one sentence for each record that could not be imported.
        sessions: those that were looked at.
        empty: paths that hold no record of a session.
        unjudged: one sentence for each new record that has no verdict of any test.
    """

    new: int = 0
    renewed: int = 0
    known: int = 0
    refused: list[str] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)

    @property
    def doubts(self) -> list[str]:
        """The first records without a verdict, and how many more there are."""
        more = len(self.unjudged) - _MOST_DOUBTS
        rest = [f"and {counted(more, 'further record')} without a verdict"] if more > 0 else []
        return [*self.unjudged[:_MOST_DOUBTS], *rest]

    def __str__(self) -> str:
        renewed = f", {self.renewed} renewed" if self.renewed else ""
        told = f"{counted(self.new, 'new record')}{renewed}, {self.known} known already"
        return f"{counted(len(self.sessions), 'session')}: {told}, {len(self.refused)} refused"


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """Facts of a session that its records lack.

    Attributes:
        version: of pytest-llmbench; None where it is not known.
        git_commit: of the checkout that has the tests.
        tags: names for the session.
    """

    version: str | None = None
    git_commit: str | None = None
    tags: tuple[str, ...] = ()


def import_sessions(history: History, paths: Iterable[Path], about: About | None = None) -> Imported:
    """Import the sessions in some folders; report what is damaged, and import the rest.

    Args:
        history: gets the records.
        paths: sessions' folders, or folders of sessions' folders.
        about: facts to note with each of them.

    Raises:
        ConfigError: a path is not there, or the history cannot be written.
    """
    told, seen = Imported(), set()
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path}: there is no such file or folder")
        folders = [*_sessions_in(path)]
        if not folders:
            told.empty.append(str(path))
        for folder in folders:
            if folder.resolve() not in seen:  # `latest` is a link
                seen.add(folder.resolve())
                _import_folder(history, folder, about or About(), told)
    return told


def records_in(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield what each record of a session's folder is about, and its file; those of attempts made again are not."""
    for about in layout.FOLDERS:
        for path in record_files(folder, about):
            yield about, path


def read_session(folder: Path) -> tuple[list[RecordRows], list[str]]:
    """The records of a session's folder, and why others cannot be read."""
    found, refused = [], []
    gpus: dict[tuple[str, str], str] = {}
    for about, path in records_in(folder):
        if about == "check":
            gpus |= uuids_in(path)
    for about, path in records_in(folder):
        try:
            found.append(read_rows(path, about, gpus))
        except ConfigError as error:
            refused.append(str(error))
    return found, refused


def _sessions_in(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        return
    if any((path / name).is_dir() for name in layout.FOLDERS.values()):
        yield path
        return
    for folder in sorted(path.iterdir()):
        if folder.is_dir() and any((folder / name).is_dir() for name in layout.FOLDERS.values()):
            yield folder


def _import_folder(history: History, folder: Path, about: About, told: Imported) -> None:
    rows, refused = read_session(folder)
    told.refused += refused
    if not rows and not refused:
        told.empty.append(str(folder))
    try:
        ended = has_ended(folder)
    except ConfigError as error:
        told.refused.append(f"{error}; its records count as those of a session that did not end")
        ended = False
    by_session: dict[str, list[RecordRows]] = {}
    for row in rows:
        by_session.setdefault(row.session, []).append(row)
    for session, records in by_session.items():
        add_records(history, session, records, ended=ended, about=about, told=told)


def add_records(
    history: History, session: str, records: Sequence[RecordRows], *, ended: bool, about: About, told: Imported
) -> None:
    """Write the records of one session, in one transaction.

    Args:
        history: gets the records.
        session: its id.
        records: at least one.
        ended: none of them will change any more.
        about: further facts of the session.
        told: is added to.

    Raises:
        ConfigError: the history cannot be written.
    """
    with history.writing() as connection:
        told.sessions.append(session)
        had_ended = _note_session(connection, session, records, ended=ended, about=about)
        for record in records:
            mine = and_(RUNS.c.session == session, RUNS.c.about == record.about, RUNS.c.name == record.name)
            known = connection.execute(select(RUNS.c.id, RUNS.c.content, RUNS.c.path).where(mine)).one_or_none()
            if known is not None and known.content == record.content:
                told.known += 1
                continue
            if known is not None and had_ended:
                told.refused.append(
                    f"{record.path}: this record of {record.about} {record.name} of session {session} is another than "
                    f"the one that was imported from {known.path}, and the session had ended: one of the two was "
                    "changed. The history keeps the first"
                )
                continue
            if known is not None:
                _forget(connection, known.id)
                told.renewed += 1
            else:
                told.new += 1
            _add(connection, record)
            if not record.verdicts:
                told.unjudged.append(
                    f"{record.path}: imported without a verdict: no test judged this {record.about}, or its verdicts "
                    "were taken out of the record"
                )


def _forget(connection: Connection, run: int) -> None:
    """Delete a record; one that was the same measurement, read again, counts from now on."""
    row = connection.execute(select(RUNS.c.measurement, RUNS.c.counts).where(RUNS.c.id == run)).one()
    connection.execute(delete(RUNS).where(RUNS.c.id == run))
    if row.counts and row.measurement is not None:
        other = select(RUNS.c.id).where(RUNS.c.measurement == row.measurement, RUNS.c.simulated.is_(None)).limit(1)
        if (twin := connection.execute(other).scalar()) is not None:
            connection.execute(update(RUNS).where(RUNS.c.id == twin).values(counts=True))


def _note_session(
    connection: Connection, session: str, records: Sequence[RecordRows], *, ended: bool, about: About
) -> bool:
    """Write the row of a session, and return whether it had ended at its last import."""
    row = connection.execute(
        select(SESSIONS.c.ended, SESSIONS.c.version, SESSIONS.c.git_commit, SESSIONS.c.began).where(
            SESSIONS.c.id == session
        )
    ).one_or_none()
    began = min(record.time for record in records)
    if row is None:
        first = records[0]
        version = about.version or next((record.version for record in records if record.version is not None), None)
        values = {
            "id": session, "began": began, "system": first.system, "cluster": first.cluster, "version": version,
            "git_commit": about.git_commit, "ended": ended, "imported": time.time(),
        }  # fmt: skip
        connection.execute(insert(SESSIONS).values(values))
    else:
        renewed = {
            "ended": bool(row.ended) or ended, "began": min(began, row.began), "version": about.version or row.version,
            "git_commit": about.git_commit or row.git_commit,
        }  # fmt: skip
        connection.execute(update(SESSIONS).where(SESSIONS.c.id == session).values(renewed))
    for tag in about.tags:
        add_tag(connection, session, tag)
    return bool(row is not None and row.ended)


def add_tag(connection: Connection, session: str, tag: str) -> None:
    """Give a session a name, once."""
    named = select(TAGS.c.tag).where(TAGS.c.session == session, TAGS.c.tag == tag)
    if connection.execute(named).scalar() is None:
        connection.execute(insert(TAGS).values(session=session, tag=tag))


def _add(connection: Connection, record: RecordRows) -> None:
    series = None if record.series is None else _id_of(connection, SERIES, _values(record.series))
    run = connection.execute(
        insert(RUNS).values(
            session=record.session, about=record.about, name=record.name, series=series, time=record.time,
            content=record.content, measurement=record.measurement, simulated=record.simulated,
            replayed=record.replayed, problem=record.problem, git_commit=record.git_commit, path=record.path,
            counts=_counts(connection, record),
        ).returning(RUNS.c.id)
    ).scalar_one()  # fmt: skip
    _insert(
        connection, METRICS,
        [
            {
                "run": run, "series": series, "time": record.time, "name": metric.name, "value": metric.value,
                "unit": metric.unit, "low": metric.low, "high": metric.high, "better": metric.better,
            }
            for metric in record.metrics
        ],
    )  # fmt: skip
    verdicts = [{**told, "run": run, "number": number} for number, told in enumerate(record.verdicts)]
    _insert(connection, VERDICTS, verdicts)
    devices: dict[tuple[str, str, str], int] = {}
    sightings = []
    for number, seen in enumerate(record.sightings):
        kind, name, node = seen.device
        if seen.device not in devices:
            devices[seen.device] = _device(connection, kind, name, node)
        sightings.append(
            {
                "run": run, "number": number, "device": devices[seen.device], "time": record.time, "kind": seen.kind,
                "what": seen.what, "said": seen.said, "value": seen.value, "unit": seen.unit, "blames": seen.blames,
            }
        )  # fmt: skip
    _insert(connection, SIGHTINGS, sightings)


def _counts(connection: Connection, record: RecordRows) -> bool:
    """Whether a run is a measurement of its own. If a run was read twice, the one that is not a replay counts."""
    if record.simulated is not None:
        return False
    if record.measurement is None:
        return True
    same = and_(RUNS.c.measurement == record.measurement, RUNS.c.counts)
    other = connection.execute(select(RUNS.c.id, RUNS.c.replayed).where(same)).first()
    if other is not None and other.replayed and not record.replayed:
        connection.execute(update(RUNS).where(RUNS.c.id == other.id).values(counts=False))
        return True
    return other is None


def _device(connection: Connection, kind: str, name: str, node: str) -> int:
    """The id of a device, which is on that node now."""
    found = _id_of(connection, DEVICES, {"kind": kind, "name": name}, {"node": node})
    connection.execute(update(DEVICES).where(DEVICES.c.id == found, DEVICES.c.node != node).values(node=node))
    return found


def _id_of(connection: Connection, table: Table, key: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> int:
    """The id of a row with that key, which is made if it is not there."""
    where = and_(*(table.c[name] == value for name, value in key.items()))
    found = connection.execute(select(table.c.id).where(where)).scalar()
    if found is None:
        found = connection.execute(insert(table).values({**key, **(more or {})}).returning(table.c.id)).scalar_one()
    return int(found)


def _insert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        connection.execute(insert(table), [dict(row) for row in rows])


def _values(series: Series) -> dict[str, Any]:
    return {name: getattr(series, name) for name in Series.__slots__}
