"""Commands that take the newest session by default mean the same one, which `reports/latest` leads to."""

import json
import os
import shutil
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import Result

from pytest_llmbench.core.wire import layout
from pytest_llmbench.session.journal.earlier import session_to_resume
from pytest_llmbench.session.journal.journal import Journal, JournalEvent
from pytest_llmbench.session.live.snapshot import LiveSnapshot

Llmbench = Callable[..., Result]

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
