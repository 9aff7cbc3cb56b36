"""The verdicts of a session as rows of the report: one for each declared test, judged or missing."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pytest_llmbench.core.quantity import bounds_for_people, for_people
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.judging.telemetry import energy_of
from pytest_llmbench.reporting.table import NO_BOUND
from pytest_llmbench.session.folder import SessionFolder

# Kinds of rows, the worst first, with word and meaning. A pass without a threshold is a kind of its own.
_KINDS = (
    ("fail", "FAIL", "a number missed its threshold"),
    ("error", "ERROR", "the run or check cannot be judged"),
    ("missing", "no verdict", "the test was declared, and no verdict is on record"),
    ("incomplete", "INCOMPLETE", "a clause of the contract with a test that was not judged"),
    ("inconclusive", "INCONCLUSIVE", "measured, and not known well enough to decide"),
    ("xfail", "XFAIL", "missed a threshold that it is expected to miss"),
    ("unbounded", "PASS, no bound", "judged by nothing: it ended well, and no threshold was compared"),
    ("skip", "SKIP", "not judged, for the reason given"),
    ("pass", "PASS", "measured, and it met its threshold"),
)
KINDS: Mapping[str, str] = {kind: word for kind, word, _ in _KINDS}
MEANINGS: Mapping[str, str] = {kind: meaning for kind, _, meaning in _KINDS}
ORDER = {kind: place for place, kind in enumerate(KINDS)}
# Of a fleet, the nodes with the worst verdicts are shown, and the others are counted.
_MOST_NODES = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class VerdictRow:
    """One verdict, in texts for people; an unknown one is empty."""

    test: str  # node id, or the name of a verdict of the session itself
    kind: str  # one of `KINDS`
    about: str = ""  # `run`, `check`, `clause`, or empty
    subject: str = ""  # name of the run, the check or the clause
    hosts: str = ""  # the nodes, separated by commas
    statistic: str = ""
    measured: str = ""
    threshold: str = ""
    interval: str = ""
    energy: str = ""
    reference: str = ""
    reason: str = ""
    cause: str = ""
    contradiction: str = ""  # the difference between the file of verdicts and the record

    @property
    def word(self) -> str:
        """The verdict in words."""
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
    """Every verdict of a session, the worst first; of these, those on one node before those on several.

    Rows come from the file of verdicts, then from records, then from the journal and the declared tests. A clause has a
    row if it is INCOMPLETE: it is an error in the JUnit report then.
    """
    recorded = {row.test: row for row in map(_row, _properties_of_records(session))}
    rows = []
    for properties in session.verdicts.tests if session.verdicts else ():
        row, names = _row(properties), str(properties.get("runs") or properties.get("run") or "").split(",")
        subjects = [("run", name) for name in names] if row.about != "check" else [("check", row.subject)]
        if reasons := [session.refused[subject] for subject in subjects if subject in session.refused]:
            rows.append(replace(row, kind="error", measured="", interval="", reason=reasons[0]))
            continue
        of_record = recorded.pop(row.test, row)
        agrees = of_record.kind.replace("unbounded", "pass") == row.kind.replace("unbounded", "pass")
        rows.append(row if agrees else replace(row, contradiction=f"its record says {of_record.word}"))
    rows += recorded.values()
    seen = {row.test for row in rows}
    in_journal = {event.name: event.verdict for event in session.events if event.event == "judged"}
    for test in session.tests or ():
        if test.test in seen:
            continue
        verdict = in_journal.get(test.test)
        reason = "only the journal has this verdict: what was compared is not on record"
        if verdict is None:
            reason = "no verdict is on record: the session was killed, or its files are damaged"
        about = {"run": test.run} if test.check is None else {"check": test.check, "bound": NO_BOUND}
        facts = {"test": test.test, "verdict": verdict, "reference": test.reference, "reason": reason}
        rows.append(_row({**about, **facts}))
    for clause in session.verdicts.clauses if session.verdicts else ():
        if clause.verdict == Verdict.INCOMPLETE:
            facts = {"clause": clause.name, "verdict": "INCOMPLETE", "reason": clause.reason}
            rows.append(_row({"test": f"requirements::{clause.name}", **facts}))
    return sorted(rows, key=lambda row: (ORDER[row.kind], "," in row.hosts))


def counts(rows: Iterable[VerdictRow]) -> dict[str, int]:
    """Number of rows of each kind, the worst kind first; kinds without one are left out."""
    numbers = Counter(row.kind for row in rows)
    return {kind: numbers[kind] for kind in KINDS if numbers[kind]}


def worst(rows: Sequence[VerdictRow]) -> str:
    """The worst kind among rows; `missing` without any."""
    return min((row.kind for row in rows), key=ORDER.__getitem__, default="missing")


class NodeMap(NamedTuple):
    """Nodes by checks: kind and reason of each check's verdict, by node; the kind is empty without a verdict."""

    checks: Sequence[str]
    nodes: Mapping[str, Sequence[tuple[str, str]]]
    left_out: int


def node_map(checks: Mapping[str, HealthRecord]) -> NodeMap | None:
    """The map of a session's checks; None without checks."""
    rows: dict[str, list[tuple[str, str]]] = {}
    together = []
    for number, check in enumerate(checks.values()):  # one at a time: with its evidence, a record may be large
        for slot, host in enumerate(check.hosts):
            rows.setdefault(host, [("", "")] * len(checks))[number] = _cell(check, slot)
        together.append(_cell(check, None))
    worst_first = sorted(
        rows, key=lambda host: min((ORDER[kind] for kind, _ in rows[host] if kind), default=len(ORDER))
    )
    shown = {*worst_first[:_MOST_NODES]}
    nodes = {host: cells for host, cells in rows.items() if host in shown}
    if any(kind for kind, _ in together):
        nodes["all nodes together"] = together
    return NodeMap([*checks], nodes, len(rows) - len(shown)) if nodes else None


def _cell(check: HealthRecord, slot: int | None) -> tuple[str, str]:
    """Kind and reason of a check's verdict on the node of a slot, or, for None, on all together."""
    of_cluster = check.scope == "cluster"
    verdict, reason = check.state(slot)
    # A check of all nodes has a verdict on one node only if it has a finding about it.
    if (slot is None and not of_cluster) or (slot is not None and of_cluster and verdict is Verdict.PASS):
        return "", ""
    return kind_of(str(verdict), compared=not check.report.unbounded), " ".join(reason.split())[:200]


def kind_of(verdict: str, *, compared: bool) -> str:
    """The kind of a verdict; a PASS is `unbounded` unless a threshold was `compared`."""
    if verdict == Verdict.PASS:
        return "pass" if compared else "unbounded"
    return verdict.lower() if verdict.lower() in KINDS else "missing"


def _for_people(measured: str) -> str:
    """A number and its unit with few digits; any other text as it is."""
    value, _, unit = measured.partition(" ")
    try:
        number = for_people(float(value))
    except ValueError:
        return measured
    return number if unit in {"1", ""} else f"{number} {unit}"


def _row(properties: Mapping[str, Any]) -> VerdictRow:
    """The row of the properties of a test, which have the names of the JUnit report."""
    texts = {name: str(value) for name, value in properties.items() if value is not None}
    about = next((word for word in ("run", "check", "clause") if word in texts), "")
    unit, threshold = texts.get("unit", ""), texts.get("threshold", "")
    compared = texts.get("bound") != NO_BOUND if about == "check" else bool(threshold or texts.get("judged_by"))
    measured = f"{texts['value']} {unit}" if "value" in texts else texts.get("measured", "")
    low, high = (_for_people(texts.get(end, "")) for end in ("low", "high"))
    same = ("test", "hosts", "statistic", "reference", "cause", "energy")
    return VerdictRow(
        **{"test": "", **{name: texts[name] for name in same if name in texts}},
        kind=kind_of(texts.get("verdict", ""), compared=compared),
        about=about,
        subject=texts.get(about, ""),
        measured=_for_people(measured),
        threshold=bounds_for_people(threshold, 6, floor=texts.get("floor")).replace(">=", "≥").replace("<=", "≤"),
        interval=f"{low} to {high} {unit}" if low and high else "",
        reason=texts.get("reason") or texts.get("hints", ""),
    )


def _properties_of_records(session: SessionFolder) -> Iterator[dict[str, Any]]:
    """Yield the properties of each verdict in the records."""
    for key, run in session.runs.items():
        energy = energy_of(run)
        for judgement in run.judgements:
            yield {"run": key, "hosts": ",".join(run.hosts), "energy": energy, **judgement.model_dump()}
    slots = {test.test: test.slot for test in session.tests or ()}
    for name, check in session.checks.items():
        bound = NO_BOUND if check.report.unbounded else None
        for judgement in check.judgements:
            hosts = check.host(slots.get(judgement.test)) or ",".join(check.hosts)
            yield {"check": name, "hosts": hosts, "bound": bound, **judgement.model_dump()}
