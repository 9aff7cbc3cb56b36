"""Reads a session's folder: plan, records, JUnit report and journal, and the result of the session."""

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pytest_llmbench.cluster.runs import Plan
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import read_at_most
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import RunRecord, Verdict
from pytest_llmbench.core.wire import layout
from pytest_llmbench.plugin.output.junit_cases import rename_part
from pytest_llmbench.reporting.verdict import SessionVerdict
from pytest_llmbench.session.folder import KeptSystem, has_ended, read_plan, read_records

LARGEST = 512 << 20
_OF_OUTCOME = {"passed": Verdict.PASS, "failure": Verdict.FAIL, "error": Verdict.ERROR, "skipped": Verdict.SKIP}
# The ends of tests that have not failed, by their verdict and pytest's word.
_ENDS: Mapping[tuple[str, str], Literal["passed", "warned"]] = {
    (Verdict.PASS, "passed"): "passed", (Verdict.SKIP, "skipped"): "warned", (Verdict.XFAIL, "skipped"): "warned",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedCase:
    """One test case of a JUnit report: class and name as pytest makes them of a node id, outcome, and properties."""

    address: str
    outcome: str
    properties: Mapping[str, str]

    @property
    def verdict(self) -> str:
        """Its verdict; for a test that waits for no run and no check, that of its outcome."""
        return self.properties.get("verdict") or str(_OF_OUTCOME[self.outcome])

    @property
    def end(self) -> Literal["passed", "warned", "failed"]:
        """Its verdict as a bundle states it; one that contradicts pytest, as after a broken teardown, has failed."""
        return _ENDS.get((self.verdict, self.outcome), "failed")


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedSession:
    """The content of a session's folder."""

    id: str
    folder: Path
    plan: Plan
    system: KeptSystem | None
    runs: Mapping[str, RunRecord]
    checks: Mapping[str, HealthRecord]
    # Test cases of its report, and the properties of its test suite
    cases: tuple[RecordedCase, ...]
    properties: Mapping[str, str]
    ended: bool  # True if its journal ends with the end of the session
    word: str | None = None  # its verdict in one word; None where it has none

    @property
    def records(self) -> tuple[RunRecord | HealthRecord, ...]:
        """Records of runs and checks."""
        return (*self.runs.values(), *self.checks.values())

    @property
    def result(self) -> Literal["PASSED", "WARNED", "FAILED"]:
        """The result in one word.

        PASSED: every declared test was judged, and passed. WARNED: some were skipped, or missed a bound that they are
        expected to miss, or no test judged the speed of a run. FAILED: anything else, and a session that lacks a part.
        """
        if next(self.objections(), None) is not None:
            return "FAILED"
        open_questions = self.properties.get("speed_not_judged") or self.properties.get("nodes_not_tested")
        skipped = any(case.end == "warned" for case in self.cases)
        return "WARNED" if self.word not in {None, "pass"} or skipped or open_questions else "PASSED"

    def objections(self) -> Iterator[str]:
        """Yield the reasons why the session has not passed, not even with a warning."""
        if not self.ended:
            yield "the journal does not end with the end of the session: it was interrupted, or goes on"
        if self.word not in {None, "pass", "nothing_judged"}:
            yield f"{layout.VERDICT} says {self.word}"
        if not any(case.verdict == Verdict.PASS for case in self.cases):
            yield "no test passed"
        failed = (case for case in self.cases if case.end == "failed")
        yield from (f"{case.address}: {case.verdict}, and pytest says {case.outcome}" for case in failed)
        tests = {address_of(test.test): test.test for test in self.plan.tests}
        for address in sorted(tests.keys() - {case.address for case in self.cases}):
            yield f"{tests[address]} was declared, and the report does not have it"
        lacking = [f"run {key}" for key in sorted({run.key for run in self.plan.runs} - self.runs.keys())]
        lacking += [f"check {check}" for check in sorted({*self.plan.checks} - self.checks.keys())]
        yield from (f"{name} was declared, and has no record" for name in lacking)
        required = {name: value for name, value in self.properties.items() if name.startswith("clause[")}
        yield from (f"{name}: {value}" for name, value in required.items() if value != Verdict.PASS)
        simulated = [key for key, record in self.runs.items() if record.simulated is not None]
        yield from (f"run {key} had a simulated fault: it measures nothing" for key in simulated)


def read_session(folder: Path) -> RecordedSession:
    """Read a session's folder.

    Raises ConfigError if the folder is not a session's, or one of its files is unreadable.
    """
    plan, system, verdict = read_plan(folder), folder / layout.SYSTEM, folder / layout.VERDICT
    cases, properties = _read_report(folder / layout.JUNIT)
    runs, checks = read_records(folder, RunRecord), read_records(folder, HealthRecord)
    records = (*runs.values(), *checks.values())
    sessions = sorted({record.session for record in records})
    if len(sessions) > 1:
        raise ConfigError(f"{folder}: its records are of several sessions: {', '.join(sessions)}")
    try:
        if records and all(record.cluster == "replay" for record in records):
            ended = (folder / layout.STOP).exists()  # a session that replays logs has no journal
        else:
            ended = (folder / layout.JOURNAL).exists() and has_ended(folder)
    except ConfigError:
        ended = False
    return RecordedSession(
        id=sessions[0] if sessions else folder.resolve().name,
        folder=folder,
        plan=plan,
        system=KeptSystem.read(system) if system.exists() else None,
        runs=runs,
        checks=checks,
        cases=cases,
        properties=properties,
        ended=ended,
        word=SessionVerdict.read(verdict).verdict if verdict.exists() else None,
    )


def make_predicate(session: RecordedSession, digests: Mapping[str, str]) -> dict[str, Any]:
    """The predicate "test result": result, configuration and tests by their ends; `digests` are those of all files."""
    tests: dict[str, list[str]] = {"passedTests": [], "warnedTests": [], "failedTests": []}
    for case in session.cases:
        tests[f"{case.end}Tests"].append(case.address)
    configuration = [name for name in (layout.PLAN, layout.SYSTEM) if name in digests]
    return {
        "result": session.result,
        "configuration": [{"name": name, "digest": {"sha256": digests[name]}} for name in configuration],
        **{name: sorted(addresses) for name, addresses in tests.items()},
    }


def address_of(test: str) -> str:
    """The address that pytest's report has for a node id."""
    path, bracket, rest = test.partition("[")
    file, *names = path.split("::")
    classname = ".".join([file.replace("/", ".").removesuffix(".py"), *names[:-1]])
    return f"{classname}::{names[-1] if names else ''}{bracket}{rest}"


def _read_report(path: Path) -> tuple[tuple[RecordedCase, ...], dict[str, str]]:
    text = read_at_most(path, LARGEST, "; is this the folder of a session?")
    if b"<!DOCTYPE" in text or b"<!ENTITY" in text:  # pytest writes none, and entities could grow without end
        raise ConfigError(f"{path} declares entities: pytest has not written it")
    try:
        root = ET.fromstring(text)  # noqa: S314 - without entities
    except ET.ParseError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    suites = [root] if root.tag == "testsuite" else root.findall("testsuite")
    properties = {name: value for suite in suites for name, value in _properties(suite).items()}
    return tuple(_case(case) for suite in suites for case in suite.findall("testcase")), properties


def _case(element: ET.Element) -> RecordedCase:
    # A test that passed and whose teardown broke has one end as well: a failure counts before a skip.
    ends = {child.tag for child in element}
    outcome = next((end for end in ("error", "failure", "skipped") if end in ends), "passed")
    properties = _properties(element)
    name = _planned_name(str(element.get("name")), properties)
    return RecordedCase(address=f"{element.get('classname')}::{name}", outcome=outcome, properties=properties)


def _properties(element: ET.Element) -> dict[str, str]:
    return {str(found.get("name")): str(found.get("value")) for found in element.findall("properties/property")}


def _planned_name(name: str, properties: Mapping[str, str]) -> str:
    """The planned name of a test: a report names the node instead of the number of its slot."""
    check, slot, host = (properties.get(key, "") for key in ("check", "slot", "hosts"))
    return rename_part(name, f"{check}-{host}", f"{check}-slot{slot}") if check and slot and host else name
