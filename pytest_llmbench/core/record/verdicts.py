"""The verdicts of a session as its tests reported them, in one file: also of tests that no run and no check has."""

from collections.abc import Mapping

from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.core.schema import Document, Strict

Property = str | int | float | bool | None


class RecordedClause(Strict):
    """One clause of `--llmbench-require FILE`."""

    name: str
    """Number or name of the clause in the contract."""
    tests: tuple[str, ...]
    """Node ids, names of tests, or patterns of either."""
    verdict: Verdict
    """Worst verdict of the clause's tests, or INCOMPLETE."""
    reason: str = ""
    """Reason for INCOMPLETE; else empty."""


class SessionVerdicts(Document):
    """All verdicts of a session."""

    title = "verdicts of a session"
    session: str
    """Id of the session."""
    facts: Mapping[str, str] = {}
    """Properties of the whole session, as in the JUnit report."""
    tests: tuple[Mapping[str, Property], ...] = ()
    """Properties of each test, and of each compared group of nodes; the name is under `test`."""
    clauses: tuple[RecordedClause, ...] = ()
    """Verdict of each required clause."""
    notes: tuple[str, ...] = ()
    """Lines about verdicts that are missing, such as the runs of which no speed was judged."""
