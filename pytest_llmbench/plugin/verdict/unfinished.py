"""Gives declared tests without a report their verdict at the end of the session: ERROR."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_llmbench.cluster.runs import Declared
from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.core.text import harmless
from pytest_llmbench.plugin.interruption import Interruption
from pytest_llmbench.plugin.pytest_private import why_xdist_ended


@dataclass(frozen=True, kw_only=True, slots=True)
class Unfinished:
    """A declared test without a verdict, or without the report of its teardown."""

    test: Declared  # the test
    reason: str  # the reason for its ERROR
    decided: Mapping[str, Any] | None  # the properties of its reports, if they have its verdict
    has_case: bool  # whether pytest's writer of XML has its outcome

    @property
    def lacks_number(self) -> bool:
        """True if its verdict is a PASS against a threshold whose number would have come with the teardown."""
        known = self.decided or {}
        return known.get("verdict") == Verdict.PASS and "threshold" in known and known.get("value") is None

    def properties(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Its properties, given the facts of its run or check. A PASS whose number is missing is an ERROR."""
        if self.decided is not None and not self.lacks_number:
            return dict(self.decided)
        passed = "it had passed, but its number was not recorded: " if self.lacks_number else ""
        reason = harmless(f"{passed}{self.reason}")
        return {**facts, **(self.decided or {}), "verdict": str(Verdict.ERROR), "reason": reason}


class Reports:
    """The reports of each test, and the end of the session, which `interruption` may have caused."""

    def __init__(self, interruption: Interruption) -> None:
        self._interruption = interruption
        self._decided: dict[str, Mapping[str, Any]] = {}
        self._crashes: dict[str, str] = {}
        self._over: set[str] = set()
        self._end = ""
        self._was_signal = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a report of any test."""
        if report.when == "teardown":
            self._over.add(report.nodeid)
        elif report.when not in {"setup", "call"}:  # xdist's own, for a worker that died
            self._crashes[report.nodeid] = str(report.longrepr)
        properties = dict(report.user_properties)
        if "verdict" in properties:
            self._decided[report.nodeid] = properties

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note what ended the session: Ctrl-C, but also errors of collection and `pytest.exit`."""
        self._end = str(excinfo.value) or "Ctrl-C"
        self._was_signal = excinfo.type is KeyboardInterrupt

    def pytest_internalerror(self) -> None:
        """Note that pytest broke down; its own output shows how."""
        self._end = "an internal error of pytest or a plugin"

    @property
    def interrupted(self) -> str:
        """The signal, or the limit of time, that ended the session; else empty."""
        return self._interruption.by or (self._end if self._was_signal else "")

    def note_end(self, reason: str) -> None:
        """Note the reason why the session was refused."""
        self._end = reason

    def unfinished(self, tests: Sequence[Declared], session: pytest.Session) -> Iterator[Unfinished]:
        """Yield every declared test that lacks its verdict, or the report of its teardown."""
        if self._interruption.by is not None:
            ended = f"the session was ended by {self._interruption.by}"
        elif end := self._end or session.shouldfail or session.shouldstop or why_xdist_ended(session.config):
            ended = f"the session ended ({end})"
        else:
            ended = "the session ended for an unknown reason,"
        for test in tests:
            decided, crash = self._decided.get(test.test), self._crashes.get(test.test)
            if decided is None or test.test not in self._over:
                reason = crash or f"{ended} before this test was {'over' if decided else 'judged'}"
                yield Unfinished(
                    test=test, reason=reason, decided=None if crash else decided, has_case=bool(crash or decided)
                )
