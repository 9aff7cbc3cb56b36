"""The verdicts of a session as rows of the report: one for each declared test, also of those that have none."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_llmbench.cluster.runs import Declared
from pytest_llmbench.core.quantity import bounds_for_people, for_people
from pytest_llmbench.core.record.records import Judgement, Verdict
from pytest_llmbench.core.record.verdicts import Property
from pytest_llmbench.reporting.health import NO_BOUND
from pytest_llmbench.session.folder import SessionFolder

# Kinds of rows, the worst first, and their words. A pass by which nothing was compared is not shown as a pass.
KINDS: Mapping[str, str] = {
    "fail": "FAIL",
    "error": "ERROR",
    "missing": "no verdict",
    "incomplete": "INCOMPLETE",
    "inconclusive": "INCONCLUSIVE",
    "xfail": "XFAIL",
    "unbounded": "PASS, no bound",
    "skip": "SKIP",
    "pass": "PASS",
}
MEANINGS: Mapping[str, str] = {
    "fail": "a number missed its threshold",
    "error": "the run or check cannot be judged",
    "missing": "the test was declared, and no verdict is on record",
    "incomplete": "a clause of the contract with a test that was not judged",
    "inconclusive": "measured, and not known well enough to decide",
    "xfail": "missed a threshold that it is expected to miss",
    "unbounded": "judged by nothing: it ended well, and no threshold was compared",
    "skip": "not judged, for the reason given",
    "pass": "measured, and it met its threshold",
}
ORDER = {kind: place for place, kind in enumerate(KINDS)}


@dataclass(frozen=True, kw_only=True, slots=True)
class VerdictRow:
    """One verdict.

    Attributes:
        test: node id, or the name of a verdict that no test has.
        kind: one of `KINDS`.
        about: `run`, `check`, `clause`, or empty.
        subject: name of the run, the check or the clause.
        hosts: the nodes, separated by commas.
        statistic, measured, threshold, interval, reference, reason, cause: texts for people, empty where there is none.
        contradiction: how the file of verdicts and the record differ; empty where they agree.
    """

    test: str
    kind: str
    about: str = ""
    subject: str = ""
    hosts: str = ""
    statistic: str = ""
    measured: str = ""
    threshold: str = ""
    interval: str = ""
    reference: str = ""
    reason: str = ""
    cause: str = ""
    contradiction: str = ""

    @property
    def word(self) -> str:
        """Its verdict in words."""
        return KINDS[self.kind]

    @property
    def name(self) -> str:
        """The test without its file."""
        return self.test.rpartition("::")[2] or self.test

    @property
    def anchor(self) -> str:
        """Id of the section with more about it; empty without one."""
        return f"{self.about}-{self.subject}" if self.about in {"run", "check"} else ""


def verdict_rows(session: SessionFolder) -> list[VerdictRow]:
    """Every verdict of a session, the worst first.

    There is one row for each test that the file of verdicts has, and one for each declared test and each verdict of a
    record that it lacks. A clause has a row if it is INCOMPLETE, as it is an error in the JUnit report then.
    """
    told = session.verdicts
    rows = [_of_properties(each) for each in told.tests] if told is not None else []
    recorded = dict(_recorded(session))
    rows = [_compared(row, recorded.get(row.test)) for row in rows]
    seen = {row.test for row in rows}
    rows += [row for test, row in recorded.items() if test not in seen]
    seen |= recorded.keys()
    judged = {event.name: event.verdict for event in session.events if event.event == "judged"}
    for test in session.tests or ():
        if test.test not in seen:
            rows.append(_of_journal(test, judged.get(test.test)))
    for clause in told.clauses if told is not None else ():
        if clause.verdict == Verdict.INCOMPLETE:
            name = f"requirements::{clause.name}"
            rows.append(
                VerdictRow(test=name, kind="incomplete", about="clause", subject=clause.name, reason=clause.reason)
            )
    return sorted(rows, key=lambda row: ORDER[row.kind])


def counts(rows: Iterable[VerdictRow]) -> dict[str, int]:
    """How many rows of each kind there are, the worst kind first; kinds without one are left out."""
    found = Counter(row.kind for row in rows)
    return {kind: found[kind] for kind in KINDS if found[kind]}


def worst(rows: Sequence[VerdictRow]) -> str:
    """The worst kind among rows; `missing` where there are none."""
    return min((row.kind for row in rows), key=ORDER.__getitem__, default="missing")


def measured_text(value: object, unit: object) -> str:
    """A number with its unit for people; any other text as it is."""
    try:
        number = float(str(value))
    except ValueError:
        return str(value or "")
    return for_people(number) if unit in {"1", None, ""} else f"{for_people(number)} {unit}"


def kind_of(verdict: str, *, compared: bool) -> str:
    """The kind of a verdict; `compared` says of a pass whether anything was."""
    if verdict == Verdict.PASS:
        return "pass" if compared else "unbounded"
    return verdict.lower() if verdict.lower() in KINDS else "missing"


def _of_properties(told: Mapping[str, Property]) -> VerdictRow:
    def text(name: str) -> str:
        return str(told.get(name) or "")

    about = next((word for word in ("run", "check", "clause") if word in told), "")
    unit = text("unit")
    compared = told.get("bound") != NO_BOUND if about == "check" else bool(text("threshold") or text("judged_by"))
    low, high = (measured_text(told.get(end), "") for end in ("low", "high"))
    return VerdictRow(
        test=text("test"),
        kind=kind_of(text("verdict"), compared=compared),
        about=about,
        subject=text(about) if about else "",
        hosts=text("hosts"),
        statistic=text("statistic"),
        measured=measured_text(told["value"], unit) if "value" in told else text("measured"),
        threshold=for_reader(text("threshold")),
        interval=f"{low} to {high} {unit}" if low and high else "",
        reference=text("reference"),
        reason=text("reason") or text("hints"),
        cause=text("cause"),
    )


def for_reader(threshold: str) -> str:
    """A threshold as people write it: `>= 200000 words/s` becomes `≥ 200,000 words/s`."""
    return bounds_for_people(threshold, 6).replace(">=", "≥").replace("<=", "≤")


def _recorded(session: SessionFolder) -> Iterator[tuple[str, VerdictRow]]:
    """Yield the verdicts that the records have, by test."""
    for key, run in session.runs.items():
        hosts = ",".join(run.hosts)
        for each in run.judgements:
            yield each.test, _of_judgement(each, "run", key, hosts, compared=each.threshold is not None)
    slots = {test.test: test.slot for test in session.tests or ()}
    for name, check in session.checks.items():
        for each in check.judgements:
            host = check.host(slots.get(each.test))
            hosts = host or ",".join(check.hosts)
            yield each.test, _of_judgement(each, "check", name, hosts, compared=not check.report.unbounded)


def _of_judgement(told: Judgement, about: str, subject: str, hosts: str, *, compared: bool) -> VerdictRow:
    value, _, unit = (told.measured or "").partition(" ")
    return VerdictRow(
        test=told.test,
        kind=kind_of(str(told.verdict), compared=compared),
        about=about,
        subject=subject,
        hosts=hosts,
        statistic=told.statistic or "",
        measured=measured_text(value, unit) if value and _is_number(value) else told.measured or "",
        threshold=for_reader(told.threshold or ""),
        reference=told.reference or "",
        reason=told.reason or "",
        cause=told.cause or "",
    )


def _of_journal(test: Declared, verdict: str | None) -> VerdictRow:
    """The row of a declared test of which neither the file of verdicts nor a record tells."""
    about, subject = ("check", test.check) if test.check is not None else ("run", test.run)
    row = VerdictRow(
        test=test.test, kind="missing", about=about, subject=subject or "", reference=test.reference or "",
        reason="no verdict is on record: the session was killed, or its files are damaged",
    )  # fmt: skip
    if verdict is None:
        return row
    # The journal says how it ended, and not by what it was judged: a pass of it proves nothing.
    kind = kind_of(verdict, compared=False)
    return replace(row, kind=kind, reason="only the journal has this verdict: what was compared is not on record")


def _compared(row: VerdictRow, recorded: VerdictRow | None) -> VerdictRow:
    """A row, with how its record contradicts it."""
    if recorded is None or _ended(recorded) == _ended(row):
        return row
    return replace(row, contradiction=f"its record says {recorded.word}")


def _ended(row: VerdictRow) -> str:
    return "pass" if row.kind == "unbounded" else row.kind


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
