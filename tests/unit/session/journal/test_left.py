"""Sessions that were killed: which are told, and with what."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_llmbench.session.journal.earlier import describe_dead_session
from pytest_llmbench.session.journal.journal import EventKind, Journal, now


@pytest.fixture
def gone() -> Iterator[int]:
    """Id of a process that is over, and that no other has: nobody waits for it, and its parent lives."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
        yield process.pid


def session(run_dir: Path, name: str, pid: int, *kinds: EventKind, host: str = "", cluster: str = "local") -> Journal:
    """The journal of a session of one test, open."""
    journal = Journal(run_dir / name / "journal")
    host = host or socket.gethostname()
    journal.note(now("began", host=host, pid=pid, cluster=cluster, session=name, tests=("test_a",)))
    for kind in kinds:
        journal.note(now(kind, name="test_a"))
    return journal


def test_the_newest_dead_session_is_told(tmp_path: Path, gone: int) -> None:
    assert describe_dead_session(tmp_path) is None
    session(tmp_path, "first", gone).close()
    session(tmp_path, "second", gone, "judged").close()
    assert describe_dead_session(tmp_path) == (
        f"session second (and 1 before it) never ended, and its process {gone} on {socket.gethostname()} is gone: "
        "1 of 1 tests judged, no process left; --resume=second goes on with it, llmbench prune deletes old ones"
    )


def test_what_lives_or_ended_is_not_told(tmp_path: Path, gone: int) -> None:
    session(tmp_path, "ended", gone, "judged", "ended").close()
    session(tmp_path, "ours", os.getpid()).close()
    session(tmp_path, "another", os.getppid()).close()
    session(tmp_path, "interrupted", gone).close()
    (tmp_path / "interrupted" / "verdict.json").write_text("{}")
    session(tmp_path, "damaged", gone, "judged").close()
    damaged = tmp_path / "damaged" / "journal"
    damaged.write_bytes(damaged.read_bytes().replace(b"began", b"begun"))
    session(tmp_path, "elsewhere", gone, host="login2").close()
    (tmp_path / "elsewhere" / "owner").write_text("1\n")
    owned = session(tmp_path, "owned", gone)
    assert describe_dead_session(tmp_path) is None
    owned.close()
    assert "session owned never ended" in (describe_dead_session(tmp_path) or "")
    os.utime(tmp_path / "elsewhere" / "owner", (0, 0))
    assert "(and 1 before it)" in (describe_dead_session(tmp_path) or "")
