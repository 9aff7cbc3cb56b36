"""Failures of ours that a conftest.py or another plugin reports as passed: they stay failures."""

from collections.abc import Callable

import pytest

from pytest_llmbench.core.record.records import Verdict

_FAILING = {str(Verdict.FAIL), str(Verdict.ERROR), str(Verdict.INCONCLUSIVE)}


def fails(verdict: object, *, warned: bool) -> bool:
    """Whether a test with this verdict fails; `warned`: one that is INCONCLUSIVE does not."""
    return str(verdict) in _FAILING and not (warned and verdict == Verdict.INCONCLUSIVE)


class Overruled:
    """Compares the reports of tests with their verdicts.

    A verdict is in the properties of a report as soon as it is decided, before hooks of others see the report. A test
    that is expected to fail, by pytest's marker or by `xfail` of its reference, has another verdict.

    Attributes:
        tests: node ids of tests whose failure came as something else.
    """

    def __init__(self) -> None:
        self.tests: dict[str, None] = {}
        self._failed: set[str] = set()

    def correct(self, report: pytest.TestReport, warned: Callable[[], bool]) -> None:
        """Make a report a failure again whose verdict is one, unless its test has failed already.

        Args:
            report: of any test and phase.
            warned: whether INCONCLUSIVE does not fail a test; asked only about a test of ours.
        """
        if report.failed:
            self._failed.add(report.nodeid)
            return
        properties = dict(report.user_properties)
        if report.nodeid in self._failed or str(properties.get("verdict")) not in _FAILING:
            return
        if not fails(properties["verdict"], warned=warned()):
            return
        was = report.outcome
        self.tests[report.nodeid] = None
        self._failed.add(report.nodeid)
        report.outcome = "failed"
        report.longrepr = (
            f"{properties['verdict']}: {properties.get('reason', 'no reason is known')}\n"
            f"A conftest.py or another plugin reported this test as {was}. Its verdict stays."
        )
        if hasattr(report, "wasxfail"):
            del report.wasxfail
