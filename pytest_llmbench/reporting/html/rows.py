"""The verdicts of a session as rows of the report: one for each declared test, judged or missing."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_llmbench.cluster.runs import Declared
from pytest_llmbench.core.quantity import bounds_for_people, for_people
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import Judgement, Property, Verdict
from pytest_llmbench.reporting.health import NO_BOUND
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
    """One verdict.

    Attributes:
        test: node id, or the name of a verdict of the session itself.
        kind: one of `KINDS`.
        about: `run`, `check`, `clause`, or empty.
        subject: name of the run, the check or the clause.
        hosts: the nodes, separated by commas.
        statistic, measured, threshold, interval, reference, reason, cause: texts for people, or empty.
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
    """Every verdict of a session, the worst first.

    Rows come from the file of verdicts, then from records, then from the journal and the declared tests. A clause has a
    row if it is INCOMPLETE: it is an error in the JUnit report then.
    """
    recorded = dict(_recorded_rows(session))
    rows = [_row_of_properties(properties) for properties in (session.verdicts.tests if session.verdicts else ())]
    rows = [_with_contradiction(row, recorded.get(row.test)) for row in rows]
    seen = {row.test for row in rows}
    rows += [row for test, row in recorded.items() if test not in seen]
    seen |= recorded.keys()
    judged = {event.name: event.verdict for event in session.events if event.event == "judged"}
    rows += [_row_of_journal(test, judged.get(test.test)) for test in session.tests or () if test.test not in seen]
    for clause in session.verdicts.clauses if session.verdicts else ():
        if clause.verdict == Verdict.INCOMPLETE:
            facts = {"about": "clause", "subject": clause.name, "reason": clause.reason}
            rows.append(VerdictRow(test=f"requirements::{clause.name}", kind="incomplete", **facts))
    return sorted(rows, key=lambda row: ORDER[row.kind])


def counts(rows: Iterable[VerdictRow]) -> dict[str, int]:
    """Number of rows of each kind, the worst kind first; kinds without one are left out."""
    numbers = Counter(row.kind for row in rows)
    return {kind: numbers[kind] for kind in KINDS if numbers[kind]}


def worst(rows: Sequence[VerdictRow]) -> str:
    """The worst kind among rows; `missing` without any."""
    return min((row.kind for row in rows), key=ORDER.__getitem__, default="missing")


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeMap:
    """Nodes by checks.

    Attributes:
        checks: names of the checks, in their order.
        nodes: kind and reason of each check, by node and for `all nodes together`; the kind is empty without a verdict.
        left_out: number of further nodes.
    """

    checks: Sequence[str]
    nodes: Mapping[str, Sequence[tuple[str, str]]]
    left_out: int


def node_map(checks: Mapping[str, HealthRecord]) -> NodeMap | None:
    """The map of a session's checks; None without checks."""
    records = [*checks.values()]
    hosts = dict.fromkeys(host for check in records for host in check.hosts)
    rows = {host: [_cell(check, host) for check in records] for host in hosts}
    together = [_cell(check, None) for check in records]
    if not any(kind for kind, _ in together) and not rows:
        return None
    worst_first = sorted(
        rows, key=lambda host: min((ORDER[kind] for kind, _ in rows[host] if kind), default=len(ORDER))
    )
    shown = {*worst_first[:_MOST_NODES]}
    nodes = {host: cells for host, cells in rows.items() if host in shown}
    if any(kind for kind, _ in together):
        nodes["all nodes together"] = together
    return NodeMap(checks=[*checks], nodes=nodes, left_out=len(rows) - len(shown))


def _cell(check: HealthRecord, host: str | None) -> tuple[str, str]:
    """Kind and reason of a check's verdict on a node, or, for None, on all together."""
    if host is not None and host not in check.hosts:
        return "", ""
    of_cluster = check.scope == "cluster"
    verdict, reason = check.state(None if host is None else check.hosts.index(host))
    # A check of all nodes has a verdict on one node only if it has a finding about it.
    if (host is None and not of_cluster) or (host is not None and of_cluster and verdict is Verdict.PASS):
        return "", ""
    return kind_of(str(verdict), compared=not check.report.unbounded), " ".join(reason.split())[:200]


def kind_of(verdict: str, *, compared: bool) -> str:
    """The kind of a verdict; a PASS is `unbounded` unless a threshold was `compared`."""
    if verdict == Verdict.PASS:
        return "pass" if compared else "unbounded"
    return verdict.lower() if verdict.lower() in KINDS else "missing"


def _measured(value: object, unit: object) -> str:
    """A number with its unit for people; any other text as it is."""
    try:
        number = float(str(value))
    except ValueError:
        return str(value or "")
    return for_people(number) if unit in {"1", None, ""} else f"{for_people(number)} {unit}"


def _threshold(text: str) -> str:
    """A threshold as people write it: `>= 200000 words/s` becomes `≥ 200,000 words/s`."""
    return bounds_for_people(text, 6).replace(">=", "≥").replace("<=", "≤")


def _row_of_properties(properties: Mapping[str, Property]) -> VerdictRow:
    texts = {name: str(value or "") for name, value in properties.items()}
    about = next((word for word in ("run", "check", "clause") if word in properties), "")
    unit = texts.get("unit", "")
    is_bounded = bool(texts.get("threshold") or texts.get("judged_by"))
    compared = properties.get("bound") != NO_BOUND if about == "check" else is_bounded
    low, high = (_measured(properties.get(end), "") for end in ("low", "high"))
    same = ("test", "hosts", "statistic", "reference", "cause")
    return VerdictRow(
        **{"test": "", **{name: texts[name] for name in same if name in texts}},
        kind=kind_of(texts.get("verdict", ""), compared=compared),
        about=about,
        subject=texts.get(about, ""),
        measured=_measured(properties["value"], unit) if "value" in properties else texts.get("measured", ""),
        threshold=_threshold(texts.get("threshold", "")),
        interval=f"{low} to {high} {unit}" if low and high else "",
        reason=texts.get("reason") or texts.get("hints", ""),
    )


def _recorded_rows(session: SessionFolder) -> Iterator[tuple[str, VerdictRow]]:
    """Yield test and row of each verdict in the records."""
    for key, run in session.runs.items():
        hosts = ",".join(run.hosts)
        for judgement in run.judgements:
            compared = judgement.threshold is not None
            yield judgement.test, _row_of_judgement(judgement, "run", key, hosts, compared=compared)
    slots = {test.test: test.slot for test in session.tests or ()}
    for name, check in session.checks.items():
        for judgement in check.judgements:
            hosts = check.host(slots.get(judgement.test)) or ",".join(check.hosts)
            compared = not check.report.unbounded
            yield judgement.test, _row_of_judgement(judgement, "check", name, hosts, compared=compared)


def _row_of_judgement(judgement: Judgement, about: str, subject: str, hosts: str, *, compared: bool) -> VerdictRow:
    value, _, unit = (judgement.measured or "").partition(" ")
    measured = _measured(value, unit)
    return VerdictRow(
        test=judgement.test,
        kind=kind_of(str(judgement.verdict), compared=compared),
        about=about,
        subject=subject,
        hosts=hosts,
        statistic=judgement.statistic or "",
        measured=measured if measured != value else judgement.measured or "",
        threshold=_threshold(judgement.threshold or ""),
        reference=judgement.reference or "",
        reason=judgement.reason or "",
        cause=judgement.cause or "",
    )


def _row_of_journal(test: Declared, verdict: str | None) -> VerdictRow:
    """The row of a declared test whose verdict is in the journal at most."""
    about, subject = ("check", test.check) if test.check is not None else ("run", test.run)
    reason = "only the journal has this verdict: what was compared is not on record"
    if verdict is None:
        reason = "no verdict is on record: the session was killed, or its files are damaged"
    return VerdictRow(
        test=test.test, kind="missing" if verdict is None else kind_of(verdict, compared=False), about=about,
        subject=subject or "", reference=test.reference or "", reason=reason,
    )  # fmt: skip


def _with_contradiction(row: VerdictRow, recorded: VerdictRow | None) -> VerdictRow:
    same = {"unbounded": "pass"}
    if recorded is None or same.get(recorded.kind, recorded.kind) == same.get(row.kind, row.kind):
        return row
    return replace(row, contradiction=f"its record says {recorded.word}")
