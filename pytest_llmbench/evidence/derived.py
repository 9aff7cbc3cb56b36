"""Differences between the files that a session derives from its verdicts."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import zip_longest

from pytest_llmbench.core.files import read_at_most
from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.core.record.verdicts import SessionVerdicts
from pytest_llmbench.core.text import harmless
from pytest_llmbench.core.wire import layout
from pytest_llmbench.evidence.recorded import LARGEST, RecordedSession, address_of
from pytest_llmbench.reporting.ci.summary import summary
from pytest_llmbench.reporting.ci.verdict import SessionOutcome, SessionVerdict, decide
from pytest_llmbench.session.journal.journal import read_journal

# The one line of a summary that no other file has: tests whose failure something else reported as passed.
_OVERRULED = "- llmbench: a conftest.py"


def differences_of_report(session: RecordedSession) -> Iterator[str]:
    """Yield how the JUnit report differs from the verdicts in the records: each test has to be in both, alike."""
    kept: dict[str, set[str]] = {}
    for record in session.records:
        for judgement in record.judgements:
            kept.setdefault(address_of(judgement.test), set()).add(str(judgement.verdict))
    cases = {case.address: case.verdict for case in session.cases}
    if len(cases) != len(session.cases):
        yield f"{layout.JUNIT}: a test is in it twice"
    for address, verdicts in kept.items():
        records = ", ".join(sorted(verdicts))
        if address not in cases:
            yield f"{layout.JUNIT}: {address} is not in it, and a record says {records}"
        elif verdicts != {cases[address]}:
            yield f"{layout.JUNIT}: {address}: it says {cases[address]}, the records {records}"
    for address in sorted({address_of(test.test) for test in session.plan.tests} - kept.keys()):
        if cases.get(address) == "PASS":
            yield f"{layout.JUNIT}: {address}: it says PASS, and no record does"


def differences_of_derived(session: RecordedSession) -> Iterator[str]:
    """Yield how verdicts, journal, verdict and summary of a session differ from each other and from its report.

    A session that was killed has none of them but the report.

    Raises:
        ConfigError: one of them cannot be read.
    """
    path = session.folder / layout.VERDICTS
    if path.exists():
        verdicts = SessionVerdicts.read(path)
        yield from _compare_verdicts(session, verdicts)
        yield from _compare_journal(session, verdicts)
        yield from _compare_word(session, verdicts)
    elif (session.folder / layout.VERDICT).exists():
        yield f"{layout.VERDICTS}: it is missing, and {layout.VERDICT} is there"


def _compare(name: str, kept: Mapping[str, object], other: str, due: Mapping[str, object]) -> Iterator[str]:
    """Yield the values of one file that differ from those of another one; an empty value is as good as none."""
    for key in sorted(kept.keys() | due.keys()):
        one, two = ("" if part.get(key) is None else str(part.get(key)) for part in (kept, due))
        if one != two:
            yield f"{name}: {harmless(key)}: it says {harmless(one) or 'nothing'}, {other} {harmless(two) or 'nothing'}"


def _compare_verdicts(session: RecordedSession, verdicts: SessionVerdicts) -> Iterator[str]:
    """Compare `verdicts.json` with the report and with the records."""
    name, rows = layout.VERDICTS, {str(row.get("test")): row for row in verdicts.tests}
    yield from _compare(name, {"session": verdicts.session}, "the records", {"session": session.id})
    yield from _compare(
        name, verdicts.facts, layout.JUNIT, {key: session.properties.get(key) for key in verdicts.facts}
    )
    clauses = {f"clause[{clause.name}]": str(clause.verdict) for clause in verdicts.clauses}
    due = {key: session.properties.get(key, verdict) for key, verdict in clauses.items()}
    yield from _compare(name, clauses, layout.JUNIT, due)
    if len(rows) < len(verdicts.tests):
        yield f"{name}: a test is in it twice"
    tests = {address_of(test): test for test in rows}
    # Cases of groups of nodes and of the history have no property with their name.
    named = {case.properties.get("test") or tests.get(case.address): case for case in session.cases}
    cases = {test: case.properties for test, case in named.items() if test is not None}
    for test in sorted(rows.keys() | cases.keys()):
        if test not in cases or test not in rows:
            here, there = (name, layout.JUNIT) if test in rows else (layout.JUNIT, name)
            yield f"{there}: {harmless(test)} is not in it, and {here} has it"
        else:
            yield from _compare(f"{name}: {harmless(test)}", rows[test], layout.JUNIT, {**cases[test], "test": test})
    kept = {address_of(judgement.test) for record in session.records for judgement in record.judgements}
    for address in sorted(kept - tests.keys()):
        yield f"{name}: {address} is not in it, and a record has its verdict"


def _compare_journal(session: RecordedSession, verdicts: SessionVerdicts) -> Iterator[str]:
    """Compare the verdicts with those that the journal has; a later line replaces an earlier one."""
    path = session.folder / layout.JOURNAL
    if not path.exists():
        return
    events, whole = read_journal(path)
    if whole < path.stat().st_size:
        yield f"{layout.JOURNAL}: its last line cannot be read"
    rows = {str(row.get("test")): row.get("verdict") for row in verdicts.tests}
    judged = {str(event.name): event.verdict for event in events if event.event == "judged" and event.name in rows}
    yield from _compare(layout.JOURNAL, judged, layout.VERDICTS, {test: rows[test] for test in judged})


def _compare_word(session: RecordedSession, verdicts: SessionVerdicts) -> Iterator[str]:
    """Decide on the session once more, and write its summary."""
    path, name = session.folder / layout.VERDICT, layout.VERDICT
    if not path.exists():
        yield f"{name}: it is missing, and {layout.VERDICTS} is there"
        return
    kept = SessionVerdict.read(path)
    due = {
        "session": session.id,
        "llmbench_version": verdicts.facts.get("llmbench_version", kept.llmbench_version),
        **Counter(str(row.get("verdict")) for row in verdicts.tests),
    }
    stated = {"session": kept.session, "llmbench_version": kept.llmbench_version, **kept.counts}
    yield from _compare(name, stated, "the other files", due)
    unjudged = [run.strip() for run in verdicts.facts.get("speed_not_judged", "").split(",") if run]
    words = {
        decide(SessionOutcome(
            rows=verdicts.tests, unjudged=unjudged, runs=len(session.plan.runs), speed_required=required,
            incomplete=[clause.name for clause in verdicts.clauses if clause.verdict is Verdict.INCOMPLETE],
            simulated=any(run.simulated for run in session.runs.values()),
            exit_code=1 if kept.exit_code in {11, 12, 13} else kept.exit_code,
        )) for required in (False, True)
    }  # fmt: skip
    if (kept.verdict, kept.reason) not in words:
        possible = " or ".join(sorted(f"{word} ({reason})" if reason else word for word, reason in words))
        yield f"{name}: it says {kept.verdict} ({harmless(kept.reason)}), the verdicts come to {possible}"
    text = "\n".join(summary(kept, verdicts.tests, verdicts.facts.get("records", ""), verdicts.notes))
    yield from _compare_summary(session, text)


def _compare_summary(session: RecordedSession, due: str) -> Iterator[str]:
    path = session.folder / layout.SUMMARY
    if not path.exists():
        yield f"{path.name}: it is missing, and {layout.VERDICT} is there"
        return
    kept, rows = (
        [line for line in text.split("\n") if line.strip() and not line.startswith(_OVERRULED)]
        for text in (read_at_most(path, LARGEST).decode(errors="replace"), due)
    )
    for number, (one, other) in enumerate(zip_longest(kept, rows, fillvalue="nothing"), 1):
        if one != other:
            wanted = harmless(other)[:200]
            yield f"{path.name}: line {number}: it says {harmless(one)[:200]}, the verdicts come to {wanted}"
            return
