"""The private names of pytest do what this package needs of them: a version of pytest that changes one fails here."""

from __future__ import annotations

import time
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from pytest_llmbench.plugin.pytest_private import Instant, LogXML, bin_xml_escape, runtestprotocol, xml_key


def report_of(when: str, outcome: str = "passed") -> pytest.TestReport:
    place = ("a.py", 1, "test_it")
    return pytest.TestReport("a.py::test_it", place, {}, outcome, None, when)  # type: ignore[arg-type]


def test_the_writer_of_xml(tmp_path: Path) -> None:
    """A case is kept in order, closed at the teardown, and counted; the file is written at the end."""
    writer = LogXML(str(tmp_path / "junit.xml"), "", "suite", "no", "total", "xunit1", True)
    writer.pytest_sessionstart()
    assert isinstance(writer.suite_start, Instant)
    closed = []
    finalize = writer.finalize

    def close(report: pytest.TestReport) -> None:
        closed.append(report.nodeid)
        finalize(report)

    writer.finalize = close  # type: ignore[method-assign]
    for when in ("setup", "call", "teardown"):
        writer.pytest_runtest_logreport(report_of(when))
    assert closed == ["a.py::test_it"]
    assert [case.to_xml().get("name") for case in writer.node_reporters_ordered] == ["test_it"]
    writer.add_stats("skipped")
    writer.add_global_property("name", "value")
    writer.pytest_sessionfinish()
    (suite,) = ET.parse(writer.logfile).getroot()
    assert (suite.get("tests"), suite.get("skipped")) == ("2", "1")
    assert (writer.family, isinstance(xml_key, pytest.StashKey)) == ("xunit1", True)


def test_a_character_that_xml_has_not() -> None:
    assert bin_xml_escape("a\x00b") == "a#x00b"


def test_a_duration() -> None:
    start = Instant()
    time.sleep(0.01)
    assert start.elapsed().seconds >= 0.01


def test_a_test_is_called_twice(pytester: pytest.Pytester) -> None:
    """Each time its fixtures are set up anew, and nothing is reported but by whoever asks for the reports."""
    source = "import pytest\nmade = []\n\n@pytest.fixture\ndef it():\n    made.append(1)\n\ndef test_it(it): pass\n"
    item = pytester.getitem(source, "test_it")
    for count in (1, 2):
        reports = runtestprotocol(item, log=False, nextitem=None)
        assert [(each.when, each.outcome) for each in reports] == [
            (when, "passed") for when in ("setup", "call", "teardown")
        ]
        assert len(item.module.made) == count  # type: ignore[attr-defined]
