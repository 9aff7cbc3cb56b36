"""Check by DCGM, NVIDIA's own diagnostic."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from pytest_llmbench.checks.answers import read_per_host
from pytest_llmbench.checks.base import CheckDefaults, CheckSettings, Fleet, options_of
from pytest_llmbench.checks.dcgm.nodes.diagnostics import DiagnosticOutput, DiagnosticRun
from pytest_llmbench.checks.dcgm.report import (
    DcgmResult,
    Diagnosis,
    DiagnosticOutcome,
    Recorded,
    Status,
    error_in,
    key_of,
    read_dcgm,
)
from pytest_llmbench.checks.findings import FindingMaker, make_finding
from pytest_llmbench.core.record.health import Finding, Report, Severity
from pytest_llmbench.core.schema import Strict

# By level, seconds. NVIDIA names seconds, 2 minutes, 15 minutes and hours; level 3 was seen to take 30 minutes.
_DEADLINES = {1: 120.0, 2: 600.0, 3: 3600.0, 4: 10_800.0}
# The time of a node to end a diagnostic that hangs, and to answer.
_SPARE_S = 30.0
_LONGEST = 100_000

DcgmKind = Literal["dcgm_configuration", "dcgm_failed", "dcgm_isolate", "dcgm_recorded"]
finding: FindingMaker[DcgmKind] = make_finding

# DCGM's own numbers (dcgm_errors.h): the action after an error, and the category of its cause. 4 is "triage": reset the
# GPU, start DCGM anew, run the diagnostic again.
_BY_SEVERITY = {2: Severity.ISOLATE, 4: Severity.RESET, 5: Severity.CONFIGURE, 6: Severity.RESET}
_MONITOR = 1
_BROKEN = {2, 6}
_SOFTWARE_SET_UP = {3, 4}
_HARDWARE = range(9, 16)
# Errors of a memory test that passes with too little memory allocated.
_NOT_ALLOCATED = {56, 73}
_NOT_ALLOCATED_WORDS = "Couldn't allocate at least"
# Deployment tests of the GPU; the others are of the node's configuration.
_GPU_DEPLOYMENT_TESTS = {"page_retirement_row_remap", "inforom"}
_ACTIONS = {
    Severity.ISOLATE: "drain the node, reset the GPU once and run the diagnostic again; replace it if it fails again",
    Severity.REBOOT: "drain the node, reboot it and run the diagnostic again",
    Severity.RESET: "drain the node, reset the GPU, restart nv-hostengine and run the diagnostic again",
    Severity.CONFIGURE: "set it as DCGM asks, and run the diagnostic again",
    Severity.MONITOR: "keep an eye on it",
}
_ISOLATE = 205
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
    226: "a test failed",
    235: "no connection to nv-hostengine",
    238: "a GPU is lost",
}
# Tests that every version runs from a level on, wherever it can.
_RUNS_FROM = {"memory": 2, "pcie": 2, "diagnostic": 3}
_HOW_TO_ALLOW = " (list tests that may be skipped in validation: dcgm: options: allowed_skips)"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedTests:
    """The parts of a whole diagnostic."""

    level: int
    gpus: int  # GPUs of a node at least
    allowed_skips: Collection[str] = ()  # tests that may be skipped

    def allows(self, name: str) -> bool:
        """True if a test may be skipped, under any version's name."""
        return key_of(name) in {key_of(skip) for skip in self.allowed_skips}


@dataclass(frozen=True, kw_only=True, slots=True)
class DcgmVerdict:
    """The verdict on a node's diagnostic."""

    findings: tuple[Finding, ...]
    unjudged: tuple[str, ...]  # the reasons to distrust it; empty for a sound one
    skipped: tuple[str, ...]  # tests that were skipped and may be
    diagnosis: Diagnosis


class DcgmOptions(Strict):
    """How the diagnostic is run."""

    level: Literal[1, 2, 3, 4] | None = None
    """Level of the diagnostic, as for `dcgmi diag -r`; absent, 3, and 1 at scale `smoke`."""
    parameters: tuple[Annotated[str, Field(pattern=r"^\w+(\.\w+)+=[^;]+$")], ...] = ()
    """Parameters of the tests, as for `dcgmi diag -p`."""
    allowed_skips: tuple[str, ...] = ()
    """Tests that may be skipped, by DCGM's names, such as `eud`."""
    hostengine: Annotated[str, Field(pattern=r"^[^-\s]\S*$")] | None = None
    """Address of nv-hostengine; absent, the node itself."""

    def words(self, level: int, root: str | None) -> list[str]:
        """The command, without the form of its output."""
        parameters = ["-p", ";".join(self.parameters)] if self.parameters else []
        host = ["--host", self.hostengine] if self.hostengine else []
        return [f"{root}/bin/dcgmi" if root else "dcgmi", "diag", "-r", str(level), *parameters, *host]


class Dcgm(CheckDefaults):
    """`dcgmi diag` on every node at once, whatever its version; bare, or in the container of environment `dcgm`."""

    name = family = "dcgm"
    summary = "NVIDIA's own diagnostic of every GPU (dcgmi diag)"
    options: type[Strict] = DcgmOptions
    deadline_s = _DEADLINES[3]

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        options, site = options_of(self, settings, DcgmOptions), fleet.site
        if not site.gpus_per_node:
            return Report(skip="this session has no GPUs for DCGM to test")
        level = options.level or (1 if site.scale == "smoke" else 3)
        deadline_s = settings.deadline_s or _DEADLINES[level]
        environment = site.environments.get("dcgm")
        config = {
            "words": options.words(level, environment.root if environment else None),
            "environment": environment.model_dump(mode="json") if environment else None,
            "limit_s": max(deadline_s - _SPARE_S, deadline_s / 2),
        }
        probe = self.probe(settings, "diagnostics:dcgm", config, gpus=True, deadline_s=deadline_s)
        runs, unjudged = read_per_host(fleet.run([probe])[0], DiagnosticRun)
        missing = {host: run.missing for host, run in runs.items() if run.missing is not None}
        if missing and len(missing) == len(fleet.hosts) and not settings.options and environment is None:
            reason = f"no node has DCGM, and system {site.system} does not ask for it: {missing.popitem()[1]}"
            return Report(skip=reason)
        expected = ExpectedTests(level=level, gpus=site.gpus_per_node, allowed_skips=options.allowed_skips)
        outputs = {host: run.output for host, run in runs.items() if run.output is not None}
        verdicts = {host: judge(host, output, expected) for host, output in outputs.items()}
        unproven = {host: "; ".join(verdict.unjudged) for host, verdict in verdicts.items() if verdict.unjudged}
        evidence: dict[str, Any] = {}
        for host, output in outputs.items():  # a longer output is cut here, and was read whole
            diagnosis = verdicts[host].diagnosis
            read = {"version": diagnosis.version, "driver": diagnosis.driver, "gpus": diagnosis.gpus}
            evidence[host] = {**output.model_dump(), "stdout": output.stdout[:_LONGEST], **read}
        return Report(
            findings=tuple(finding for verdict in verdicts.values() for finding in verdict.findings),
            unjudged={**unjudged, **missing, **unproven},
            notes=(f"level {level} (dcgmi diag -r {level})", *_describe_gaps(verdicts)),
            evidence={"level": level, "nodes": evidence},
        )


def _describe_gaps(verdicts: Mapping[str, DcgmVerdict]) -> list[str]:
    """Allowed skips, and nodes without the number of tested GPUs, as at level 1 of DCGM 2."""
    notes = []
    for name in sorted({name for verdict in verdicts.values() for name in verdict.skipped}):
        hosts = [host for host, verdict in verdicts.items() if name in verdict.skipped]
        notes.append(f"{name} was skipped, which allowed_skips allows, on {', '.join(hosts)}")
    diagnoses = {host: verdict.diagnosis for host, verdict in verdicts.items()}
    hosts = [host for host, diagnosis in diagnoses.items() if diagnosis.tests and diagnosis.gpus is None]
    return [*notes, f"DCGM does not report how many GPUs it tested on {', '.join(hosts)}"] if hosts else notes


def judge(host: str, output: DiagnosticOutput, expected: ExpectedTests) -> DcgmVerdict:
    """Judge the output of a node's dcgmi."""
    diagnosis = read_dcgm(output.stdout)
    findings = [
        _make_finding(host, test, entity, severity, text)
        for test in diagnosis.tests
        for result in test.results
        for severity, text in _explain_result(test, result)
        for entity in result.entities or ("",)
    ]
    if output.code == _ISOLATE and not any(finding.severity is Severity.ISOLATE for finding in findings):
        message = "dcgmi ended with status 205: it found an error for which the GPU is to be isolated"
        action = _ACTIONS[Severity.ISOLATE]  #: finding dcgm_isolate: dcgmi's exit status condemns a GPU
        findings.append(finding(host, "", "dcgm_isolate", Severity.ISOLATE, message, action))
    skipped = _list_skipped(diagnosis, expected)
    return DcgmVerdict(
        findings=tuple(findings),
        unjudged=tuple(_why_unjudged(output, diagnosis, findings, expected)),
        skipped=tuple(name for name in skipped if expected.allows(name)),
        diagnosis=diagnosis,
    )


def _explain_result(test: DiagnosticOutcome, result: DcgmResult) -> Iterator[tuple[Severity, str]]:
    """Failures, warnings, and errors that a passing test recorded, by severity and in words."""
    failed = result.status >= Status.WARN
    for recorded in result.recorded:
        if failed:
            yield _rate_failure(test, recorded), recorded.text
        elif not _not_allocated(recorded) and (result.status is Status.PASS or recorded.severity in _BROKEN):
            how = "passed" if result.status is Status.PASS else "skipped"
            yield _BY_SEVERITY.get(recorded.severity or 0, Severity.MONITOR), f"{how}, and recorded: {recorded.text}"
    if failed and not result.recorded:
        yield _rate_test(test), "warns without saying why" if result.status is Status.WARN else "failed"


def _rate_failure(test: DiagnosticOutcome, recorded: Recorded) -> Severity:
    """The severity of a recorded error of a failed test, which fails the node in every case."""
    if recorded.severity in _BY_SEVERITY:
        return _BY_SEVERITY[recorded.severity or 0]
    if recorded.severity == _MONITOR:
        return Severity.CONFIGURE if _rate_test(test) is Severity.CONFIGURE else Severity.RESET
    if recorded.category in _HARDWARE:
        return Severity.ISOLATE
    return Severity.CONFIGURE if recorded.category in _SOFTWARE_SET_UP else _rate_test(test)


def _rate_test(test: DiagnosticOutcome) -> Severity:
    """The severity of a test that failed without a reason from DCGM."""
    if test.category.casefold() != "deployment":
        return Severity.ISOLATE
    return Severity.RESET if test.key in _GPU_DEPLOYMENT_TESTS else Severity.CONFIGURE


def _not_allocated(recorded: Recorded) -> bool:
    return recorded.error_id in _NOT_ALLOCATED or (recorded.error_id is None and _NOT_ALLOCATED_WORDS in recorded.text)


def _make_finding(host: str, test: DiagnosticOutcome, entity: str, severity: Severity, text: str) -> Finding:
    #: finding dcgm_failed: a test of DCGM failed
    #: finding dcgm_configuration: a test of DCGM reports a wrong setting
    #: finding dcgm_recorded: a test of DCGM passed and recorded an error
    kinds: dict[Severity, DcgmKind] = {Severity.CONFIGURE: "dcgm_configuration", Severity.MONITOR: "dcgm_recorded"}
    kind = kinds.get(severity, "dcgm_failed")
    return finding(host, entity, kind, severity, f"{test.category} test {test.name}: {text}", _ACTIONS[severity])


def _why_unjudged(
    output: DiagnosticOutput, diagnosis: Diagnosis, findings: list[Finding], expected: ExpectedTests
) -> Iterator[str]:
    """Reasons to distrust a diagnostic, by its end, its text, contradictions and gaps."""
    if output.code is None:
        yield f"dcgmi did not end within {output.seconds:.0f} s, and was ended"
    if diagnosis.runtime_error is not None:
        yield f"the diagnostic did not run: {diagnosis.runtime_error}"
    elif diagnosis.unreadable is not None:
        errors = " ".join(output.stderr.split())[:500]
        yield f"the output of dcgmi cannot be read: {diagnosis.unreadable}{f'; its output: {errors}' if errors else ''}"
    yield from _find_contradiction(output.code, diagnosis, findings)
    if diagnosis.tests:
        if error := error_in(output.stdout):
            yield f"dcgmi printed results, and also {error!r}"
        yield from _find_gaps(diagnosis, expected)


def _find_contradiction(code: int | None, diagnosis: Diagnosis, findings: list[Finding]) -> Iterator[str]:
    failed = any(finding.severity.fails for finding in findings)
    if code not in {None, 0} and not failed:
        number = code or 0
        meaning = _MEANINGS.get(number, f"signal {-number}" if number < 0 else "unknown")
        although = "" if diagnosis.unreadable or diagnosis.runtime_error else ", and no test failed"
        yield f"dcgmi ended with status {code} ({meaning}){although}"
    elif code == 0 and any(result.status is Status.FAIL for result in diagnosis.results):
        yield "dcgmi ended with status 0 although a test failed"


def _find_gaps(diagnosis: Diagnosis, expected: ExpectedTests) -> Iterator[str]:
    not_run = [name for name in _list_skipped(diagnosis, expected) if not expected.allows(name)]
    if not_run:
        yield f"did not run at all or not on every GPU: {', '.join(not_run)}{_HOW_TO_ALLOW}"
    if all(result.status is Status.SKIP for result in diagnosis.results):
        yield "nothing but skips"
    if diagnosis.gpus is not None and diagnosis.gpus < expected.gpus:
        yield f"found {diagnosis.gpus} GPUs, the node should have {expected.gpus}"
    yield from diagnosis.uncovered
    for test in diagnosis.tests:
        for result in test.results:
            for recorded in result.recorded:
                if result.status is Status.PASS and _not_allocated(recorded):
                    yield f"{test.name} passed without testing: {recorded.text}"


def _list_skipped(diagnosis: Diagnosis, expected: ExpectedTests) -> list[str]:
    known = {test.key for test in diagnosis.tests}
    absent = [name for name, level in _RUNS_FROM.items() if level <= expected.level and name not in known]
    return [test.name for test in diagnosis.tests if test.skipped] + (absent if known else [])
