"""Findings of a DCGM diagnostic, each as severe as DCGM reports, or as the test that failed."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_llmbench.checks.base import finding
from pytest_llmbench.checks.dcgm.report_items import DcgmResult, Diagnosis, DiagnosticOutcome, Recorded, Status
from pytest_llmbench.core.record.health import Finding, FindingKind, Severity

# DCGM's own numbers (dcgm_errors.h): what to do about an error, and what it is about. 4 is "triage", for which its
# advice is to reset the GPU, to start DCGM anew and to run the diagnostic again.
_BY_SEVERITY = {2: Severity.ISOLATE, 4: Severity.RESET, 5: Severity.CONFIGURE, 6: Severity.RESET}
_MONITOR = 1
_BROKEN = {2, 6}
_SOFTWARE_SET_UP = {3, 4}
_HARDWARE = range(9, 16)
# A passing memory test says in this way that it could not get at enough of the memory to test it.
_NOT_ALLOCATED = {56, 73}
_NOT_ALLOCATED_WORDS = "Couldn't allocate at least"

# Deployment tests that look at the GPU and not at how the node is set up.
_OF_THE_GPU = {"page_retirement_row_remap", "inforom"}

_ACTIONS = {
    Severity.ISOLATE: "drain the node, reset the GPU once and run the diagnostic again; replace it if it fails again",
    Severity.REBOOT: "drain the node, reboot it and run the diagnostic again",
    Severity.RESET: "drain the node, reset the GPU, restart nv-hostengine and run the diagnostic again",
    Severity.CONFIGURE: "set it as DCGM asks, and run the diagnostic again",
    Severity.MONITOR: "keep an eye on it",
}


def findings_of(host: str, diagnosis: Diagnosis) -> list[Finding]:
    """Everything that failed, warned, or was recorded as an error by a test that passed."""
    return [
        _finding(host, test, entity, severity, text)
        for test in diagnosis.tests
        for result in test.results
        for severity, text in _of(test, result)
        for entity in result.entities or ("",)
    ]


def isolated(host: str) -> Finding:
    """The finding about a node that dcgmi's exit status alone condemns."""
    severity = Severity.ISOLATE  #: finding dcgm_isolate: dcgmi's exit status condemns a GPU
    message = "dcgmi ended with status 205: it found an error for which the GPU is to be isolated"
    return finding(host, "", "dcgm_isolate", severity, message, _ACTIONS[severity])


def untested(diagnosis: Diagnosis) -> list[str]:
    """Tests that passed although they recorded that they did not test what they should."""
    return [
        f"{test.name} passed without testing: {recorded.text}"
        for test in diagnosis.tests
        for result in test.results
        for recorded in result.recorded
        if result.status is Status.PASS and _not_allocated(recorded)
    ]


def _of(test: DiagnosticOutcome, result: DcgmResult) -> Iterator[tuple[Severity, str]]:
    """Meaning of a result, by severity and in words."""
    failed = result.status >= Status.WARN
    for recorded in result.recorded:
        if failed:
            yield _of_a_failure(test, recorded), recorded.text
        elif not _not_allocated(recorded) and (result.status is Status.PASS or recorded.severity in _BROKEN):
            how = "passed" if result.status is Status.PASS else "skipped"
            yield _BY_SEVERITY.get(recorded.severity or 0, Severity.MONITOR), f"{how}, and recorded: {recorded.text}"
    if failed and not result.recorded:
        yield _of_test(test), "warns without saying why" if result.status is Status.WARN else "failed"


def _of_a_failure(test: DiagnosticOutcome, recorded: Recorded) -> Severity:
    """How severe a recorded error of a failed test is: never so little that the node passes."""
    if recorded.severity in _BY_SEVERITY:
        return _BY_SEVERITY[recorded.severity or 0]
    if recorded.severity == _MONITOR:
        return Severity.CONFIGURE if _of_test(test) is Severity.CONFIGURE else Severity.RESET
    if recorded.category in _HARDWARE:
        return Severity.ISOLATE
    return Severity.CONFIGURE if recorded.category in _SOFTWARE_SET_UP else _of_test(test)


def _of_test(test: DiagnosticOutcome) -> Severity:
    """How severe it is that a test failed, where DCGM does not say why."""
    if test.category.casefold() != "deployment":
        return Severity.ISOLATE
    return Severity.RESET if test.key in _OF_THE_GPU else Severity.CONFIGURE


def _not_allocated(recorded: Recorded) -> bool:
    return recorded.error_id in _NOT_ALLOCATED or (recorded.error_id is None and _NOT_ALLOCATED_WORDS in recorded.text)


def _finding(host: str, test: DiagnosticOutcome, entity: str, severity: Severity, text: str) -> Finding:
    #: finding dcgm_failed: a test of DCGM failed
    #: finding dcgm_configuration: a test of DCGM reports that the node is set up wrongly
    #: finding dcgm_recorded: a test of DCGM passed and recorded an error
    others: dict[Severity, FindingKind] = {
        Severity.CONFIGURE: "dcgm_configuration", Severity.MONITOR: "dcgm_recorded"
    }  # fmt: skip
    kind = others.get(severity, "dcgm_failed")
    return finding(host, entity, kind, severity, f"{test.category} test {test.name}: {text}", _ACTIONS[severity])
