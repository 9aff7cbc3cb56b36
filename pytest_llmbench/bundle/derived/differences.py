"""Differences between the files that a session derives from its verdicts: each says what the others say."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_llmbench.bundle.recorded import RecordedSession, address_of
from pytest_llmbench.core.files import read_at_most
from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.core.record.verdicts import SessionVerdicts
from pytest_llmbench.core.text import harmless
from pytest_llmbench.core.wire import layout
from pytest_llmbench.reporting.ci.summary import summary
from pytest_llmbench.reporting.ci.verdict import SessionOutcome, SessionVerdict, decide
from pytest_llmbench.session.journal.journal import read_journal

_LARGEST = 512 << 20
# The one line of a summary that no other file has: tests whose failure something else reported as passed.
_OVERRULED = "- llmbench: a conftest.py"


def differences_of_derived(session: RecordedSession) -> Iterator[str]:
    """Yield how the derived files of a session differ from each other.

    A session of an earlier version lacks some of them, and a session that was killed has none but the JUnit report.

    Raises:
        ConfigError: one of them cannot be read.
    """
    path = session.folder / layout.VERDICTS
    if not path.exists():
        if (session.folder / layout.VERDICT).exists():
            yield f"{layout.VERDICTS}: it is missing, and {layout.VERDICT} is there"
        return
    told = SessionVerdicts.read(path)
    yield from _verdicts(session, told)
    yield from _journal(session, told)
    yield from _word(session, told)


def _verdicts(session: RecordedSession, told: SessionVerdicts) -> Iterator[str]:
    """Compare the verdicts with the test cases of the report, and with the records."""
    name = layout.VERDICTS
    if told.session != session.id:
        yield f"{name}: session: it says {harmless(told.session)}, the records {session.id}"
    for key, value in told.facts.items():
        if session.properties.get(key) != value:
            yield f"{name}: facts.{key}: it says {harmless(value)}, {layout.JUNIT} {session.properties.get(key)}"
    for clause in told.clauses:
        if session.properties.get(f"clause[{clause.name}]", str(clause.verdict)) != clause.verdict:
            yield f"{name}: clause {harmless(clause.name)}: it says {clause.verdict}, {layout.JUNIT} another verdict"
    yield from _rows(session, told)


def _rows(session: RecordedSession, told: SessionVerdicts) -> Iterator[str]:
    """Compare each verdict and its properties."""
    name, rows = layout.VERDICTS, {str(row.get("test")): row for row in told.tests}
    if len(rows) < len(told.tests):
        yield f"{name}: a test is in it twice"
    of_address = {address_of(test): test for test in rows}
    # Cases of groups of nodes and of the history have no property with their name.
    told_by = {case.properties.get("test") or of_address.get(case.address): case for case in session.cases}
    cases = {test: case for test, case in told_by.items() if test is not None}
    for test in sorted(rows.keys() ^ cases.keys()):
        here, there = (name, layout.JUNIT) if test in rows else (layout.JUNIT, name)
        yield f"{there}: {harmless(test)} is not in it, and {here} has it"
    for test in rows.keys() & cases.keys():
        found = cases[test].properties
        for key in sorted((rows[test].keys() | found.keys()) - {"test"}):
            one, other = rows[test].get(key), found.get(key)
            if _shown(one) != (other or ""):
                yield f"{name}: {harmless(test)}: {key}: it says {harmless(str(one))}, {layout.JUNIT} {other}"
    kept = {address_of(judged.test) for record in _records(session) for judged in record.judgements}
    for address in sorted(kept - {address_of(test) for test in rows}):
        yield f"{name}: {address} is not in it, and a record has its verdict"


def _records(session: RecordedSession) -> Sequence[Any]:
    return (*session.runs.values(), *session.checks.values())


def _shown(value: object) -> str:
    """A property as the report has it."""
    return "" if value is None else str(value)


def _journal(session: RecordedSession, told: SessionVerdicts) -> Iterator[str]:
    """Compare the verdicts with those that the journal has; a later line replaces an earlier one."""
    path = session.folder / layout.JOURNAL
    if not path.exists():
        return
    events, whole = read_journal(path)
    if whole < path.stat().st_size:
        yield f"{layout.JOURNAL}: its last line cannot be read"
    judged = {event.name: event.verdict for event in events if event.event == "judged"}
    rows = {str(row.get("test")): str(row.get("verdict")) for row in told.tests}
    for test, verdict in judged.items():
        if rows.get(str(test), str(verdict)) != verdict:
            yield f"{layout.JOURNAL}: {harmless(str(test))}: it says {verdict}, {layout.VERDICTS} {rows[str(test)]}"


def _word(session: RecordedSession, told: SessionVerdicts) -> Iterator[str]:
    """Decide on the session once more, and write its summary."""
    path = session.folder / layout.VERDICT
    if not path.exists():
        yield f"{layout.VERDICT}: it is missing, and {layout.VERDICTS} is there"
        return
    said, name = SessionVerdict.read(path), layout.VERDICT
    if said.session != session.id:
        yield f"{name}: session: it says {harmless(said.session)}, the records {session.id}"
    if said.llmbench_version != told.facts.get("llmbench_version", said.llmbench_version):
        yield f"{name}: llmbench_version: it says {said.llmbench_version}, {layout.VERDICTS} another"
    counts = dict(Counter(str(row.get("verdict")) for row in told.tests))
    if dict(said.counts) != counts:
        yield f"{name}: counts: it says {dict(said.counts)}, {layout.VERDICTS} has {counts}"
    incomplete = [clause.name for clause in told.clauses if clause.verdict is Verdict.INCOMPLETE]
    unjudged = [each.strip() for each in told.facts.get("speed_not_judged", "").split(",") if each]
    words = {
        decide(SessionOutcome(
            rows=told.tests, incomplete=incomplete, unjudged=unjudged, runs=len(session.plan.runs),
            speed_required=required, simulated=any(run.simulated for run in session.runs.values()),
            exit_code=1 if said.exit_code in {11, 12, 13} else said.exit_code,
        )) for required in (False, True)
    }  # fmt: skip
    if (said.verdict, said.reason) not in words:
        found = " or ".join(sorted(f"{word} ({why})" if why else word for word, why in words))
        yield f"{name}: it says {said.verdict} ({harmless(said.reason)}), the verdicts come to {found}"
    text = "\n".join([*summary(said, told.tests, told.facts.get("records", ""), told.notes), ""])
    yield from _text(session.folder / layout.SUMMARY, text, lambda line: not line.startswith(_OVERRULED))


def _text(path: Path, due: str, counts: Callable[[str], bool]) -> Iterator[str]:
    """Compare a file with what it follows from."""
    if not path.exists():
        yield f"{path.name}: it is missing, and {layout.VERDICT} is there"
        return
    kept = _read(path).decode(errors="replace").split("\n")
    lines, due_lines = ([line for line in text if line.strip() and counts(line)] for text in (kept, due.split("\n")))
    if lines != due_lines:
        pairs = enumerate(zip([*lines, "nothing"], [*due_lines, "nothing"], strict=False), 1)
        number, (one, other) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
        yield f"{path.name}: line {number}: it says {harmless(one)[:200]}, the verdicts come to {harmless(other)[:200]}"


def _read(path: Path) -> bytes:
    return read_at_most(path, _LARGEST, "; is this the folder of a session?")
