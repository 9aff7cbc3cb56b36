"""Records go into the history once, whole, and never another under the same name."""

import json
import shutil
import sqlite3
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.history.database import History, open_history
from pytest_llmbench.history.importing import About, import_sessions
from pytest_llmbench.history.queries import list_sessions, read_series, show_session
from pytest_llmbench.session.journal.journal import Journal
from pytest_llmbench.session.journal.journal import JournalEvent as Event
from tests.support.recorded import measured_anew

REAL = Path(__file__).parents[2] / "data" / "h200"


@pytest.fixture
def history(tmp_path: Path) -> History:
    return open_history(tmp_path / "history.db")


def session(folder: Path, name: str = "20261101-120000-aaaaaa", *runs: str, **changes: Any) -> Path:
    """A session's folder with copies of a real record, of steps of their own."""
    real = json.loads((REAL / "runs" / "opt125m" / "record.json").read_text())
    for number, run in enumerate(runs or ("opt125m",)):
        record = {**deepcopy(real), "session": name, "key": run, **changes}
        record["steps"] = [{**step, "seconds": step["seconds"] * (1 + number / 1000)} for step in record["steps"]]
        record["steps"][0]["seconds"] += sum(map(ord, name)) / 1e6
        path = folder / name / "runs" / run / "record.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(measured_anew(record)))
    return folder / name


def test_a_second_import_adds_nothing(history: History, tmp_path: Path) -> None:
    folder = session(tmp_path / "a", "20261101-120000-aaaaaa", "one", "two")
    told = import_sessions(history, [folder], About(tags=("base",)))
    assert (told.new, told.known, told.refused) == (2, 0, [])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    told = import_sessions(history, [tmp_path / "a", tmp_path / "b", folder], About(tags=("base",)))
    assert (told.new, told.known, told.refused) == (0, 4, [])
    (only,) = list_sessions(history)
    assert (only["runs"], only["tags"]) == (2, ["base"])
    assert len(read_series(history, "opt125m", "throughput")) == 2
    assert [record["name"] for record in show_session(history, "20261101")["records"]] == ["one", "two"]


def test_a_changed_record_is_refused_by_name(history: History, tmp_path: Path) -> None:
    folder = session(tmp_path)
    import_sessions(history, [folder])
    path = folder / "runs" / "opt125m" / "record.json"
    record = json.loads(path.read_text())
    record["steps"][40]["seconds"] *= 1.1
    path.write_text(json.dumps(measured_anew(record)))
    told = import_sessions(history, [folder])
    assert (told.new, told.known, len(told.refused)) == (0, 0, 1)
    assert str(path) in told.refused[0]
    assert "one of the two was changed" in told.refused[0]
    (point,) = read_series(history, "opt125m", "throughput")
    assert point.value > record["metrics"]["throughput"]["value"]


@pytest.mark.parametrize("damage", ["cut", "not json", "no record", "newer"])
def test_a_damaged_record_is_named_and_the_rest_imported(history: History, tmp_path: Path, damage: str) -> None:
    folder = session(tmp_path, "20261101-120000-aaaaaa", "good", "ill")
    path = folder / "runs" / "ill" / "record.json"
    whole = path.read_text()
    newer = json.dumps({**json.loads(whole), "schema_version": 99})
    path.write_text({"cut": whole[:-50], "not json": "\x00", "no record": "{}", "newer": newer}[damage])
    told = import_sessions(history, [tmp_path])
    assert told.new == 1
    (why,) = told.refused
    assert str(path) in why


def test_a_simulated_run_is_flagged_and_in_no_series(history: History, tmp_path: Path) -> None:
    import_sessions(history, [session(tmp_path, simulated="hang@3")])
    (record,) = show_session(history, "20261101")["records"]
    assert (record["simulated"], record["counts"]) == ("hang@3", False)
    with pytest.raises(ConfigError, match="unknown metric"):
        read_series(history, "opt125m", "throughput")


def test_a_number_that_is_none_is_in_no_series(history: History, tmp_path: Path) -> None:
    """A statistic of a package that is not here may be NaN; the rest of the record is imported."""
    folder = session(tmp_path)
    path = folder / "runs" / "opt125m" / "record.json"
    record = json.loads(path.read_text())
    record["metrics"]["odd"] = {**record["metrics"]["throughput"], "value": float("nan")}
    path.write_text(json.dumps(record))
    assert import_sessions(history, [folder]).new == 1
    assert "odd" not in show_session(history, "20261101")["records"][0]["metrics"]


def test_a_run_that_is_replayed_counts_once(history: History, tmp_path: Path) -> None:
    first = session(tmp_path, "20261101-120000-aaaaaa")
    record = json.loads((first / "runs" / "opt125m" / "record.json").read_text())
    replayed = tmp_path / "20261102-120000-bbbbbb" / "runs" / "opt125m" / "record.json"
    replayed.parent.mkdir(parents=True)
    replayed.write_text(
        json.dumps({**record, "session": "20261102-120000-bbbbbb", "cluster": "replay", "replayed": "logs"})
    )
    import_sessions(history, [replayed.parents[2]])
    assert [point.session for point in read_series(history, "opt125m", "throughput")] == ["20261102-120000-bbbbbb"]
    import_sessions(history, [first])
    assert [point.session for point in read_series(history, "opt125m", "throughput")] == ["20261101-120000-aaaaaa"]


def test_a_session_that_is_resumed_counts_once(history: History, tmp_path: Path) -> None:
    """Records of one that did not end are renewed; those of one that did are not."""
    cut = {"kind": "session_ended", "message": "killed", "log": None}
    folder = session(tmp_path, problem=cut, metrics={}, judgements=[])
    journal = Journal(folder / "journal")
    journal.note(Event(event="began", at=1.0))
    import_sessions(history, [folder])
    shutil.rmtree(folder / "runs")
    session(tmp_path)
    told = import_sessions(history, [folder])
    assert (told.new, told.renewed, told.refused) == (0, 1, [])
    assert len(read_series(history, "opt125m", "throughput")) == 1
    for event in ("submitting", "submitted", "finished"):
        journal.note(Event(event=event, name="opt125m", at=1795451913.0))  # its record ends then
    journal.note(Event(event="ended", at=1795451914.0))
    journal.close()
    assert import_sessions(history, [folder]).known == 1
    shutil.rmtree(folder / "runs")
    session(tmp_path, problem=cut, metrics={}, judgements=[])
    assert "the session had ended" in import_sessions(history, [folder]).refused[0]


@pytest.mark.parametrize("version", [0, 2, 9999])
def test_a_history_of_another_version_is_refused_and_kept(history: History, tmp_path: Path, version: int) -> None:
    """The error names the file, what differs and what to do; the file keeps every byte of its content."""
    import_sessions(history, [REAL])
    with history.writing() as connection:
        connection.rows("UPDATE llmbench_schema SET version = :version", version=version)
    path = tmp_path / "history.db"
    with sqlite3.connect(path) as plain:
        before = [*plain.iterdump()]
    message = rf"history.*history\.db has schema version {version}, .* has 1\..*history import"
    with pytest.raises(ConfigError, match=message):
        open_history(path)
    assert [*plain.iterdump()] == before
    plain.close()


def test_what_is_no_history_is_said(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("this is no database, whatever its length may be" * 100)
    cases = {
        str(path): "not a database", str(tmp_path): "is a folder",
        "postgresql://u:secret@127.0.0.1:1/x": "cannot be opened",
        "postgresql://127.0.0.1:1/x?password=secret": "cannot be opened",
        **dict.fromkeys(
            (
                "", " ", "sqlite://", "sqlite:///:memory:", "mysql://x:secret@y/z", "postgresql:/u:secret@h/x",
                "postgres:u:secret@h", "postgres+psycopg://u:secret@h/x", "postgresql://u:p@secret@h/x",
                "postgresql://u:a/secret@h/x", "postgresql://u:?secret@h/x",
            ), "must be a file, sqlite:///FILE, or postgresql://USER@HOST/DATABASE; in the login of a URL, @",
        ),
    }  # fmt: skip
    for given, words in cases.items():
        with pytest.raises(ConfigError, match=words) as error:
            open_history(given)
        assert "secret" not in str(error.value)


def test_sqlite_waits_and_keeps_references(history: History) -> None:
    """Others may read while one writes, and nothing is left of a session that is deleted."""
    with history.reading() as connection:
        assert connection.value("PRAGMA journal_mode") == "wal"
        assert connection.value("PRAGMA foreign_keys") == 1
    import_sessions(history, [REAL])
    with history.writing() as connection:
        connection.rows("DELETE FROM llmbench_sessions")
    with sqlite3.connect(history.url) as plain:
        for table in ("runs", "metrics", "verdicts"):
            assert plain.execute(f"SELECT count(*) FROM llmbench_{table}").fetchone() == (0,)
    plain.close()
