"""A test that another plugin calls again after it failed: it counts once, and no later call turns its verdict."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from tests.conftest import UserFolder

PLUGINS = {
    "pytest_rerunfailures": ("-p", "no:pytest-retry", "--reruns", "2"),
    "pytest_retry": ("-p", "no:rerunfailures", "--retries", "2"),
}
TESTS = """
from pytest_llmbench import Quantity

calls = []

def test_slow(run):
    assert run.throughput >= Quantity("900M words/s")

def test_lucky(run):
    calls.append(run)
    assert run.throughput >= Quantity("900M words/s" if len(calls) == 1 else "1 words/s")

def test_holds(run):
    assert run.throughput >= Quantity("1 words/s")
"""


@pytest.mark.parametrize("plugin", PLUGINS)
def test_it_counts_once(user: UserFolder, plugin: str) -> None:
    """On the terminal, in the XML and in the table of verdicts; the test that passes the second time has failed."""
    user.invite(plugin)
    user.recipe()
    user.test(TESTS)
    result = user.run("--cluster", "local", "-n0", *PLUGINS[plugin], timeout_s=180)
    assert result.returncode == 1, result.text
    assert "2 failed, 1 passed" in result.text
    suite = next(ET.parse(result.session / "junit.xml").iter("testsuite"))
    assert (suite.get("failures"), suite.get("errors")) == ("2", "0")
    rows = [line for line in result.text.splitlines() if line.startswith("tiny ")]
    assert [line.split()[-1] for line in rows] == ["FAIL", "FAIL", "PASS"]
    assert "another plugin reported 1 failed tests as something else: test_user.py::test_lucky[tiny]" in result.text
