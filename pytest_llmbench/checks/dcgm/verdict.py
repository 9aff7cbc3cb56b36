"""Findings of a DCGM diagnostic, and whether it can be judged: whole, as its status says, nothing left out."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pytest_llmbench.checks.dcgm.kinds import DcgmKind, finding
from pytest_llmbench.checks.dcgm.nodes.diagnostics import DiagnosticOutput
from pytest_llmbench.checks.dcgm.report import error_in, read_dcgm
from pytest_llmbench.checks.dcgm.report_items import DcgmResult, Diagnosis, DiagnosticOutcome, Recorded, Status, key_of
from pytest_llmbench.core.record.health import Finding, Severity

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
    others: dict[Severity, DcgmKind] = {
        Severity.CONFIGURE: "dcgm_configuration", Severity.MONITOR: "dcgm_recorded"
    }  # fmt: skip
    kind = others.get(severity, "dcgm_failed")
    return finding(host, entity, kind, severity, f"{test.category} test {test.name}: {text}", _ACTIONS[severity])


_FAILED, _ISOLATE = 226, 205
# A status of dcgmi is a negative number of DCGM's, of which the shell sees the last byte.
_MEANINGS = {
    127: "there is no such program there",
    190: "the diagnostic was stopped",
    198: "this DCGM has no test to run",
    202: "nv-hostengine is paused",
    203: "the diagnostic was killed",
    204: "the diagnostic's own program, nvvs, was not found",
    _ISOLATE: "a GPU is to be isolated",
    215: "the diagnostic could not be started",
    216: "the diagnostic gave no JSON that dcgmi can read",
    217: "another diagnostic is already running",
    _FAILED: "a test failed",
    235: "no connection to nv-hostengine",
    238: "a GPU is lost",
}
# What every version runs from a level on, wherever it can.
_RUNS_FROM = {"memory": 2, "pcie": 2, "diagnostic": 3}
_LONGEST = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedTests:
    """The parts of a whole diagnostic.

    Attributes:
        gpus: GPUs of a node at least.
        allowed_skips: tests that need not have run.
    """

    level: int
    gpus: int
    allowed_skips: Collection[str] = ()

    @property
    def allowed(self) -> set[str]:
        """The same, as every version would name them."""
        return {key_of(name) for name in self.allowed_skips}


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """The verdict on a node's diagnostic.

    Attributes:
        unjudged: the reason why it proves nothing; empty if it does.
        skipped: tests that did not run and need not have.
    """

    findings: tuple[Finding, ...]
    unjudged: tuple[str, ...]
    skipped: tuple[str, ...]
    diagnosis: Diagnosis


def judge(host: str, told: DiagnosticOutput, expected: ExpectedTests) -> Judged:
    """Judge what a node's dcgmi left."""
    read = read_dcgm(told.stdout)
    diagnosis = read[0] if len(read) == 1 else Diagnosis(unreadable=f"it has results of {len(read)} nodes")
    code, findings = told.code, findings_of(host, diagnosis)
    if code == _ISOLATE and not any(finding.severity is Severity.ISOLATE for finding in findings):
        findings.append(isolated(host))
    why = [
        *([f"dcgmi did not end within {told.seconds:.0f} s, and was ended"] if code is None else []),
        *_without_results(diagnosis, told.stderr),
        *_contradicted(code, diagnosis, findings),
        *_error_beside(diagnosis, told.stdout),
        *(_incomplete(diagnosis, expected) if diagnosis.tests else []),
    ]
    skipped = tuple(name for name in _not_run(diagnosis, expected) if key_of(name) in expected.allowed)
    return Judged(findings=tuple(findings), unjudged=tuple(why), skipped=skipped, diagnosis=diagnosis)


def _without_results(diagnosis: Diagnosis, errors: str) -> list[str]:
    if diagnosis.runtime_error is not None:
        return [f"the diagnostic did not run: {diagnosis.runtime_error}"]
    if diagnosis.unreadable is None:
        return []
    said = " ".join(errors.split())[:_LONGEST]
    return [f"the output of dcgmi cannot be read: {diagnosis.unreadable}{f'; its output: {said}' if said else ''}"]


def _contradicted(code: int | None, diagnosis: Diagnosis, findings: list[Finding]) -> list[str]:
    """Contradictions between exit status and results."""
    failed = any(finding.severity.fails for finding in findings)
    if code not in {None, 0} and not failed:
        meaning = _MEANINGS.get(code or 0, f"signal {-(code or 0)}" if (code or 0) < 0 else "unknown")
        although = "" if diagnosis.unreadable or diagnosis.runtime_error else ", and no test failed"
        return [f"dcgmi ended with status {code} ({meaning}){although}"]
    if code == 0 and any(result.status is Status.FAIL for result in diagnosis.results):
        return ["dcgmi ended with status 0 although a test failed"]
    if diagnosis.overall not in {None, Status.PASS} and not failed:
        return ["the overall result is not a pass, and no test failed"]
    return []


def _error_beside(diagnosis: Diagnosis, printed: str) -> list[str]:
    """Errors that dcgmi reports although it has results."""
    error = error_in(printed) if diagnosis.tests else None
    return [f"dcgmi printed results, and also {error!r}"] if error else []


def _incomplete(diagnosis: Diagnosis, expected: ExpectedTests) -> list[str]:
    """Untested entities."""
    not_run = [name for name in _not_run(diagnosis, expected) if key_of(name) not in expected.allowed]
    few = diagnosis.gpus is not None and diagnosis.gpus < expected.gpus
    return [
        *([f"did not run at all or not on every GPU: {', '.join(not_run)}{_HOW_TO_ALLOW}"] if not_run else []),
        *(["nothing but skips"] if all(result.status is Status.SKIP for result in diagnosis.results) else []),
        *([f"found {diagnosis.gpus} GPUs, the node should have {expected.gpus}"] if few else []),
        *diagnosis.uncovered,
        *untested(diagnosis),
    ]


def _not_run(diagnosis: Diagnosis, expected: ExpectedTests) -> list[str]:
    """Tests that say that they were skipped, and those that this level has and that say nothing."""
    told = {test.key for test in diagnosis.tests}
    absent = [name for name, level in _RUNS_FROM.items() if level <= expected.level and name not in told]
    return [test.name for test in diagnosis.tests if test.skipped] + (absent if told else [])


_HOW_TO_ALLOW = " (a test that need not run is named in validation: dcgm: options: allowed_skips)"
