"""Which cases of pytest's XML are final while tests still run, and how often they are written."""

import threading
from xml.etree import ElementTree as ET

import pytest

from pytest_llmbench.plugin.output.junit import SHORTEST_S, Refreshing, SoFar, add_cases, pause_s, report_of
from pytest_llmbench.plugin.pytest_private import LogXML

TEST = "test_a.py::test_it"


class Pytest:
    """Reports to the writer and to us, as pytest does."""

    def __init__(self) -> None:
        self.writer = LogXML("unused.xml", None)
        self.so_far = SoFar(self.writer)

    def report(self, when: str, outcome: str) -> None:
        report = report_of(TEST, {"verdict": "PASS", "reason": "late"}, "call", "passed")
        report.when, report.outcome = when, outcome  # type: ignore[assignment]  # plugins have further outcomes
        report.longrepr = "late" if outcome == "failed" else None
        self.so_far.reopen(TEST)
        self.writer.pytest_runtest_logreport(report)

    @property
    def cases(self) -> list[ET.Element]:
        return self.so_far.cases()[0]


def test_a_verdict_is_final_with_the_last_word_on_its_test() -> None:
    told = Pytest()
    for when in ("setup", "call", "teardown"):
        assert not told.so_far.end(TEST)  # as of a worker that died
        told.report(when, "passed")
        assert not told.cases
    assert told.so_far.end(TEST)
    assert [case.get("name") for case in told.cases] == ["test_it"]
    assert told.so_far.cases()[1] == {TEST}


def test_an_attempt_that_is_repeated_is_no_verdict() -> None:
    """A plugin repeats a passed test whose teardown failed; the report has both attempts as soon as it is over."""
    told = Pytest()
    for when, outcome in (("setup", "passed"), ("call", "passed"), ("teardown", "rerun")):
        told.report(when, outcome)
    told.report("setup", "passed")
    assert not told.cases
    told.report("call", "failed")
    told.report("teardown", "passed")
    assert told.so_far.end(TEST)
    assert [[child.tag for child in case if child.tag != "properties"] for case in told.cases] == [[], ["failure"]]


def test_a_test_that_is_called_again_loses_its_verdict() -> None:
    told = Pytest()
    for _ in range(2):
        told.report("setup", "passed")
        assert not told.cases
        told.report("call", "passed")
        told.report("teardown", "passed")
        assert told.so_far.end(TEST)


def test_cases_are_copies_and_are_counted() -> None:
    """Completing one case changes no other; a call and its teardown that both fail are two cases."""
    told = Pytest()
    for when, outcome in (("setup", "passed"), ("call", "failed"), ("teardown", "failed")):
        told.report(when, outcome)
    assert told.so_far.end(TEST)
    for case in told.cases:
        case.set("name", "another")
        ET.SubElement(case, "system-out")
    cases = told.cases
    assert [(case.get("name"), case.find("system-out")) for case in cases] == [("test_it", None)] * 2
    other = LogXML("unused.xml", None)
    add_cases(other, cases)
    assert other.stats == {"error": 1, "passed": 0, "failure": 1, "skipped": 0}
    assert [reporter.to_xml() for reporter in other.node_reporters_ordered] == cases


def test_writing_takes_a_hundredth_of_the_time() -> None:
    assert pause_s(0.0) == pause_s(SHORTEST_S / 100) == SHORTEST_S
    assert pause_s(2.0) == 200.0


def test_a_change_is_written_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_llmbench.plugin.output.junit.SHORTEST_S", 0.0)
    monkeypatch.setattr("pytest_llmbench.plugin.output.junit.SHARE", 1e9)
    told: list[str] = []
    written = threading.Semaphore(0)
    attempts: list[int] = []

    def write() -> None:
        attempts.append(len(attempts))
        written.release()
        if len(attempts) <= 2:
            raise OSError("no space")

    refreshing = Refreshing(write, told.append)
    refreshing.start()
    for _ in range(3):
        assert written.acquire(timeout=60)
        refreshing.note_change()
    refreshing.stop()
    refreshing.stop()
    assert told == ["no space"]
    before = len(attempts)
    refreshing.note_change()
    assert len(attempts) == before >= 3
