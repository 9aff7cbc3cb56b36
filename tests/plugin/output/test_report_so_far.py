"""The XML of a session that is killed: whole and true, with each verdict that was given, and no pass that was not."""

import os
import signal
from pathlib import Path

import pytest
from junitparser import Error, JUnitXml

from pytest_llmbench.session.journal.journal import read_journal
from tests.conftest import Case, UserFolder, read_junit

TESTS = """
import pathlib
import time
import pytest

def wait():
    while pathlib.Path("hold").exists():
        time.sleep(0.05)

@pytest.fixture
def late():
    yield
    wait()

def test_finite(run):
    assert run.record.steps

def test_missed(run):
    assert not run.record.steps

def test_passed_and_not_over(run, late):
    assert run.record.steps

def test_waiting(run):
    wait()
"""
WITHOUT_A_VERDICT = {
    f"test_{test}[{run}]" for test in ("passed_and_not_over", "waiting") for run in ("first", "second")
}
DECLARED = {f"test_{test}[{run}]" for test in ("finite", "missed") for run in ("first", "second")} | WITHOUT_A_VERDICT
OURS = ("--cluster", "local", "--junitxml=mine.xml", "-k", "first or second")


def given(cases: dict[str, Case]) -> dict[str, str]:
    """The verdicts in a report, without those that are still to come."""
    told = {name: case.properties for name, case in cases.items()}
    return {
        name: properties["verdict"]
        for name, properties in told.items()
        if not properties.get("reason", "").startswith("no verdict yet")
    }


def judged(session: Path) -> dict[str, str]:
    events = [event for event in read_journal(session / "journal")[0] if event.event == "judged"]
    return {str(event.name).partition("::")[2]: str(event.verdict) for event in events}


def errors(report: Path) -> list[str]:
    """The cases that are errors, as another reader finds them."""
    (suite,) = JUnitXml.fromfile(os.fspath(report))
    return [case.name for case in suite if any(isinstance(end, Error) for end in case.result)]


def is_settled(report: Path, session: Path) -> bool:
    """Whether a report has verdicts of both kinds, and its copy beside the records has them as well."""
    both = set(given(read_junit(report)).values()) == {"PASS", "FAIL"}
    return both and len(errors(session / "junit.xml")) == len(errors(report))


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_a_killed_session_leaves_the_verdicts_that_it_gave(user: UserFolder, workers: str) -> None:
    """Every declared test is there once; a test that passed counts as a pass only after its teardown."""
    for name in ("first", "second"):
        user.recipe(name)
    user.test(TESTS)
    hold = user.path / "hold"
    hold.touch()
    process = user.start(*OURS, workers)
    report = user.path / "mine.xml"
    user.wait_for(lambda session: report.exists() and is_settled(report, session))
    process.kill()
    process.communicate()
    assert user.session is not None
    session, cases = user.session, read_junit(report)
    assert set(cases) == DECLARED | {"end"}
    assert given(cases).items() <= judged(session).items()
    assert not given(cases).keys() & WITHOUT_A_VERDICT
    outcomes = {"PASS": "passed", "FAIL": "failure", "ERROR": "error"}
    assert all(case.outcome == outcomes[case.properties["verdict"]] for case in cases.values())
    assert all(case.properties["record"] for name, case in cases.items() if name in given(cases))
    assert (session / "junit.xml").read_bytes() == report.read_bytes()
    for each in (report, session / "junit.xml"):
        (suite,) = JUnitXml.fromfile(os.fspath(each))
        assert (suite.tests, suite.errors) == (len(DECLARED) + 1, len(errors(each)))
        assert len(errors(each)) == suite.tests - len(given(cases))
    assert not (session / "verdict.json").exists()
    hold.unlink()
    result = user.run(*OURS, workers, "--resume", code=1)
    assert set(result.cases) == DECLARED
    assert read_junit(report, result.session) == result.cases
    assert given(result.cases) == {name: "FAIL" if "missed" in name else "PASS" for name in DECLARED}
    assert not [path.name for path in user.path.glob(".*.xml.*")]


def test_a_session_that_only_has_to_end_is_not_green(user: UserFolder) -> None:
    """Pytest is killed between its last test and its end; a resumed session replaces the files."""
    user.recipe("first")
    user.test(TESTS)
    (user.path / "conftest.py").write_text(
        "import os\nfrom pytest_llmbench.plugin.output import junit\n"
        "junit.SHORTEST_S = junit.SHARE = 0.01\n"
        "def pytest_llmbench_session_report(session, config):\n    os.kill(os.getpid(), 9)\n"
    )
    for args in ((), ("--resume",)):
        result = user.run("--cluster", "local", "-k", "first and finite", *args, code=-signal.SIGKILL)
        assert {*result.cases} == {"test_finite[first]", "end"}
        assert result.cases["end"].outcome == "error"
        assert not {path.name for path in result.session.iterdir()} & {"verdict.json", "summary.md"}
        for name in ("verdict.json", "summary.md"):
            (result.session / name).write_text('{"verdict": "pass"}')  # as of a process that could not end


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_the_report_of_an_earlier_session_is_taken_away(user: UserFolder, workers: str) -> None:
    """Killed before it knows its tests, a session has no report; what is no XML stays."""
    (user.path / "conftest.py").write_text(
        "import os\nimport pytest\n\n@pytest.hookimpl(tryfirst=True)\ndef pytest_collection(session):\n"
        "    if not hasattr(session.config, 'workerinput'):\n        os.kill(os.getpid(), 9)\n"
    )
    report, other = user.path / "mine.xml", user.path / "other.py"
    for path, text in ((report, '<?xml version="1.0"?><testsuites/>'), (other, "assert True\n")):
        path.write_text(text)
        assert user.run("--cluster", "local", workers, f"--junitxml={path.name}").returncode == -signal.SIGKILL
    assert not report.exists()
    assert other.exists()
