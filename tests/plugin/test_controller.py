"""pytest-xdist's controller, where the start of its runs is slow or breaks."""

from __future__ import annotations

import pytest

from tests.conftest import UserFolder

BROKEN = """
import time
from pytest_llmbench.cluster import executors

load = executors.load

def broken():
    {how}
    load()

executors.load = broken
"""
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
    assert "test_reference" not in result.text
    problem = result.record()["problem"]
    assert (problem["kind"], problem["message"]) == ("session_ended", "the session ended before this run did")


def test_a_start_that_breaks_is_told_by_every_test(started: UserFolder) -> None:
    """At once, and as an error, which is no pass: the workers do not wait for a record that never comes."""
    started.test(BROKEN.format(how="raise RuntimeError('no more threads')"), "no_start.py")
    result = started.run("-p", "no_start", "--cluster", "local", "-n2", "-k", "tiny")
    why = "the runs could not be started: RuntimeError: no more threads"
    assert result.returncode == pytest.ExitCode.INTERRUPTED, result.text
    assert result.text.count("Traceback") == 1  # one for who mends it, not one per test
    assert "INTERNALERROR" not in result.text
    assert f"llmbench: {why}" in result.text
    assert f"run tiny: the controller left no record: {why}" in result.text
    assert not list((result.session / "runs").glob("*"))
