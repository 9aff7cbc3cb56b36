"""Import of sessions' records into the history: each once and whole; the first one of a name stays."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.quantity import counted
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.wire import layout
from pytest_llmbench.history.database import Connection, History
from pytest_llmbench.history.rows import FiledRecord, file_record, metrics_of, series_of
from pytest_llmbench.session.folder import has_ended, read_folder, record_files
from pytest_llmbench.session.law import Law
from pytest_llmbench.session.refusals import refusals, without_refused

# This many records without a verdict are named, the others counted.
_MOST_DOUBTS = 5
_OF_VERDICT = {"test", "verdict", "statistic", "measured", "threshold", "reference", "reason"}


@dataclass(kw_only=True, slots=True)
class Imported:
    """The outcome of an import: numbers of records, and a sentence for each refused or unjudged one.

    `renewed` records had changed, in sessions that were still running at the last import. `sessions` are ids, `empty`
    are paths without a record, `compared` sentences about runs that were not compared with a recipe of today.
    """

    new: int = 0
    renewed: int = 0
    known: int = 0
    refused: list[str] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)
    compared: list[str] = field(default_factory=list)

    @property
    def doubts(self) -> list[str]:
        """The sentences of the first records without a verdict, and what the law leaves open."""
        more = len(self.unjudged) - _MOST_DOUBTS
        rest = [f"and {counted(more, 'further record')} without a verdict"] if more > 0 else []
        return [*self.unjudged[:_MOST_DOUBTS], *rest, *dict.fromkeys(self.compared)]

    def __str__(self) -> str:
        renewed = f", {self.renewed} renewed" if self.renewed else ""
        counts = f"{counted(self.new, 'new record')}{renewed}, {self.known} known already"
        return f"{counted(len(self.sessions), 'session')}: {counts}, {len(self.refused)} refused"


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """Facts of a session that its records lack: version of pytest-llmbench, commit of the tests, names for it."""

    version: str | None = None
    git_commit: str | None = None
    tags: tuple[str, ...] = ()


def import_sessions(
    history: History, paths: Iterable[Path], about: About | None = None, law: Law | None = None
) -> Imported:
    """Import the sessions in some folders, or in folders of these; damaged records are reported, all others imported.

    Runs of another recipe than the one of the `law` are refused as well. Raises ConfigError if a path is missing, or
    writing the history failed.
    """
    imported, seen = Imported(), set()
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path}: there is no such file or folder")
        folders = [path] if _has_records(path) else [*filter(_has_records, sorted(path.glob("*")))]
        if not folders:
            imported.empty.append(str(path))
        for folder in folders:
            if folder.resolve() not in seen:  # `latest` is a link
                seen.add(folder.resolve())
                _import_folder(history, folder, about or About(), law or Law(), imported)
    return imported


def _has_records(folder: Path) -> bool:
    return any((folder / name).is_dir() for name in layout.FOLDERS.values())


def _import_folder(history: History, folder: Path, about: About, law: Law, imported: Imported) -> None:
    if not any(record_files(folder, kind) for kind in layout.FOLDERS):
        imported.empty.append(str(folder))
        return
    by_session: dict[str, list[FiledRecord]] = {}
    try:
        read = without_refused(read_folder(folder), law)
    except ConfigError as error:
        imported.refused.append(str(error))
        return
    imported.compared += read.notes
    imported.refused += refusals(read)
    records_read: list[RunRecord | HealthRecord] = [*read.runs.values(), *read.checks.values()]
    for record in records_read:
        try:
            filed = file_record(record, read.places[record.about, record.name] / layout.RECORD)
        except ConfigError as error:
            imported.refused.append(str(error))
        else:
            by_session.setdefault(record.session, []).append(filed)
    try:
        ended = has_ended(folder)
    except ConfigError as error:
        imported.refused.append(f"{error}; its records count as those of a session that did not end")
        ended = False
    for session, records in by_session.items():
        add_records(history, session, records, ended=ended, about=about, imported=imported)


def add_records(
    history: History, session: str, records: Sequence[FiledRecord], *, ended: bool, about: About, imported: Imported
) -> None:
    """Write the records of one session, at least one, in one transaction, and count them in `imported`.

    `ended` is True if all of them are final. Raises ConfigError if writing the history failed.
    """
    with history.writing() as connection:
        imported.sessions.append(session)
        had_ended = _note_session(connection, session, records, ended=ended, about=about)
        for filed in records:
            about_record, name = filed.record.about, filed.record.name
            known = connection.rows(
                "SELECT id, content, path, measurement, counts FROM llmbench_runs "
                "WHERE session = :session AND about = :about AND name = :name",
                session=session, about=about_record, name=name,
            )  # fmt: skip
            if known and known[0]["content"] == filed.content:
                imported.known += 1
                continue
            if known and had_ended:
                imported.refused.append(
                    f"{filed.path}: this record of {about_record} {name} of session {session} is another than the one "
                    f"that was imported from {known[0]['path']}, and the session had ended: one of the two was "
                    "changed. The history keeps the first"
                )
                continue
            if known:
                _forget(connection, known[0])
                imported.renewed += 1
            else:
                imported.new += 1
            _add(connection, filed)
            if not filed.record.judgements:
                imported.unjudged.append(
                    f"{filed.path}: imported without a verdict: no test judged this {about_record}, or its verdicts "
                    "were taken out of the record"
                )


def _forget(connection: Connection, run: Mapping[str, Any]) -> None:
    """Delete a run; if it was read twice, the second reading counts from now on."""
    connection.rows("DELETE FROM llmbench_runs WHERE id = :id", id=run["id"])
    if run["counts"] and run["measurement"] is not None:
        twin = "SELECT min(id) FROM llmbench_runs WHERE measurement = :measurement AND simulated IS NULL"
        update = f"UPDATE llmbench_runs SET counts = :counts WHERE id = ({twin})"
        connection.rows(update, counts=True, measurement=run["measurement"])


def _note_session(
    connection: Connection, session: str, records: Sequence[FiledRecord], *, ended: bool, about: About
) -> bool:
    """Write the row of a session; return whether it had ended at its last import."""
    had_ended = bool(connection.value("SELECT ended FROM llmbench_sessions WHERE id = :id", id=session))
    first, makers = records[0].record, (filed.record.made_by for filed in records)
    versions = (maker.llmbench_version for maker in makers if maker is not None)
    connection.rows(
        "INSERT INTO llmbench_sessions AS old (id, began, system, cluster, version, git_commit, ended, imported) "
        "VALUES (:id, :began, :system, :cluster, :version, :git_commit, :ended, :imported) ON CONFLICT (id) DO UPDATE "
        "SET ended = old.ended OR excluded.ended, version = coalesce(excluded.version, old.version), "
        "git_commit = coalesce(excluded.git_commit, old.git_commit), "
        "began = CASE WHEN excluded.began < old.began THEN excluded.began ELSE old.began END",
        id=session, began=min(record.time for record in records), system=first.system, cluster=first.cluster,
        version=about.version or next(versions, None), git_commit=about.git_commit, ended=ended, imported=time.time(),
    )  # fmt: skip
    for tag in about.tags:
        add_tag(connection, session, tag)
    return had_ended


def add_tag(connection: Connection, session: str, tag: str) -> None:
    """Give a session a name, once."""
    insert = "INSERT INTO llmbench_tags (session, tag) VALUES (:session, :tag) ON CONFLICT DO NOTHING"
    connection.rows(insert, session=session, tag=tag)


def _add(connection: Connection, filed: FiledRecord) -> None:
    row, record, series = filed.run_row, filed.record, None
    if isinstance(record, RunRecord):
        series = _id_of(connection, "llmbench_series", asdict(series_of(record)))
    key = {name: row.pop(name) for name in ("session", "about", "name")}
    run = _id_of(connection, "llmbench_runs", key, {**row, "series": series, "counts": _counts(connection, row)})
    if isinstance(record, RunRecord) and record.problem is None:
        common = {"run": run, "series": series, "time": filed.time}
        numbers = (metric for metric in metrics_of(record) if math.isfinite(metric.value))
        connection.insert("llmbench_metrics", [{**asdict(metric), **common} for metric in numbers])
    verdicts = [
        {**judgement.model_dump(mode="json", include=_OF_VERDICT), "run": run, "number": number}
        for number, judgement in enumerate(record.judgements)
    ]
    connection.insert("llmbench_verdicts", verdicts)


def _counts(connection: Connection, row: Mapping[str, Any]) -> bool:
    """True if a run is a measurement of its own. A run counts before its replay."""
    if row["simulated"] is not None:
        return False
    if row["measurement"] is None:
        return True
    same = "SELECT id, replayed FROM llmbench_runs WHERE measurement = :measurement AND counts"
    others = connection.rows(same, measurement=row["measurement"])
    if others and others[0]["replayed"] and not row["replayed"]:
        connection.rows("UPDATE llmbench_runs SET counts = :no WHERE id = :id", no=False, id=others[0]["id"])
        return True
    return not others


def _id_of(connection: Connection, table: str, key: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> int:
    """The id of the row with this key; a missing row is inserted, with `more`."""
    select = f"SELECT id FROM {table} WHERE {' AND '.join(f'{name} = :{name}' for name in key)}"
    if connection.value(select, **key) is None:
        connection.insert(table, [{**key, **(more or {})}])
    return int(connection.value(select, **key))
