"""Declared tests without a report: at the end of the session each gets its one verdict, ERROR."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from pytest_llmbench.cluster.runs import Declared
from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.plugin.interruption import Interruption


@dataclass(slots=True)
class _Reported:
    """Progress of the reports of a test.

    Attributes:
        properties: the properties with its verdict, as soon as that is decided.
        crash: end of the process that ran it, if that prevents another report.
        over: whether the report of its teardown is there.
    """

    properties: Mapping[str, Any] | None = None
    crash: str | None = None
    over: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Unfinished:
    """A declared test without a verdict.

    Attributes:
        test: the test.
        reason: the reason for its ERROR.
        properties: its properties, where its verdict was decided and only the report of its teardown is missing.
        crash: whether pytest's writer has its error already.
    """

    test: Declared
    reason: str
    properties: Mapping[str, Any] | None = None
    crash: bool = False

    @property
    def lacks_number(self) -> bool:
        """Whether that verdict is a PASS against a threshold whose number would have come with the teardown."""
        known = self.properties or {}
        return known.get("verdict") == Verdict.PASS and "threshold" in known and known.get("value") is None


class Reports:
    """The reports of each test, and the end of the session.

    Attributes:
        interruption: the signal that ended it, if one did.
    """

    def __init__(self, interruption: Interruption) -> None:
        self.interruption = interruption
        self._tests: dict[str, _Reported] = {}
        self._end = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a report of any test."""
        test = self._tests.setdefault(report.nodeid, _Reported())
        if report.when not in {"setup", "call", "teardown"}:  # xdist's own, for a worker that died
            test.crash = str(report.longrepr)
        properties = dict(report.user_properties)
        if "verdict" in properties:
            test.properties = properties
        test.over = test.over or report.when == "teardown"

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note what ended the session: Ctrl-C, but also errors of collection and `pytest.exit`."""
        self._end = str(excinfo.value) or "Ctrl-C"

    def pytest_internalerror(self) -> None:
        """Note that pytest broke down; its own output shows how."""
        self._end = "an internal error of pytest or a plugin"

    def note_end(self, reason: str) -> None:
        """Note the reason why the session was refused."""
        self._end = reason

    def unfinished(self, tests: Sequence[Declared], session: pytest.Session) -> Iterator[Unfinished]:
        """Yield every declared test that lacks its verdict, or the report of its teardown."""
        for test in tests:
            seen = self._tests.get(test.test, _Reported())
            if seen.over and seen.properties is not None:
                continue
            phase = "over" if seen.properties else "judged"
            reason = seen.crash or f"{self._find_reason(session)} before this test was {phase}"
            yield Unfinished(
                test=test,
                reason=reason,
                properties=None if seen.crash else seen.properties,
                crash=seen.crash is not None,
            )

    def _find_reason(self, session: pytest.Session) -> str:
        if self.interruption.by is not None:
            return f"the session was ended by {self.interruption.by}"
        end = self._end or session.shouldfail or session.shouldstop
        return f"the session ended ({end})" if end else "the session ended for an unknown reason,"


def verdict_of_unfinished(test: Unfinished, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of an unfinished test. A PASS whose number is missing from the record is an ERROR."""
    if test.lacks_number:
        reason = f"it had passed, but its number was not recorded: {test.reason}"
        return {**facts, **(test.properties or {}), "verdict": str(Verdict.ERROR), "reason": reason}
    if test.properties is not None:
        return dict(test.properties)
    return {**facts, "verdict": str(Verdict.ERROR), "reason": test.reason}


def report_of(
    nodeid: str,
    properties: Mapping[str, Any],
    when: Literal["setup", "call", "teardown"],
    outcome: Literal["passed", "failed", "skipped"],
) -> pytest.TestReport:
    """A report in pytest's form, for a test that pytest leaves without one."""
    file = nodeid.split("::", maxsplit=1)[0]
    reason = str(properties.get("reason", ""))
    longrepr = {"passed": None, "failed": reason, "skipped": (file, 1, f"{properties['verdict']}: {reason}")}[outcome]
    return pytest.TestReport(
        nodeid, (file, None, file), {}, outcome, longrepr, when, user_properties=properties.items()
    )


def report_of_verdict(nodeid: str, properties: Mapping[str, Any], *, warned: bool) -> pytest.TestReport:
    """A report of a verdict without a test; a SKIP is skipped, and with `warned` an INCONCLUSIVE verdict, too."""
    verdict = properties["verdict"]
    if verdict == Verdict.PASS:
        return report_of(nodeid, properties, "call", "passed")
    skipped = verdict == Verdict.SKIP or (warned and verdict == Verdict.INCONCLUSIVE)
    return report_of(nodeid, properties, "call", "skipped" if skipped else "failed")
