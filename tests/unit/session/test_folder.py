"""A session's folder: what is read of it, and which of several sessions is the newest."""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pytest_llmbench.cluster.runs import Plan
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import RunRecord, write_model
from pytest_llmbench.core.wire import layout
from pytest_llmbench.session.folder import (
    began_at,
    find_session,
    has_ended,
    newest,
    read_events,
    read_folder,
    read_plan,
    read_records,
    sessions_in,
)
from pytest_llmbench.session.journal.journal import Journal, JournalEvent
from tests.support.recorded import check_records, run_record, write_session

BEGAN = 1_795_000_000.0


def begin(folder: Path, at: float, *, ended: bool = True, replayed: bool = False) -> Path:
    """A session of one run that began at that time; a replay has no journal."""
    write_session(folder, [run_record(folder, "good", 0)], [])
    plan = read_plan(folder)
    write_model(folder / layout.PLAN, plan.model_copy(update={"began": at}))
    if not replayed:
        with closing(Journal(folder / layout.JOURNAL)) as journal:
            journal.note(JournalEvent(event="began", at=at, session=folder.name, cluster="slurm"))
            if ended:
                journal.note(JournalEvent(event="ended", at=at + 5000))
    (folder / layout.LIVE).write_text("{}")
    return folder


def touch_plan(reports: Path) -> None:
    """As after `cp -r`, or `rsync` without `-t`: files are written in the order of names, or in any."""
    os.utime(reports / "older" / layout.PLAN)


def overlap(reports: Path) -> None:
    """The older session still writes after the newer one has ended."""
    os.utime(reports / "newer" / layout.LIVE, (BEGAN, BEGAN))
    (reports / "older" / layout.LIVE).write_text("{}")
    with closing(Journal(reports / "older" / layout.JOURNAL)) as journal:
        journal.note(JournalEvent(event="judged", at=BEGAN + 90_000, name="t"))


def repeat_runs(reports: Path) -> None:
    """`--llmbench-inconclusive rerun` adds runs to the plan of the older session."""
    plan = read_plan(reports / "older")
    added = plan.model_copy(update={"runs": (*plan.runs, plan.runs[0].repeated(2))})
    write_model(reports / "older" / layout.PLAN, added)


def lose_target(reports: Path) -> None:
    (reports / layout.LATEST).unlink()
    (reports / layout.LATEST).symlink_to("deleted")
    touch_plan(reports)


def lose_link(reports: Path) -> None:
    (reports / layout.LATEST).unlink()
    touch_plan(reports)


def follow_link(reports: Path) -> None:
    """`cp -rL` makes a second copy of the session that the link leads to."""
    (reports / layout.LATEST).unlink()
    shutil.copytree(reports / "newer", reports / layout.LATEST)
    touch_plan(reports)


def copy_session(reports: Path) -> None:
    """A copy beside the session began when the session did."""
    shutil.copytree(reports / "newer", reports / "z-copy")


def damage_journal(reports: Path) -> None:
    (reports / "newer" / layout.JOURNAL).write_bytes(b"00000000 {}\n")
    (reports / layout.LATEST).unlink()
    touch_plan(reports)


def add_strangers(reports: Path) -> None:
    (reports / "notes").mkdir()
    (reports / "index.json").write_text("{}")
    (reports / layout.LATEST).unlink()


OF_FILES = [touch_plan, repeat_runs, lose_target, lose_link, follow_link, copy_session, add_strangers]
OF_JOURNALS = [overlap, damage_journal]


@pytest.mark.parametrize(
    ("happen", "replayed"),
    [(happen, replayed) for happen in OF_FILES for replayed in (False, True)] + [(it, False) for it in OF_JOURNALS],
)
def test_the_newest_session_began_last(tmp_path: Path, happen: Callable[[Path], None], *, replayed: bool) -> None:
    """Times of files, names and pictures do not change which session is the newest."""
    begin(tmp_path / "older", BEGAN, replayed=replayed)
    begin(tmp_path / "newer", BEGAN + 1000, replayed=replayed)
    (tmp_path / layout.LATEST).symlink_to("newer")
    happen(tmp_path)
    assert newest(tmp_path) == find_session(None, tmp_path) == find_session("latest", tmp_path) == tmp_path / "newer"
    if happen is not copy_session:
        assert [folder.name for folder in sessions_in(tmp_path)] == ["newer", "older"]


def test_a_resumed_session_is_the_newest(tmp_path: Path) -> None:
    begin(tmp_path / "older", BEGAN, ended=False)
    begin(tmp_path / "newer", BEGAN + 1000)
    with closing(Journal(tmp_path / "older" / layout.JOURNAL)) as journal:
        journal.note(JournalEvent(event="began", at=BEGAN + 2000))
    assert newest(tmp_path).name == "older"
    assert began_at(tmp_path / "older") == BEGAN + 2000


def test_the_id_counts_before_the_times_of_files(tmp_path: Path) -> None:
    for name in ("20261126-100000-aaaaaa", "20261126-110000-bbbbbb"):
        (tmp_path / name).mkdir()
        (tmp_path / name / layout.PLAN).write_text('{"runs"')
    os.utime(tmp_path / "20261126-110000-bbbbbb" / layout.PLAN, (1, 1))
    assert newest(tmp_path).name == "20261126-110000-bbbbbb"


def test_a_session_has_an_id_or_a_path(tmp_path: Path) -> None:
    folder = begin(tmp_path / "reports" / "nightly", BEGAN)
    assert find_session("nightly", tmp_path / "reports") == folder
    assert find_session(folder, tmp_path / "elsewhere") == folder
    with pytest.raises(ConfigError, match="there is no session 'weekly'"):
        find_session("weekly", tmp_path / "reports")
    for empty in (tmp_path, tmp_path / "elsewhere"):
        with pytest.raises(ConfigError, match="has no session"):
            newest(empty)
    with pytest.raises(ConfigError, match="elsewhere: there is no such folder"):
        sessions_in(tmp_path / "elsewhere")


def test_records_are_read_by_name(tmp_path: Path) -> None:
    runs, checks = [run_record(tmp_path, "good", 0), run_record(tmp_path, "slow", 1)], check_records(tmp_path)
    write_session(tmp_path, runs, checks)
    assert read_records(tmp_path, RunRecord) == {run.key: run for run in runs}
    assert sorted(read_records(tmp_path, HealthRecord)) == sorted(check.check for check in checks)
    assert [run.key for run in read_plan(tmp_path).runs] == ["good", "slow"]


def test_a_reader_of_records_takes_no_wrong_one(tmp_path: Path) -> None:
    """A damaged record, and that of another run, are errors; a report lists both."""
    begin(tmp_path, BEGAN)
    run = tmp_path / "runs" / "good"
    shutil.copytree(run, tmp_path / "runs" / "other")
    with pytest.raises(ConfigError, match="is the record of good"):
        read_records(tmp_path, RunRecord)
    (run / layout.RECORD).write_bytes((run / layout.RECORD).read_bytes()[:-20])
    with pytest.raises(ConfigError, match="good"):
        read_records(tmp_path, RunRecord)
    folder = read_folder(tmp_path)
    assert folder.broken["run", "other"] == "it is of run 'good'"
    assert set(folder.broken) == {("run", "good"), ("run", "other")}
    assert not folder.runs


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"runs": [{"key": "../../etc"}]})])
def test_a_damaged_plan_is_an_error(tmp_path: Path, text: str) -> None:
    """Without the plan, a run without a record would go unnoticed; a report is made and says so."""
    begin(tmp_path, BEGAN)
    (tmp_path / layout.PLAN).write_text(text)
    with pytest.raises(ConfigError, match=r"session\.json: cannot be read"):
        read_plan(tmp_path)
    assert "good" in read_folder(tmp_path).runs
    (tmp_path / layout.PLAN).unlink()
    with pytest.raises(ConfigError, match="is this the folder of a session"):
        read_plan(tmp_path)


def test_the_journal_shows_the_end(tmp_path: Path) -> None:
    """A replay, which has none, cannot go on; of a damaged one nothing is concluded, and a report shows the rest."""
    assert has_ended(begin(tmp_path / "done", BEGAN))
    assert has_ended(begin(tmp_path / "replay", BEGAN, replayed=True))
    left = begin(tmp_path / "left", BEGAN, ended=False)
    assert not has_ended(left)
    assert [event.event for event in read_events(left)] == ["began"]
    assert read_events(tmp_path / "replay") == ()
    with (left / layout.JOURNAL).open("ab") as file:
        file.write(b"00000000 {}\ntorn")
    with pytest.raises(ConfigError, match="line 2 of 2 is damaged"):
        has_ended(left)
    folder = read_folder(left)
    assert [event.event for event in folder.events] == ["began"]
    assert "1 of 2 lines of the journal are damaged" in folder.damage


def test_a_folder_with_a_plan_is_a_session(tmp_path: Path) -> None:
    """A folder with nothing but a plan of ours is a session; an empty one is none."""
    write_model(tmp_path / layout.PLAN, Plan(runs=()))
    assert read_plan(tmp_path) == Plan(runs=())
    assert read_folder(tmp_path).tests == ()
    (tmp_path / layout.PLAN).unlink()
    with pytest.raises(ConfigError, match="is not the folder of a session"):
        read_folder(tmp_path)
