"""A session as its folder tells it: plan, records, the JUnit report and the end of its journal."""

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench.cluster.runs import Plan
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import read_at_most
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import Record, RunRecord, Verdict
from pytest_llmbench.core.wire import layout
from pytest_llmbench.reporting.ci.verdict import SessionVerdict
from pytest_llmbench.session.folder import has_ended, read_plan, read_records
from pytest_llmbench.session.journal.kept_system import KeptSystem

_LARGEST = 512 << 20
# pytest's word for the outcome of a test with each verdict.
OUTCOMES: Mapping[str, frozenset[str]] = {
    Verdict.PASS: frozenset({"passed"}),
    Verdict.FAIL: frozenset({"failure"}),
    Verdict.ERROR: frozenset({"error"}),
    Verdict.SKIP: frozenset({"skipped"}),
    Verdict.XFAIL: frozenset({"skipped"}),
    Verdict.INCONCLUSIVE: frozenset({"failure", "skipped"}),
    Verdict.INCOMPLETE: frozenset({"error"}),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedCase:
    """One test case of a JUnit report.

    Attributes:
        address: its class and name, as pytest makes them of a node id.
        outcome: `passed`, `failure`, `error` or `skipped`.
        properties: its properties.
    """

    address: str
    outcome: str
    properties: Mapping[str, str]

    @property
    def verdict(self) -> str:
        """Its verdict; for a test that waits for no run and no check, that of its outcome."""
        of_others = {"passed": Verdict.PASS, "failure": Verdict.FAIL, "error": Verdict.ERROR, "skipped": Verdict.SKIP}
        return self.properties.get("verdict") or str(of_others[self.outcome])


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedSession:
    """The content of a session's folder.

    Attributes:
        id: of the session.
        folder: its folder.
        plan: everything that its tests waited for.
        system: facts of its system; None for a session of a version that kept none.
        runs: its run records by key.
        checks: its health records by name.
        cases: the test cases of its report.
        properties: the properties of its test suite.
        ended: whether every test was judged before its end, as its journal says.
        word: its verdict in one word; None for a session of a version that gave none.
    """

    id: str
    folder: Path
    plan: Plan
    system: KeptSystem | None
    runs: Mapping[str, RunRecord]
    checks: Mapping[str, HealthRecord]
    cases: tuple[RecordedCase, ...]
    properties: Mapping[str, str]
    ended: bool
    word: str | None = None


def read_session(folder: Path) -> RecordedSession:
    """Read a session's folder.

    Raises:
        ConfigError: the folder is not a session's, or one of its files cannot be read.
    """
    plan = read_plan(folder)
    system = folder / layout.SYSTEM
    cases, properties = _junit(folder / layout.JUNIT)
    runs, checks = read_records(folder, RunRecord), read_records(folder, HealthRecord)
    told = {record.session for record in (*runs.values(), *checks.values())}
    if len(told) > 1:
        raise ConfigError(f"{folder}: its records are of several sessions: {', '.join(sorted(told))}")
    return RecordedSession(
        id=next(iter(told), folder.resolve().name),
        folder=folder,
        plan=plan,
        system=KeptSystem.read(_read(system), str(system)) if system.exists() else None,
        runs=runs,
        checks=checks,
        cases=cases,
        properties=properties,
        ended=_ended(folder, [*runs.values(), *checks.values()]),
        word=SessionVerdict.read(folder / layout.VERDICT).verdict if (folder / layout.VERDICT).exists() else None,
    )


def address_of(test: str) -> str:
    """The address that pytest's report has for a node id."""
    path, bracket, rest = test.partition("[")
    file, *names = path.split("::")
    classname = ".".join([file.replace("/", ".").removesuffix(".py"), *names[:-1]])
    return f"{classname}::{names[-1] if names else ''}{bracket}{rest}"


def _junit(path: Path) -> tuple[tuple[RecordedCase, ...], dict[str, str]]:
    text = _read(path)
    if b"<!DOCTYPE" in text or b"<!ENTITY" in text:  # pytest writes none, and entities could grow without end
        raise ConfigError(f"{path} declares entities: pytest has not written it")
    try:
        root = ET.fromstring(text)  # noqa: S314 - without entities
    except ET.ParseError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    suites = [root] if root.tag == "testsuite" else root.findall("testsuite")
    properties = {
        str(each.get("name")): str(each.get("value"))
        for suite in suites
        for each in suite.findall("properties/property")
    }
    return tuple(_case(each) for suite in suites for each in suite.findall("testcase")), properties


def _case(element: ET.Element) -> RecordedCase:
    # A test that passed and whose teardown broke has one end as well: a failure counts before a skip.
    ends = {child.tag for child in element}
    outcome = next((end for end in ("error", "failure", "skipped") if end in ends), "passed")
    properties = {str(p.get("name")): str(p.get("value")) for p in element.findall("properties/property")}
    name = _planned_name(str(element.get("name")), properties)
    return RecordedCase(address=f"{element.get('classname')}::{name}", outcome=outcome, properties=properties)


def _planned_name(name: str, properties: Mapping[str, str]) -> str:
    """The planned name of a test: a report names the node instead of the number of its slot."""
    check, slot, host = (properties.get(each, "") for each in ("check", "slot", "host"))
    before, bracket, inside = name.partition("[")
    if not (check and slot and host and bracket):
        return name
    words = f"-{inside.removesuffix(']')}-".replace(f"-{check}-{host}-", f"-{check}-slot{slot}-", 1)
    return f"{before}[{words[1:-1]}]"


def _ended(folder: Path, records: Sequence[Record]) -> bool:
    """Whether the last event of a journal is its end: a session that was resumed has begun again before it.

    A session that replays logs has no journal. Its report is complete once it was stopped.
    """
    if records and all(record.cluster == "replay" for record in records):
        return (folder / layout.STOP).exists()
    try:
        return (folder / layout.JOURNAL).exists() and has_ended(folder)
    except ConfigError:
        return False


def _read(path: Path) -> bytes:
    return read_at_most(path, _LARGEST, "; is this the folder of a session?")
