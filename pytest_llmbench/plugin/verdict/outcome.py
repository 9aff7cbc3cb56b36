"""Gives every test of ours exactly one verdict, in the properties of its report."""

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.cluster.runs import Declared
from pytest_llmbench.core.errors import InconclusiveError, LLMBenchError
from pytest_llmbench.core.paths import shown_path
from pytest_llmbench.core.quantity import Quantity, counted
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.records import RunRecord, Verdict
from pytest_llmbench.core.text import harmless
from pytest_llmbench.judging.interval.decide import RULE, Decision
from pytest_llmbench.judging.telemetry import energy_of
from pytest_llmbench.plugin.bench import Bench, bench_of
from pytest_llmbench.plugin.collection.checks import CheckKey, key_of
from pytest_llmbench.plugin.collection.parametrize import RunKey
from pytest_llmbench.plugin.options import options_of
from pytest_llmbench.plugin.verdict import speed
from pytest_llmbench.plugin.verdict.compare import JudgedComparison, Number
from pytest_llmbench.plugin.verdict.facts import facts_of_check, facts_of_reference, facts_of_run, known, place_of
from pytest_llmbench.plugin.verdict.run import Run
from pytest_llmbench.reporting.ci import evidence_lines
from pytest_llmbench.session.record_store import RecordStore


def note(item: pytest.Item, **properties: Any) -> None:
    """Set properties of a test; earlier values of the same name are replaced."""
    others = [(name, value) for name, value in item.user_properties if name not in properties]
    item.user_properties[:] = [*others, *properties.items()]


def note_measured(item: pytest.Item, run: Run) -> None:
    """Write down the number a test judged: the last one it compared, else the last one it asked for."""
    speeds = speed.find_judged_speeds(run)
    runs = ",".join(record.key for record in run.records) if len(run.records) > 1 else None
    facts: dict[str, Any] = {"speed_judged": ",".join(speeds) or None, "runs": runs, "energy": energy_of(*run.records)}
    if (worst := run.losses.worst) is not None:
        facts |= {
            "statistic": "losses", "value": worst.away, "unit": "nat", "judged_by": "golden",
            "threshold": f"<= {worst.tolerance:.6g} nat",
        }  # fmt: skip
    judged = run.comparisons.last
    if judged is not None:
        facts |= _facts_of_number(judged.number, judged.decisive) | _facts_of_judgement(judged)
    elif run.used:
        number = run.used[-1].number
        facts |= _facts_of_number(number, number)
    if judged is not None and "threshold" in dict(item.user_properties):  # that of its reference
        del facts["threshold"]
    note(item, **known(**facts))


def _facts_of_number(number: Number, decisive: Number) -> dict[str, Any]:
    values = ",".join(f"{part.metric.value:.6g}" for part in number.parts)
    return {
        "statistic": number.statistic, "value": decisive.metric.value, "unit": number.metric.unit,
        "each_run": values or None,
    }  # fmt: skip


def _facts_of_judgement(judged: JudgedComparison) -> dict[str, Any]:
    """The rule or interval that judged a comparison, and how sure that is."""
    decision = judged.decision
    facts = {"threshold": judged.threshold, "cause": None if judged.cause is None else str(judged.cause)}
    if decision is None:
        return {**facts, "judged_by": "rule"}
    between = None
    if decision.between is not None:
        between = f"{100 * decision.between.spread:g} %{'' if decision.between.known else ', assumed'}"
    return {
        **facts, "judged_by": "interval", "claim": decision.claim, "alpha": decision.alpha, "interval_rule": RULE,
        "steady_part": _describe_steady_part(judged.decisive, decision), "low": decision.low, "high": decision.high,
        "steady": decision.steady, "between_runs": between,
    }  # fmt: skip


def _describe_steady_part(number: Number, decision: Decision) -> str | None:
    steady = number.record.steady
    if steady is None or decision.steady is None or decision.holds in {None, decision.by_rule}:
        return None
    slow = counted(steady.left_out, "slow step")
    return f"{Quantity(decision.steady, number.metric.unit)} was judged: the steady part of the run, after {slow}"


def describe_problem(record: RunRecord) -> str:
    """Write why a run lacks a measurement, and where to look."""
    problem = record.problem
    if problem is None:
        return ""
    lines = [f"run {record.key} cannot be judged ({problem.kind}): {problem.message}"]
    if metric := record.unjudged.get(record.recipe.statistic_of_record):
        lines.append(f"its log gives {record.recipe.statistic_of_record} {metric.quantity}, which is not a verdict")
    if record.hosts:
        lines.append(f"on: {', '.join(record.hosts)}{record.job}")
    lines.append(f"run record: {shown_path(record.path)}")
    if problem.log:
        lines.append(f"log: {shown_path(Path(problem.log))}")
    return "\n".join(lines)


_BROKEN = re.compile(r"run \S+ cannot be judged ")


class BrokenRuns:
    """The errors of broken runs in reports: whole for the first test of a run, in one line for the others."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}

    def shorten(self, report: pytest.TestReport) -> None:
        """Refer to the first test whose error is the same."""
        key = dict(report.user_properties).get("run")
        if key is None or report.when != "setup" or not report.failed:
            return
        text = str(report.longrepr)  # `longreprtext` names the worker of pytest-xdist
        first = self._first.setdefault(text, report.nodeid)
        if first != report.nodeid and _BROKEN.match(text):
            report.longrepr = f"{text.partition(chr(10))[0]}\nrecord and log: see the error of {first}"


def judge(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Give a test of ours its verdict, once, as soon as it is decided; leave other tests alone.

    An exception in the test body other than a failed assertion (units that differ, a statistic without a meaning) is
    an ERROR. pytest reports a failure of the setup phase as an error, in the terminal and in JUnit, so such a report is
    turned into one.
    """
    noted = dict(item.user_properties)
    test = declared_test(item)
    if test is None:
        return
    if report.when == "teardown" and "verdict" in noted:
        # pytest-html and Allure show the output of a test that passed, as pytest does with -rP; a failure has it all.
        if report.passed and noted["verdict"] == Verdict.PASS:
            records = shown_path(bench_of(item.config).session.folder)
            text = "".join(f"{line}\n" for line in evidence_lines(noted, records))
            report.sections.append(("Captured stdout teardown", text))
        return
    verdict, reason = _find_verdict(call, report)
    if verdict is None:
        return
    verdict, reason = _settle_expected(item, report, verdict, reason)
    # What broke may have come before its run, check or reference could be noted.
    note(item, **{name: fact for name, fact in known_facts(test, bench_of(item.config)).items() if name not in noted})
    if verdict is Verdict.ERROR and report.when == "call":
        report.when = "setup"
        if call.excinfo is not None and call.excinfo.errisinstance(LLMBenchError):
            report.longrepr = str(call.excinfo.value)
    if verdict is Verdict.INCONCLUSIVE:
        report.longrepr = str(call.excinfo.value) if call.excinfo else ""
        if options_of(item.config).inconclusive == "warn":
            path, line, _ = item.location
            report.outcome, report.longrepr = "skipped", (path, (line or 0) + 1, f"INCONCLUSIVE: {reason}")
    note(item, **known(verdict=str(verdict), reason=harmless(reason) or None))
    report.user_properties = list(item.user_properties)


def _find_verdict(call: pytest.CallInfo[None], report: pytest.TestReport) -> tuple[Verdict | None, str]:
    if report.skipped:
        return Verdict.SKIP, _reason(report)
    if report.failed:
        if report.when == "call" and call.excinfo is not None and call.excinfo.errisinstance(InconclusiveError):
            return Verdict.INCONCLUSIVE, _first_line(call)
        # Without an exception it is a test that met what it was strictly expected to miss.
        asserted = call.excinfo is None or call.excinfo.errisinstance((AssertionError, pytest.fail.Exception))
        judged = report.when == "call" and asserted
        return (Verdict.FAIL if judged else Verdict.ERROR), _first_line(call) or _reason(report)
    if report.when == "call":
        return Verdict.PASS, ""
    return None, ""


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(getattr(report, "wasxfail", "") or (report.longrepr if isinstance(report.longrepr, str) else ""))


def _first_line(call: pytest.CallInfo[None]) -> str:
    text = str(call.excinfo.value) if call.excinfo else ""
    return text.splitlines()[0].removeprefix("assert ") if text else ""


def _settle_expected(
    item: pytest.Item, report: pytest.TestReport, verdict: Verdict, reason: str
) -> tuple[Verdict, str]:
    """The verdict and its reason where the test's reference expects a failure; the report follows.

    Only a PASS, or a FAIL by that very threshold, changes; any other failure, ERROR and INCONCLUSIVE stay.
    """
    callspec = getattr(item, "callspec", None)
    reference = callspec.params.get("reference") if callspec is not None else None
    if not isinstance(reference, Reference) or reference.xfail is None or item.config.getoption("runxfail"):
        return verdict, reason
    known, name = reference.xfail, reference.name
    over = dt.date.today() > known.until  # noqa: DTZ011 - the day of whoever reads it
    if verdict is Verdict.PASS and not over:
        message = f"reference {name} passed, and was expected to fail {known}. Take its xfail out"
        report.outcome, report.longrepr = "failed", message
        return Verdict.FAIL, message
    if verdict is not Verdict.FAIL:
        return verdict, reason
    run = item.funcargs.get("run")  # type: ignore[attr-defined]
    last = run.comparisons.last if isinstance(run, Run) else None
    asked = (reference.statistic, reference.threshold)
    if last is None or last.holds is not False or (last.number.statistic, last.threshold) != asked:
        return verdict, reason
    if over:
        return verdict, f"{reason} (it was expected {known}; that day is over)"
    message = f"expected {known} ({reason})"
    report.outcome, report.wasxfail = "skipped", message  # as pytest's own marker does
    return Verdict.XFAIL, message


def declared_test(item: pytest.Item, lines: dict[int, int | None] | None = None) -> Declared | None:
    """The task that a test waits for; None for a test of another kind.

    `lines` keeps those of functions by identity: pytest would look for the file of each of thousands of cases.
    """
    run, check = key_of(item, "run", RunKey), key_of(item, "health", CheckKey)
    if run is not None:
        reference = item.callspec.params.get("reference")  # type: ignore[attr-defined]  # it has a run
        name = reference.name if isinstance(reference, Reference) else None
        return Declared(test=item.nodeid, run=str(run), repeats=run.repeats, reference=name, line=_line(item, lines))
    if check is not None:
        return Declared(test=item.nodeid, check=check.check, slot=check.slot, line=_line(item, lines))
    return None


def _line(item: pytest.Item, lines: dict[int, int | None] | None) -> int | None:
    made = getattr(item, "obj", item)
    function = id(getattr(made, "__func__", made))
    if lines is not None and function in lines:
        return lines[function]
    line = item.location[1]
    from_one = None if line is None else line + 1
    if lines is not None:
        lines[function] = from_one
    return from_one


def declared_tests(items: Sequence[pytest.Item]) -> list[Declared]:
    """Every test of ours among these, in their order."""
    lines: dict[int, int | None] = {}
    return [test for item in items if (test := declared_test(item, lines)) is not None]


def known_facts(test: Declared, bench: Bench, store: RecordStore | None = None) -> Mapping[str, Any]:
    """Properties of a test that ended before it reported any: those of its run or check, as far as known."""
    if test.check is not None:
        check = store.checks.get(test.check) if store is not None else None
        made = check or bench.unmade_check(test.check)
        return place_of(test) | facts_of_check(made, test.slot, made=check is not None)
    run = test.run or ""
    record = store.runs.get(run) if store is not None else None
    made_or_not = record or bench.unmade(run)
    of_run = facts_of_run(made_or_not, test.repeats, made=record is not None)
    named = (reference for reference in made_or_not.recipe.references if reference.name == test.reference)
    applied = [facts_of_reference(reference) for reference in named]
    return {**place_of(test), **of_run, **(applied[0] if applied else {})}
