"""`--resume`: a session whose process was killed goes on, and each of its runs is made once."""

import json
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_llmbench.session.journal.journal import JournalEvent, read_journal
from tests.conftest import ASLEEP, TEST_REFERENCES, Result, UserFolder, pid_of_rank, steps_logged

LOCAL = ("--cluster", "local", "-k", "a_first or b_second or c_third")
RUNS = ("a_first", "b_second", "c_third")


@pytest.fixture
def three(user: UserFolder) -> UserFolder:
    """Three runs, the second of which takes long enough to be killed in its middle."""
    for name in RUNS:
        user.recipe(name, **({"options": ASLEEP, "steps": 40} if name == "b_second" else {}))
    return user


def killed(user: UserFolder, when: Callable[[Path], object], *args: str) -> Path:
    """Kill pytest at some point; the session's folder."""
    process = user.start(*LOCAL, *args)
    user.wait_for(when)
    process.kill()
    process.communicate()
    assert user.session is not None
    return user.session


def in_second(session: Path) -> bool:
    return steps_logged(session, "b_second") > 1


def events(session: Path, kind: str) -> list[JournalEvent]:
    return [event for event in read_journal(session / "journal")[0] if event.event == kind]


def whole(result: Result) -> Result:
    assert result.returncode == 0, result.text
    assert sorted(result.cases) == [f"test_reference[{name}-learns]" for name in RUNS]
    assert {case.properties["verdict"] for case in result.cases.values()} == {"PASS"}
    assert events(result.session, "ended"), result.text
    return result


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["n0", "n2"])
def test_a_killed_session_goes_on(three: UserFolder, workers: tuple[str, ...]) -> None:
    session = killed(three, in_second, *workers)
    first = (session / "runs" / "a_first" / "record.json").read_bytes()
    rank = pid_of_rank(session, "b_second", 0)
    result = whole(three.run(*LOCAL, *workers, "--resume"))
    assert result.session == session
    assert not Path(f"/proc/{rank}").exists()
    assert Counter(event.name for event in events(session, "submitting")) == {"a_first": 1, "b_second": 2, "c_third": 1}
    assert json.loads(first)["timings"] == result.record("a_first")["timings"]
    assert "run a_first: finished before, and kept" in result.text
    assert f"llmbench: resuming {session.name}: 1 run kept, 2 to make\n" in result.text
    assert [path.name for path in (session / "superseded").iterdir()] == ["b_second.1"]
    before = (session / "junit.xml").read_bytes()
    again = three.run(*LOCAL, "--resume", code=pytest.ExitCode.USAGE_ERROR)
    assert (session / "junit.xml").read_bytes() == before
    assert "is left to resume" in again.text


AT_THE_END = {
    "report": "def pytest_llmbench_session_report(session, config):\n    os.kill(os.getpid(), 9)\n",
    "verdict": """import pytest

@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):
        os.kill(os.getpid(), 9)
""",
}


@pytest.mark.parametrize(("workers", "killed_at"), [((), "report"), (("-n2",), "verdict")], ids=["n0", "n2"])
def test_a_session_killed_while_it_reports_goes_on(user: UserFolder, workers: tuple[str, ...], killed_at: str) -> None:
    """Every test has its verdict, but the journal has no end: `--resume` only writes the files."""
    user.recipe()
    (user.path / "conftest.py").write_text(f"import os\n\n{AT_THE_END[killed_at]}")
    killed = user.run("--cluster", "local", *workers, code=-signal.SIGKILL)
    session = killed.session
    assert events(session, "judged")
    assert not events(session, "ended")
    assert not (session / "verdict.json").exists()
    # The hooks of others that come last find the final XML in its place.
    assert ("end" in killed.cases) == (killed_at == "report")
    (user.path / "conftest.py").unlink()
    result = user.run("--cluster", "local", *workers, "--resume", code=0)
    assert result.session == session
    assert [case.properties["verdict"] for case in result.cases.values()] == ["PASS"]
    assert (session / "verdict.json").exists()
    assert [event.event for event in read_journal(session / "journal")[0]].count("submitting") == 1
    assert read_journal(session / "journal")[0][-1].event == "ended"


def test_a_session_that_lives_is_refused(three: UserFolder) -> None:
    process = three.start(*LOCAL)
    session = three.wait_for(lambda session: session if in_second(session) else None)
    result = three.run(*LOCAL, "--resume", session.name, code=pytest.ExitCode.USAGE_ERROR)
    assert (session / "junit.xml").exists()
    assert f"session {session.name} still lives (process {process.pid} on {os.uname().nodename})" in result.text
    assert three.finish(process).returncode == 0


def test_a_session_that_was_interrupted_goes_on(three: UserFolder) -> None:
    """After Ctrl-C, runs that it ended are made; `--resume` may stand in front of an option."""
    process = three.start(*LOCAL)
    session = three.wait_for(lambda session: session if in_second(session) else None)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert whole(three.run("--resume", *LOCAL)).session == session
    assert Counter(event.name for event in events(session, "submitting")) == {"a_first": 1, "b_second": 2, "c_third": 1}


def test_what_cannot_be_resumed_is_told(three: UserFolder) -> None:
    """No session, another cluster, a replay; the plan of a session changes nothing in it."""
    assert "no session in" in three.run(*LOCAL, "--resume").text
    assert "--resume nonsense: neither a session" in three.run(*LOCAL, "--resume=nonsense").text
    session = killed(three, in_second)
    before = subprocess.check_output(["find", session / "journal", session / "runs" / "a_first", "-printf", "%p %T@\n"])
    assert "has its runs on cluster local, not debug" in three.run("--cluster", "debug", "--resume").text
    assert three.run(*LOCAL, "--resume", "--plan").returncode == 0
    after = subprocess.check_output(["find", session / "journal", session / "runs" / "a_first", "-printf", "%p %T@\n"])
    assert before == after
    told = three.run("--cluster", "debug", "-k", "c_third").text
    assert f"llmbench: session {session.name} never ended, and its process " in told
    left = r"(no process left|processes \d[\d, ]* still run)"  # ranks end themselves a while after their session
    assert re.search(f"is gone: 1 of 3 tests judged, {left}; --resume={session.name} goes on with it", told), told


def test_a_session_that_ends(user: UserFolder) -> None:
    """Intentions come before what is done, the end comes last, and no secret of the command line is in it."""
    user.recipe()
    user.test(f"{TEST_REFERENCES}\n\ndef test_finite(run):\n    assert run.record.steps\n")
    secret = ("--override-ini=api_token=hunter22", "--override-ini=addopts=", "-k", "tiny")
    (user.path / "conftest.py").write_text("def pytest_addoption(parser):\n    parser.addini('api_token', '')\n")
    result = user.run("--cluster", "local", *secret, code=0)
    events, size = read_journal(result.session / "journal")
    assert size == (result.session / "journal").stat().st_size
    assert [(event.event, event.name) for event in events] == [
        ("began", ""), ("submitting", "tiny"), ("submitted", "tiny"), ("finished", "tiny"),
        ("judged", "test_user.py::test_reference[tiny-learns]"), ("judged", "test_user.py::test_finite[tiny]"),
        ("ended", ""),
    ]  # fmt: skip
    began, submitting, submitted, *_ = events
    assert began.tests == (events[4].name, events[5].name)
    assert began.cluster == "local"
    assert began.command[-2:] == ("-k", "tiny")
    assert "hunter22" not in (result.session / "journal").read_text()
    assert submitting.plan
    assert submitted.job_id == result.record()["job_id"]
    assert {event.verdict for event in events[4:6]} == {"PASS"}
