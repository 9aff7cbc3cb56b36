"""Sessions of a folder: which one is the newest for every command, and what prune deletes and keeps."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import Result

from pytest_llmbench.core.wire import layout
from pytest_llmbench.session.journal.earlier import session_to_resume
from pytest_llmbench.session.journal.journal import Journal, JournalEvent, now
from pytest_llmbench.session.live.snapshot import LiveSnapshot

Llmbench = Callable[..., Result]


def session(name: str, days: float, *events: str, cluster: str = "local") -> Path:
    """A session's folder of that age, with these events in its journal."""
    folder = Path("reports") / name
    folder.mkdir(parents=True)
    (folder / layout.PLAN).write_text("{}")
    if events:
        with closing(Journal(folder / layout.JOURNAL)) as journal:
            for event in events:
                journal.note(now(event, cluster=cluster))  # type: ignore[arg-type]
    aged = time.time() - days * 86400
    for path in (*folder.iterdir(), folder):
        os.utime(path, (aged, aged))
    return folder


def fates(result: Result) -> dict[str, str]:
    return {row["session"]: row["fate"] for row in json.loads(result.stdout)}


def test_old_sessions_go_and_new_ones_stay(llmbench: Llmbench) -> None:
    for name, days in (("a", 40), ("b", 20), ("c", 1)):
        session(name, days, "began", "ended")
    (Path("reports") / "mine").mkdir()
    Path("reports/latest").symlink_to("a")
    assert fates(llmbench("prune", "--older-than", "10", "--json")) == {"a": "delete", "b": "delete", "c": "keep"}
    assert fates(llmbench("prune", "--keep", "2", "--json")) == {"a": "delete", "b": "keep", "c": "keep"}
    both = fates(llmbench("prune", "--keep", "1", "--older-than", "30", "--json"))
    assert both == {"a": "delete", "b": "keep", "c": "keep"}
    assert len(list(Path("reports").iterdir())) == 5
    result = llmbench("prune", "--older-than", "10", "--keep", "2", "--yes")
    assert result.exit_code == 0
    assert "1 of 3 sessions" in result.stdout
    assert sorted(path.name for path in Path("reports").iterdir()) == ["b", "c", "latest", "mine"]


def test_a_rule_must_be_given(llmbench: Llmbench) -> None:
    session("a", 40, "began", "ended")
    assert "--older-than" in str(llmbench("prune", "--yes").exception)
    assert Path("reports/a").exists()


def test_a_session_that_runs_stays(llmbench: Llmbench) -> None:
    """A running session has an open journal or a new sign of life, whatever the times of its other files are."""
    with closing(Journal(session("open", 40, "began") / layout.JOURNAL)):
        (session("alive", 40, "began") / layout.OWNER).write_text("7")
        os.utime("reports/alive", (1, 1))
        session("dead", 40, "began")
        rows = json.loads(llmbench("prune", "--keep", "0", "--yes", "--json").stdout)
    assert {row["session"]: row["why"] for row in rows} == {
        "open": "it runs", "alive": "it runs, or did a few minutes ago", "dead": "",
    }  # fmt: skip
    assert sorted(path.name for path in Path("reports").iterdir()) == ["alive", "open"]


def test_a_session_with_processes_here_stays(llmbench: Llmbench) -> None:
    folder = session("20260101-000000-abcdef", 40, "began", "ended").resolve()
    code = "print('here', flush=True); import time; time.sleep(60)"
    rank = [sys.executable, "-c", code, f"{folder}/x", "pytest_llmbench.workloads"]
    with subprocess.Popen(rank, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        result = llmbench("prune", "--keep", "0", "--yes", "--json")
        process.kill()
    assert [row["why"] for row in json.loads(result.stdout)] == ["it has processes on this machine"]
    assert folder.exists()


def test_a_session_whose_jobs_nobody_knows_stays(llmbench: Llmbench, monkeypatch: pytest.MonkeyPatch) -> None:
    session("jobs", 40, "began", cluster="slurm")
    (session("damaged", 40, "began") / layout.JOURNAL).write_bytes(b"00000000 {}\n")
    os.utime("reports/damaged", (1, 1))
    monkeypatch.setenv("PATH", "/nowhere")
    rows = json.loads(llmbench("prune", "--keep", "0", "--yes", "--json").stdout)
    assert {row["session"]: row["fate"] for row in rows} == {"jobs": "keep", "damaged": "keep"}
    assert "Slurm" in next(row["why"] for row in rows if row["session"] == "jobs")


RECORDED = next((Path(__file__).parents[2] / "data" / "session").glob("2*"))
OLDER, NEWER = "20261126-100000-aaaaaa", "20261126-110000-bbbbbb"


def live(folder: Path) -> None:
    facts = {"session": folder.name, "host": socket.gethostname(), "pid": os.getpid(), "began": 1.0, "count": 0}
    (folder / layout.LIVE).write_text(LiveSnapshot.model_validate({**facts, "at": 2.0}).model_dump_json())


@pytest.mark.parametrize("link", [NEWER, "deleted", None], ids=["link", "dangling", "no link"])
@pytest.mark.parametrize("journals", [True, False], ids=["journals", "no journals"])
def test_commands_mean_one_session(llmbench: Llmbench, link: str | None, *, journals: bool) -> None:
    """After `cp -r`, and with sessions that overlap, every file of the older session is the later one."""
    reports = Path("reports")
    for number, name in enumerate((OLDER, NEWER)):
        shutil.copytree(RECORDED, reports / name)
        if journals:
            with closing(Journal(reports / name / layout.JOURNAL)) as journal:
                journal.note(JournalEvent(event="began", at=1.0 + number, session=name, cluster="slurm"))
    if link is not None:
        (reports / layout.LATEST).symlink_to(link)
    live(reports / NEWER)
    os.utime(reports / NEWER / layout.LIVE, (1, 1))
    live(reports / OLDER)
    os.utime(reports / OLDER / layout.PLAN)
    (reports / OLDER / layout.OWNER).write_text("")
    assert json.loads(llmbench("report", "--json").stdout)["report"] == str(reports / NEWER / layout.PAGE)
    watched = llmbench("watch", "--once", "--json", "latest")
    assert json.loads(watched.stdout.splitlines()[-1])["snapshot"]["session"] == NEWER
    if journals:
        assert session_to_resume(reports, layout.NEWEST).folder.name == NEWER
