"""The verdicts of a session as rows of the report: one for each declared test, judged or missing."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pytest_llmbench.core.quantity import UNITS, bounds_for_people, for_people
from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.judging.contradictions import bounds_of
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
    ("unbounded", "PASS, no bound", "not judged: it ended well, and no threshold was compared"),
    ("skip", "SKIP", "not judged, for the reason given"),
    ("pass", "PASS", "measured, and it met its threshold"),
)
KINDS: Mapping[str, str] = {kind: word for kind, word, _ in _KINDS}
MEANINGS: Mapping[str, str] = {kind: meaning for kind, _, meaning in _KINDS}
ORDER = {kind: place for place, kind in enumerate(KINDS)}
# Dimensions of numbers that may be below zero.
_SIGNED = frozenset({"fraction", "loss", "temperature"})
# Dimensions of numbers that are better if they are lower.
_BETTER_LOW = frozenset({"time", "energy per token", "power"})


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
    more: str = ""  # further readings of a check
    # Measured number and ends of its interval as shares of the bound, above 1 where they meet it; None without both.
    share: float | None = None
    shares: tuple[float, float] | None = None
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
        """The test without its file, with its node instead of its slot."""
        name = self.test.rpartition("::")[2] or self.test
        return name if "," in self.hosts else re.sub(r"-slot\d+", f"-{self.hosts}", name)

    @property
    def margin(self) -> str:
        """Distance from the bound in percent; negative where the number misses it."""
        if self.share is None:
            return ""
        percent = round(100.0 * (self.share - 1.0), 1) + 0.0  # without a zero below zero
        return f"{percent:+.1f} %" if abs(percent) < 100.0 else f"{percent:+,.0f} %"

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
        if row.about == "check" and of_record.threshold:  # those of its finding
            row = replace(row, **{name: getattr(of_record, name) for name in ("statistic", "measured", "threshold")})
        # The record of a run lacks what a comparison without a threshold was judged by.
        kinds = {row.kind, of_record.kind}
        agrees = len(kinds) == 1 or (row.about != "check" and kinds == {"pass", "unbounded"})
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


def kind_of(verdict: str, *, compared: bool) -> str:
    """The kind of a verdict; a PASS is `unbounded` unless a threshold was `compared`."""
    if verdict == Verdict.PASS:
        return "pass" if compared else "unbounded"
    return verdict.lower() if verdict.lower() in KINDS else "missing"


def interval(low: float, high: float, unit: str) -> str:
    """An interval for people; a lower end below zero, of a number that cannot be, is left out."""
    if low < 0.0 <= high and UNITS.get(unit, ("",))[0] not in _SIGNED:
        return f"up to {for_people(high)} {unit}"
    return f"{for_people(low)} to {for_people(high)} {unit}"


def _shares(texts: Mapping[str, str]) -> list[float]:
    """The measured number and the ends of its interval, as shares of the bound that it is closest to missing."""
    try:
        unit, value = texts["unit"], float(texts["value"])
        known = [value, *(float(texts[name]) for name in ("low", "high") if name in texts)]
        dimension = UNITS[unit][0]
    except (KeyError, ValueError):
        return []
    if dimension == "loss" or value <= 0.0:  # a loss far above its bound is as good as just above it
        return []
    known = known if min(known) > 0.0 else [value]
    threshold = texts.get("threshold", "").replace("no worse than", "<=" if dimension in _BETTER_LOW else ">=")
    shares = (
        [bound / number if name == "at_most" else number / bound for number in known]
        for name, bound in bounds_of(threshold, unit).items() if bound > 0.0
    )  # fmt: skip
    return min(shares, default=[])


def shown(value: float | str, unit: str) -> str:
    """A number and its unit with few digits; any other text as it is."""
    try:
        number = for_people(float(value))
    except ValueError:
        return f"{value} {unit}".rstrip()
    return number if unit in {"1", ""} else f"{number} {unit}"


def _row(properties: Mapping[str, Any]) -> VerdictRow:
    """The row of the properties of a test, which have the names of the JUnit report."""
    texts = {name: str(value) for name, value in properties.items() if value is not None}
    about = next((word for word in ("run", "check", "clause") if word in texts), "")
    unit, threshold = texts.get("unit", ""), texts.get("threshold", "")
    compared = texts.get("bound") != NO_BOUND if about == "check" else bool(threshold or texts.get("judged_by"))
    measured = f"{texts['value']} {unit}" if "value" in texts else texts.get("measured", "")
    statistic, more = texts.get("statistic", ""), ""
    if about == "check" and measured and not statistic:
        first, _, more = measured.partition("; ")
        statistic, _, measured = first.partition(" ")
    between, shares = "", _shares(texts)
    if texts.keys() >= {"low", "high"}:
        with suppress(ValueError):  # a damaged file of verdicts
            between = interval(float(texts["low"]), float(texts["high"]), unit)
    same = ("test", "hosts", "reference", "cause", "energy")
    return VerdictRow(
        **{"test": "", **{name: texts[name] for name in same if name in texts}},
        kind=kind_of(texts.get("verdict", ""), compared=compared),
        about=about,
        subject=texts.get(about, ""),
        statistic=statistic,
        measured=shown(*measured.partition(" ")[::2]),
        more=more,
        share=shares[0] if shares else None,
        shares=(min(shares[1:]), max(shares[1:])) if shares[1:] else None,
        threshold=bounds_for_people(threshold, 6, floor=texts.get("floor")).replace(">=", "≥").replace("<=", "≤"),
        interval=between,
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
            host = check.host(slots.get(judgement.test))
            findings = (each for each in check.report.findings if each.severity.fails and host in {None, each.host})
            worst_finding = next((each for each in findings if each.measured and each.threshold), None)
            of_finding = {} if worst_finding is None else {
                "statistic": worst_finding.kind, "measured": worst_finding.measured,
                "threshold": worst_finding.threshold,
            }  # fmt: skip
            hosts = host or ",".join(check.hosts)
            yield {"check": name, "hosts": hosts, "bound": bound, **judgement.model_dump(), **of_finding}
