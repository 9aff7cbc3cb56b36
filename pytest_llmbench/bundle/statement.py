"""What a bundle states about its session: an in-toto Statement v1 with the predicate of a test result, v0.1.

https://github.com/in-toto/attestation/blob/main/spec/predicates/test-result.md
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pytest_llmbench.bundle.archive import MANIFEST, SESSION
from pytest_llmbench.bundle.contents import BundledFile
from pytest_llmbench.bundle.recorded import OUTCOMES, RecordedCase, RecordedSession, address_of
from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.core.wire import layout

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"
TestsEnd = Literal["PASSED", "WARNED", "FAILED"]
_WARNED = {str(Verdict.SKIP), str(Verdict.XFAIL)}


def make_statement(
    session: RecordedSession, digests: Mapping[str, str], files: Mapping[str, BundledFile]
) -> dict[str, Any]:
    """Make the statement of a session.

    Args:
        session: the session.
        digests: SHA-256 of the two files that it is about, by name.
        files: entries of the manifest, by path.
    """
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": digests[name]}} for name in (MANIFEST, SESSION)],
        "predicateType": PREDICATE_TYPE,
        "predicate": make_predicate(session, files),
    }


def make_predicate(session: RecordedSession, files: Mapping[str, BundledFile]) -> dict[str, Any]:
    """Say how a session ended: its result, what configured it, and its tests by their ends."""
    passed: list[str] = []
    warned: list[str] = []
    failed: list[str] = []
    for case in session.cases:
        ended = passed if case.verdict == Verdict.PASS else warned if case.verdict in _WARNED else failed
        ended.append(case.address)
    configuration = [name for name in (layout.PLAN, layout.SYSTEM) if name in files]
    return {
        "result": result_of(session),
        "configuration": [{"name": name, "digest": {"sha256": files[name].sha256}} for name in configuration],
        "passedTests": sorted(passed),
        "warnedTests": sorted(warned),
        "failedTests": sorted(failed),
    }


def result_of(session: RecordedSession) -> TestsEnd:
    """The result of a session in one word.

    PASSED: every test that it declared was judged, and passed. WARNED: some were skipped, or missed a bound that they
    are expected to miss, or a run's speed was judged by none. FAILED: anything else, and a session of which something
    is missing.
    """
    if next(reasons_against(session), None) is not None:
        return "FAILED"
    verdicts = {case.verdict for case in session.cases}
    if verdicts & _WARNED or session.properties.get("speed_not_judged") or session.properties.get("nodes_not_tested"):
        return "WARNED"
    return "PASSED"


def reasons_against(session: RecordedSession) -> Iterator[str]:
    """Yield the reasons why a session has not passed, not even with a warning."""
    if not session.ended:
        yield "the journal does not end with the end of the session: it was interrupted, or goes on"
    if not any(case.verdict == Verdict.PASS for case in session.cases):
        yield "no test passed"
    yield from filter(None, map(_against_case, session.cases))
    yield from _missing(session)
    for name, value in session.properties.items():
        if name.startswith("clause[") and value != Verdict.PASS:
            yield f"{name}: {value}"
    for key, record in session.runs.items():
        if record.simulated is not None:
            yield f"run {key} had a simulated fault: it measures nothing"


def _against_case(case: RecordedCase) -> str:
    if case.verdict not in {str(Verdict.PASS), *_WARNED}:
        return f"{case.address}: {case.verdict}"
    if case.outcome not in OUTCOMES[case.verdict]:
        return f"{case.address}: {case.verdict}, and pytest says {case.outcome}"
    return ""


def _missing(session: RecordedSession) -> Iterator[str]:
    """Yield what was declared, and is not there."""
    reported = {case.address for case in session.cases}
    yield from (
        f"{test.test} was declared, and the report does not have it"
        for test in session.plan.tests
        if address_of(test.test) not in reported
    )
    runs = [run.key for run in session.plan.runs if run.key not in session.runs]
    checks = [check for check in session.plan.checks if check not in session.checks]
    yield from (f"run {key} was declared, and has no record" for key in runs)
    yield from (f"check {name} was declared, and has no record" for name in checks)
