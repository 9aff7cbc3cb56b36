"""Which cases of pytest's XML are final while tests still run, and how often they are written."""

import threading
from itertools import chain

import pytest

from pytest_llmbench.plugin.output.junit import SHORTEST_S, Refreshing, SoFar, pause_s, report_of
from pytest_llmbench.plugin.pytest_private import LogXML

TEST = "test_a.py::test_it"


class Pytest:
    """Reports to us, as pytest does."""

    def __init__(self) -> None:
        self.so_far = SoFar()

    def report(self, when: str, outcome: str) -> None:
        report = report_of(TEST, {"verdict": "PASS", "reason": "late"}, "call", "passed")
        report.when, report.outcome = when, outcome  # type: ignore[assignment]  # plugins have further outcomes
        report.longrepr = "late" if outcome == "failed" else None
        self.so_far.take(report)

    @property
    def cases(self) -> list[list[str]]:
        """The ends of each case, as pytest writes them from the reports."""
        writer = LogXML("unused.xml", None)
        for report in chain(*self.so_far.final().values()):
            writer.pytest_runtest_logreport(report)
        cases = [reporter.to_xml() for reporter in writer.node_reporters_ordered]
        return [[child.tag for child in case if child.tag != "properties"] for case in cases]


def test_a_verdict_is_final_with_the_last_word_on_its_test() -> None:
    told = Pytest()
    for when in ("setup", "call", "teardown"):
        assert not told.so_far.end(TEST)  # as of a worker that died
        told.report(when, "passed")
        assert not told.cases
    assert told.so_far.end(TEST)
    assert told.cases == [[]]
    assert {*told.so_far.final()} == {TEST}


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
    assert told.cases == [[], ["failure"]]


def test_a_test_that_is_called_again_loses_its_verdict() -> None:
    told = Pytest()
    for _ in range(2):
        told.report("setup", "passed")
        assert not told.cases
        told.report("call", "passed")
        told.report("teardown", "passed")
        assert told.so_far.end(TEST)


def test_a_call_and_its_teardown_that_both_fail_are_two_cases() -> None:
    told = Pytest()
    for when, outcome in (("setup", "passed"), ("call", "failed"), ("teardown", "failed")):
        told.report(when, outcome)
    assert told.so_far.end(TEST)
    assert told.cases == [["failure"], ["error"]]


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
