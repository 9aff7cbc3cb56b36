"""Expected failures: a threshold that is known to be missed does not fail for some time, and fails when it is met."""

import datetime as dt

import pytest

from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.plugin.verdict.run import Run


def settle(item: pytest.Item, report: pytest.TestReport, verdict: Verdict, reason: str) -> tuple[Verdict, str]:
    """The verdict and its reason where the test's reference expects a failure; the report follows.

    Nothing else changes: not an ERROR, not an INCONCLUSIVE, and not a failure of anything but that threshold.
    """
    callspec = getattr(item, "callspec", None)
    reference = callspec.params.get("reference") if callspec is not None else None
    if not isinstance(reference, Reference) or reference.xfail is None or item.config.getoption("runxfail"):
        return verdict, reason
    known, name = reference.xfail, reference.name
    over = dt.date.today() > known.until  # noqa: DTZ011 - the day of whoever reads it
    if verdict is Verdict.PASS and not over:
        told = f"reference {name} passed, and was expected to fail {known}. Take its xfail out"
        report.outcome, report.longrepr = "failed", told
        return Verdict.FAIL, told
    if verdict is not Verdict.FAIL or not _missed(item.funcargs.get("run"), reference):  # type: ignore[attr-defined]
        return verdict, reason
    if over:
        return verdict, f"{reason} (it was expected {known}; that day is over)"
    told = f"expected {known} ({reason})"
    report.outcome, report.wasxfail = "skipped", told  # as pytest's own marker does
    return Verdict.XFAIL, told


def _missed(run: object, reference: Reference) -> bool:
    """Whether the comparison that ended the test is that of the reference, and its number misses the bound."""
    last = run.comparisons.last if isinstance(run, Run) else None
    if last is None or (last.number.statistic, last.threshold) != (reference.statistic, reference.threshold):
        return False
    return last.holds is False
