"""Judges a session again from its records and logs, and checks the files that are derived from these."""

import datetime as dt
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast

from pytest_llmbench.core.errors import InconclusiveError, LLMBenchError
from pytest_llmbench.core.quantity import USUAL_BETWEEN_RUNS, Quantity
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.records import Judgement, RunRecord, SessionVerdicts, Verdict
from pytest_llmbench.core.text import harmless
from pytest_llmbench.core.wire import layout
from pytest_llmbench.evidence.recorded import RecordedSession, address_of
from pytest_llmbench.judging.contradictions import bounds_of
from pytest_llmbench.judging.recount import same
from pytest_llmbench.plugin.verdict.compare import JudgedComparison
from pytest_llmbench.plugin.verdict.run import Run
from pytest_llmbench.reporting.ci import case_properties
from pytest_llmbench.reporting.verdict import DETAILED, SessionVerdict, decide

_COMPARISON = re.compile(r"(>=|>|<=|<) (.+)")


class Rejudged(NamedTuple):
    """A verdict that was reached again: how the record differs, and the part of it that is taken from the record.

    Both are empty where everything was recomputed and is as recorded.
    """

    difference: str = ""
    taken: str = ""


def judge_test_again(judgement: Judgement, runs: Sequence[RunRecord], *, rerun: bool = False) -> Rejudged:
    """Judge a test again by the runs that it judged together, as their logs have them, the first one first.

    With `rerun`, more of them were to be made if these decide nothing.
    """
    verdict, first = judgement.verdict, runs[0]
    for broken in runs:
        if broken.problem is not None:
            reason = f"the record says {verdict}, and run {broken.key} cannot be judged: {broken.problem.kind}"
            return Rejudged("" if verdict in {Verdict.ERROR, Verdict.SKIP} else reason)
    run = Run(*runs, may_repeat=rerun)
    reference = next((bound for bound in first.recipe.references if bound.name == judgement.reference), None)
    if judgement.reference is not None and reference is None:
        return Rejudged(f"its reference {judgement.reference} is not in the recipe of run {first.key}")
    here = run.reference(reference) if reference is not None else ""
    if reference is not None and reference.statistic not in first.metrics and first.recipe.scale == "smoke":
        here = "it has no meaning at this scale"
    if verdict in {Verdict.SKIP, Verdict.ERROR}:
        skipped = verdict is Verdict.SKIP and reference is not None and isinstance(here, str)
        return Rejudged(taken="" if skipped else judgement.reason or "no reason is kept")
    if reference is None or judgement.statistic != reference.statistic or judgement.threshold is None:
        return _judge_comparison(judgement, run)
    if isinstance(here, str):
        return Rejudged(f"the record says {verdict}, and reference {reference.name} is not for {run.machine}")
    return _judge_reference(judgement, here, run)


def _judge_reference(judgement: Judgement, reference: Reference, run: Run) -> Rejudged:
    kept, measured = judgement.verdict, None
    try:
        measured = run.measured(reference.statistic)
        verdict = Verdict.PASS if measured in reference else Verdict.FAIL
    except InconclusiveError:
        verdict = Verdict.INCONCLUSIVE
    except LLMBenchError as error:
        return Rejudged(f"the record says {kept}, the log {error}")
    if judgement.threshold != reference.threshold:
        return Rejudged(f"bound: the record says {judgement.threshold}, its recipe {reference.threshold}")
    # A miss that is expected until some day is held against the last day on which one of these runs ended.
    ends = [record.timings.ended for record in run.records if record.timings.ended is not None]
    until = reference.xfail.until if reference.xfail is not None and verdict is not Verdict.INCONCLUSIVE else None
    if until is not None and ends and dt.datetime.fromtimestamp(max(ends), tz=dt.UTC).date() <= until:
        verdict = Verdict.XFAIL if verdict is Verdict.FAIL else Verdict.FAIL
    if verdict is not kept:
        number = f"{reference.statistic} {measured} for {reference.asked}"
        return Rejudged(f"the record says {kept}, the log {verdict}: {number}")
    return _compare_number(judgement, run.comparisons.last)


def _judge_comparison(judgement: Judgement, run: Run) -> Rejudged:
    """Compare as the last comparison of a test's own body did; whatever else it demands is not kept."""
    if judgement.statistic is None or judgement.threshold is None:
        return Rejudged(taken="the comparisons of its body are not kept")
    match = _COMPARISON.fullmatch(judgement.threshold)
    if match is None or judgement.statistic == "losses":
        return Rejudged(taken="the other side of its comparison is not kept")
    taken, operator = "its last comparison is recomputed, the rest of its body is not kept", cast("Any", match[1])
    try:
        measured = run.measured(judgement.statistic)
        holds = measured.meets(operator, Quantity(match[2]), USUAL_BETWEEN_RUNS)
    except InconclusiveError:
        return Rejudged(taken=taken)
    except LLMBenchError as error:
        return Rejudged(f"the record says {judgement.verdict}, the log {error}")
    if judgement.verdict is Verdict.PASS and not holds:
        return Rejudged(
            f"the record says PASS, the log {judgement.statistic} {measured}, which is not {judgement.threshold}"
        )
    return Rejudged(_compare_number(judgement, run.comparisons.last).difference, taken)


def _compare_number(judgement: Judgement, judged: JudgedComparison | None) -> Rejudged:
    """Compare the number that a test judged: that of its runs together, or of the one that decided."""
    if judged is None or judgement.measured is None:
        return Rejudged(taken="the number that it judged is not kept")
    number, decision = judged.decisive.metric, judged.decision
    text, _, unit = judgement.measured.partition(" ")
    shown: float | None = None
    with suppress(ValueError):
        shown = float(text)
    if unit != number.unit or not same(shown, number.value):
        both = f"the record says {judgement.measured}, the log {number.value!r} {number.unit}"
        return Rejudged(f"{judgement.statistic}: {both}")
    computed: dict[str, float | str | None] = {
        "value": number.value, "unit": number.unit, "low": None if decision is None else decision.low,
        "high": None if decision is None else decision.high, "at_least": None, "at_most": None,
        **bounds_of(judgement.threshold, number.unit),
    }  # fmt: skip
    for name in sorted(judgement.model_fields_set & computed.keys()):
        if not same(kept := getattr(judgement, name), computed[name]):
            return Rejudged(f"{name}: the record says {kept}, the log {computed[name]}")
    return Rejudged()


def differences_of_junit(session: RecordedSession) -> Iterator[str]:
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
    """Yield how verdicts and verdict of a session differ from each other and from its report.

    A session that was killed has none of them but the report. Raises ConfigError if one of them is unreadable.
    """
    path = session.folder / layout.VERDICTS
    if path.exists():
        verdicts = SessionVerdicts.read(path)
        yield from _compare_verdicts(session, verdicts)
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
    name, rows = layout.VERDICTS, {str(row.get("test")): row for row in verdicts.tests}
    yield from _compare(name, {"session": verdicts.session}, "the records", {"session": session.id})
    facts = {**verdicts.facts, **verdicts.digest}
    yield from _compare(name, facts, layout.JUNIT, {key: session.properties.get(key) for key in facts})
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
            due = {**case_properties(rows[test]), "test": test}
            yield from _compare(f"{name}: {harmless(test)}", due, layout.JUNIT, {**cases[test], "test": test})


def _compare_word(session: RecordedSession, verdicts: SessionVerdicts) -> Iterator[str]:
    """Decide on the session once more."""
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
        decide(
            verdicts.tests, unjudged=unjudged, runs=len(session.plan.runs), speed_required=required,
            incomplete=[clause.name for clause in verdicts.clauses if clause.verdict is Verdict.INCOMPLETE],
            simulated=any(run.simulated for run in session.runs.values()),
            exit_code=1 if kept.exit_code in DETAILED.values() else kept.exit_code,
        ) for required in (False, True)
    }  # fmt: skip
    if (kept.verdict, kept.reason) not in words:
        possible = " or ".join(sorted(f"{word} ({reason})" if reason else word for word, reason in words))
        yield f"{name}: it says {kept.verdict} ({harmless(kept.reason)}), the verdicts come to {possible}"
