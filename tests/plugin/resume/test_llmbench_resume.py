"""`llmbench plan` and `llmbench resume`, as one types them, on a session that lost its end."""

from __future__ import annotations

import json
import subprocess
import sys

from pytest_llmbench.session.journal.journal import read_journal
from tests.conftest import UserFolder


def told(user: UserFolder, *words: str) -> subprocess.CompletedProcess[str]:
    """What a command prints in the user's folder."""
    command = [sys.executable, "-m", "pytest_llmbench.cli", *words]
    return subprocess.run(
        command, cwd=user.path, env=user.environment, capture_output=True, text=True, check=False, timeout=300
    )


def test_a_session_is_planned_and_resumed_by_the_command(user: UserFolder) -> None:
    """The plan has the run and starts nothing; the session goes on with its own words, and trains nothing twice."""
    user.recipe()
    user.test()
    words = ("--cluster", "local", "-k", "tiny")
    planned = told(user, "plan", "--json", *words)
    assert planned.returncode == 0, planned.stderr
    assert [run["run"] for run in json.loads(planned.stdout)["runs"]] == ["tiny"]
    assert not (user.path / "reports").exists()
    # A session keeps its name.
    result = user.run(*words, "--llmbench-session-name", "nightly")
    assert result.returncode == 0, result.text
    session = user.path / "reports" / "nightly"
    record = (session / "runs" / "tiny" / "record.json").read_bytes()
    journal = session / "journal"
    # As after a kill between the end of the run and its verdict.
    kept = [line for line in journal.read_bytes().splitlines(keepends=True) if b'"judged"' not in line]
    journal.write_bytes(b"".join(line for line in kept if b'"ended"' not in line))
    done = told(user, "resume")
    assert done.returncode == 0, done.stdout + done.stderr
    events, _ = read_journal(journal)
    assert [event.event for event in events].count("submitting") == 1
    assert events[-1].event == "ended"
    assert json.loads(record)["steps"] == json.loads((session / "runs/tiny/record.json").read_bytes())["steps"]
    again = told(user, "resume")
    assert again.returncode == 2
    assert "error: " in again.stderr
