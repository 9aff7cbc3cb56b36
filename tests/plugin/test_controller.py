"""pytest-xdist's controller, where the start of its runs is slow or breaks."""

import re

import pytest

from tests.conftest import UserFolder, read_junit

BROKEN = """
import time
from pathlib import Path
from pytest_llmbench.cluster import executors

load = executors.load

def broken():
    {how}
    load()

executors.load = broken
"""
BREAKS = "raise RuntimeError('no more threads')"
# The second worker is ready only when the session ends: no worker gets a test.
LATE_WORKER = """
import pytest
from pytest_llmbench.cluster.heartbeat import read_stop

@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session):
    told = getattr(session.config, "workerinput", {"workerid": ""})
    while told["workerid"] == "gw1" and read_stop(Path(told["llmbench"]["folder"])) is None:
        time.sleep(0.1)
"""
# Tests that wait get the reason, however late it comes.
WAITING_TESTS = """
from pytest_llmbench.plugin.xdist import Controller

give_up = Controller._give_up

def give_up_late(self, why):
    time.sleep(1)
    give_up(self, why)

Controller._give_up = give_up_late

def pytest_runtest_setup():
    Path("waiting").touch()
"""
# How the start breaks, what else the plugin does, and how many of the tests may be given to workers.
ORDERS = {
    "before any test is given to a worker": (BREAKS, LATE_WORKER, {0}),
    "while tests wait": (f"while not Path('waiting').exists(): time.sleep(0.1)\n    {BREAKS}", WAITING_TESTS, {4}),
    "at once": (BREAKS, "", range(7)),
}
TWO_PLAIN = "def test_plain():\n    assert False\n\ndef test_other():\n    assert False\n"


@pytest.fixture
def started(user: UserFolder) -> UserFolder:
    """A user's folder with a run to start, and a place for a plugin that is loaded first."""
    user.recipe()
    user.test()
    user.env["PYTHONPATH"] = str(user.path)
    return user


def test_a_session_that_ends_while_its_runs_start(started: UserFolder) -> None:
    """`-x` after two tests of the user's own: the run gets its record all the same, and nothing breaks."""
    started.test(BROKEN.format(how="time.sleep(4)"), "slow_start.py")
    started.test(TWO_PLAIN, "test_first.py")
    result = started.run("-p", "slow_start", "--cluster", "local", "-n2", "-x", "-k", "plain or other or tiny")
    assert "stopping after" in result.text
    assert "Traceback" not in result.text
    assert "INTERNALERROR" not in result.text
    assert "ERROR test_user.py::test_reference[tiny-learns] - the session ended" in result.text
    problem = result.record()["problem"]
    assert (problem["kind"], problem["message"]) == ("session_ended", "the session ended before this run did")


@pytest.mark.parametrize("order", ORDERS)
def test_a_start_that_breaks_is_an_error_of_every_test(started: UserFolder, order: str) -> None:
    """The workers do not wait for a record that never comes; the XML files and the terminal name every test."""
    how, more, given = ORDERS[order]
    runs = ["tiny", "second", "third"]
    for name in runs[1:]:
        started.recipe(name)
    started.test("def test_finite(run):\n    assert run.record.steps\n", "test_more.py")
    started.test(BROKEN.format(how=how) + more, "no_start.py")
    result = started.run(
        "-p", "no_start", "--cluster", "local", "-n2", "-k", " or ".join(runs), "--junitxml=mine.xml"
    )  # fmt: skip
    why = "the runs could not be started: RuntimeError: no more threads"
    assert result.returncode == pytest.ExitCode.INTERRUPTED, result.text
    assert result.text.count("Traceback") == 1  # one for who mends it, not one per test
    assert "INTERNALERROR" not in result.text
    assert f"llmbench: {why}" in result.text
    assert not list((result.session / "runs").glob("*"))
    declared = {f"test_user.py::test_reference[{name}-learns]" for name in runs}
    declared |= {f"test_more.py::test_finite[{name}]" for name in runs}
    assert read_junit(started.path / "mine.xml") == result.cases
    assert result.session.joinpath("junit.xml").read_text().count("<testcase") == len(declared)
    assert set(result.cases) == {test.partition("::")[2] for test in declared}
    for case in result.cases.values():
        assert (case.outcome, case.properties["verdict"]) == ("error", "ERROR")
        assert why in case.properties["reason"]
    waited = [case for case in result.cases.values() if "the controller left no record" in case.properties["reason"]]
    assert len(waited) in given, result.text
    assert set(re.findall(r"^ERROR (\S+) - ", result.text, re.MULTILINE)) == declared
    assert f"= {len(declared)} errors in " in result.text
