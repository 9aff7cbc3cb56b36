"""Every test of ours ends in exactly one verdict, written into its report's properties.

Properties are plain text and numbers: they cross xdist and become JUnit `<property>` elements.
"""

import datetime as dt
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pytest_llmbench.cluster.runs import Declared, repeat_key
from pytest_llmbench.core.errors import InconclusiveError, LLMBenchError
from pytest_llmbench.core.quantity import Quantity, counted
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.early import EarlyVerdict
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import RunRecord, Verdict
from pytest_llmbench.judging.interval.decide import RULE, Decision
from pytest_llmbench.plugin.options import options_of
from pytest_llmbench.plugin.verdict import speed
from pytest_llmbench.plugin.verdict.compare import JudgedComparison, Number
from pytest_llmbench.plugin.verdict.run import Run


def place_of(test: Declared) -> dict[str, Any]:
    """Properties that say where a test is."""
    return {
        "test": test.test,  #: test property test: node id of the test, by which pytest selects it
        "file": test.file,  #: test property file: its file, relative to pytest's root folder
        #: test property line: line of its function there; absent where pytest does not tell
        **({"line": test.line} if test.line is not None else {}),
    }


def facts_of_run(record: RunRecord, repeats: int = 1, *, made: bool = True) -> dict[str, Any]:
    """Properties of a test's report about its run.

    Args:
        record: the run, or the first of several.
        repeats: number of runs that are judged together.
        made: whether it was; else there is no evidence to point to.
    """
    runs = [repeat_key(record.key, number) for number in range(1, repeats + 1)]
    planned = {
        #: property runs: names of the runs that are judged together, separated by commas; absent for a single one
        **({"runs": ",".join(runs)} if repeats > 1 else {}),
        "run": record.key,  #: property run: the recipe, or the recipe and its group of nodes; the first of several
        "recipe": record.recipe.name,  #: property recipe: recipe
        "scale": record.recipe.scale,  #: property scale: `full` or `smoke`
        "system": record.system,  #: property system: system
        "cluster": record.cluster,  #: property cluster: `slurm`, `local`, `debug` or `replay`
        "nodes": record.nodes,  #: property nodes: nodes of the run
        "ranks": record.ranks,  #: property ranks: ranks in all
        "gpus": record.gpus,  #: property gpus: GPUs in all
        #: property simulated: the fault of `--llmbench-simulate`; absent without it
        **({"simulated": record.simulated} if record.simulated is not None else {}),
    }
    if not made:
        return planned
    return planned | {
        "hosts": ",".join(record.hosts),  #: property hosts: host names, separated by commas
        "job_id": record.job_id or "",  #: property job_id: Slurm job; locally the process id of the launcher
        "run_record": str(record.path),  #: property run_record: path of the run record
        "record": record.within_session,  #: property record: the same, relative to the session's folder
        #: property run_seconds: seconds that the run took, without what it waited for Slurm; absent where it did not
        #:  start
        **({"run_seconds": round(record.took_s, 3)} if record.took_s > 0.0 else {}),
        "log": str(record.logs),  #: property log: folder of what the ranks printed, or where the replayed logs are
        #: property findings: [Findings](#findings) about the run, whatever the verdict; empty where there are none
        "findings": "; ".join(record.findings),
        #: property superseded: with `--llmbench-retries`: why each earlier attempt was repeated; absent without one
        **({"superseded": "; ".join(record.superseded)} if record.superseded else {}),
        **(_facts_of_looks(record.early) if record.early is not None else {}),
    }


def _facts_of_looks(early: EarlyVerdict) -> dict[str, Any]:
    """Properties of a test of a session with `--llmbench-early-verdict`."""
    return {
        #: property early_verdict: with `--llmbench-early-verdict`: the step that decided, or why it ran whole
        "early_verdict": str(early),
        "steps_done": early.done,  #: property steps_done: with `--llmbench-early-verdict`: steps of the run
        "steps_planned": early.planned,  #: property steps_planned: with `--llmbench-early-verdict`: steps of the recipe
        #: property hours_saved: with `--llmbench-early-verdict`: time of steps not made, such as `0.5 GPU-hours`
        "hours_saved": f"{early.hours_saved:.4g} {early.unit}",
        "hours_spent": f"{early.hours_spent:.4g} {early.unit}",  #: property hours_spent: likewise, of the run
    }


def facts_of_check(record: HealthRecord, slot: int | None, *, made: bool = True) -> dict[str, Any]:
    """Properties of a test's report about its check and node, likewise."""
    host = record.host(slot)
    planned = {
        "check": record.check,  #: check property check: check
        "family": record.family,  #: check property family: its family
        #: check property slot: number of the node in the session, from 0; empty for all nodes together
        "slot": "" if slot is None else slot,
        "host": host or "",  #: check property host: the node; empty for all nodes together
        "hosts": host or ",".join(record.hosts),  #: check property hosts: the node, or all of them, separated by commas
        "system": record.system,  #: check property system: system
        "cluster": record.cluster,  #: check property cluster: `slurm`, `local`, `debug` or `replay`
        "nodes": 1 if slot is not None else len(record.hosts),  #: check property nodes: 1, or the number of all nodes
    }
    #: check property job_id: Slurm job that holds the nodes
    #: check property health_record: path of the [health record](validation.md#health-record)
    #: check property record: the same, relative to the session's folder
    #: check property run_seconds: seconds that the check took for all nodes; absent where that is unknown
    if not made:
        return planned
    began, ended = record.timings.started, record.timings.ended
    took = {"run_seconds": round(ended - began, 3)} if began is not None and ended is not None else {}
    paths = {"health_record": str(record.path), "record": record.within_session}
    return planned | {"job_id": record.job_id or ""} | paths | took


def facts_of_reference(reference: Reference) -> dict[str, Any]:
    """Properties of a test's report about the threshold that it applies, also without a measurement."""
    #: property reference: name of the reference, if the test has one
    #: property threshold: the bound or bounds, with unit
    facts = {"reference": reference.name, "statistic": reference.statistic, "threshold": reference.threshold}
    #: property xfail: until when the reference is expected to be missed, and the reason; absent of any other
    return facts | ({} if reference.xfail is None else {"xfail": str(reference.xfail)})


def note(item: pytest.Item, **properties: Any) -> None:
    """Set properties of a test; earlier values of the same name are replaced."""
    others = [(name, value) for name, value in item.user_properties if name not in properties]
    item.user_properties[:] = [*others, *properties.items()]


def note_measured(item: pytest.Item, run: Run, reference: Reference | None = None) -> None:
    """Write down the number a test judged: the last one it compared, else the last one it asked for."""
    if speeds := speed.find_judged_speeds(run, reference):
        #: property speed_judged: statistics of speed that it compared with a threshold that is not a floor, separated
        #:  by
        #:  commas; absent where there are none
        note(item, speed_judged=",".join(speeds))
    if (worst := run.losses.worst) is not None:
        golden = {"judged_by": "golden", "threshold": f"<= {worst.tolerance:.6g} nat"}
        note(item, statistic="losses", value=worst.away, unit="nat", **golden)
    if len(run.records) > 1:
        note(item, runs=",".join(record.key for record in run.records))
    judged = run.comparisons.last
    if judged is None and not run.used:
        return
    number = run.used[-1].number if judged is None else judged.number
    decisive = number if judged is None else judged.decisive
    #: property statistic: the measured statistic; without a measurement, the reference's
    #: property unit: its unit
    #: property value: the number; of several runs their mean, or that of the run that decided where each was judged
    note(item, statistic=number.statistic, value=decisive.metric.value, unit=number.metric.unit)
    if number.parts:
        #: property each_run: the number in each of `runs`, in `unit`, separated by commas
        note(item, each_run=",".join(f"{part.metric.value:.6g}" for part in number.parts))
    if judged is None:
        return
    if "threshold" not in dict(item.user_properties):
        note(item, threshold=judged.threshold)
    note(item, **_judged_by(judged))
    if judged.cause is not None:
        #: property cause: cause of a missed speed, its [kind](#causes) first; absent if none was missed
        note(item, cause=str(judged.cause))


def _judged_by(judged: JudgedComparison) -> dict[str, Any]:
    """Properties that say by what a comparison was judged, and how sure that is."""
    decision = judged.decision
    #: property judged_by: `interval`, of the steady part of the run, `rule`, the statistic's own, or `golden` losses
    if decision is None:
        return {"judged_by": "rule"}
    known = {
        #: property steady_part: the number that was judged, if it is on the other side of the threshold than `value`
        "steady_part": _of_steady_part(judged.decisive, decision),
        "low": decision.low,  #: property low: lower end of the interval, in `unit`; absent for a run too short for one
        "high": decision.high,  #: property high: upper end, likewise
        "steady": decision.steady,  #: property steady: the number in the steady part of the run alone, in `unit`
    }
    return {
        "judged_by": "interval",
        "claim": decision.claim,  #: property claim: subject of the verdict: `system`, any run of it, or this `run`
        "alpha": decision.alpha,  #: property alpha: probability that the interval is wrong, on each side
        "interval_rule": RULE,  #: property interval_rule: name and version of the rule of the interval
        **{name: value for name, value in known.items() if value is not None},
    }


def _of_steady_part(number: Number, decision: Decision) -> str | None:
    steady = number.record.steady
    if steady is None or decision.steady is None or decision.holds in {None, decision.by_rule}:
        return None
    slow = counted(steady.left_out, "slow step")
    return f"{Quantity(decision.steady, number.metric.unit)} was judged: the steady part of the run, after {slow}"


def broken(record: RunRecord) -> str:
    """Say why a run cannot be judged, and where to look."""
    problem = record.problem
    if problem is None:
        return ""
    lines = [f"run {record.key} cannot be judged ({problem.kind}): {problem.message}"]
    if metric := record.unjudged.get(record.recipe.statistic_of_record):
        lines.append(f"its log gives {record.recipe.statistic_of_record} {metric.quantity}, which is not a verdict")
    if record.hosts:
        lines.append(f"on: {', '.join(record.hosts)}{record.job}")
    lines.append(f"run record: {record.path}")
    if problem.log:
        lines.append(f"log: {problem.log}")
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


def judge(
    item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport, known: Callable[[], Mapping[str, Any]]
) -> None:
    """Give a test of ours its verdict, once, as soon as it is decided.

    Args:
        item: the test.
        call: how its phase went.
        report: of that phase.
        known: facts of the time before it began.

    An exception in the test body other than a failed assertion (units that do not match, a statistic without a meaning)
    means that the test could not judge. pytest reports a failure of the setup phase as an error, in the terminal and in
    JUnit, so such a report is turned into one.
    """
    if report.when == "teardown" and "verdict" in dict(item.user_properties):
        return
    verdict, reason = _verdict(call, report)
    if verdict is None:
        return
    verdict, reason = settle_expected(item, report, verdict, reason)
    # What broke may have come before its run, check or reference could be noted.
    noted = dict(item.user_properties)
    note(item, **{name: fact for name, fact in known().items() if name not in noted})
    if verdict is Verdict.ERROR and report.when == "call":
        report.when = "setup"
        if call.excinfo is not None and call.excinfo.errisinstance(LLMBenchError):
            report.longrepr = str(call.excinfo.value)
    if verdict is Verdict.INCONCLUSIVE:
        report.longrepr = str(call.excinfo.value) if call.excinfo else ""
        if options_of(item.config).inconclusive == "warn":
            path, line, _ = item.location
            report.outcome, report.longrepr = "skipped", (path, (line or 0) + 1, f"INCONCLUSIVE: {reason}")
    #: test property verdict: `PASS`, `FAIL`, `INCONCLUSIVE`, `XFAIL`, `ERROR` or `SKIP`
    #: test property reason: first line of why, for any verdict but PASS
    note(item, verdict=str(verdict), **({"reason": reason} if reason else {}))
    report.user_properties = list(item.user_properties)


def verdict_of(report: pytest.TestReport) -> Mapping[str, object] | None:
    """The properties of a finished test of ours, None for a report of any other kind."""
    properties = dict(report.user_properties)
    return properties if report.when == "teardown" and "verdict" in properties else None


def _verdict(call: pytest.CallInfo[None], report: pytest.TestReport) -> tuple[Verdict | None, str]:
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


def settle_expected(item: pytest.Item, report: pytest.TestReport, verdict: Verdict, reason: str) -> tuple[Verdict, str]:
    """The verdict and its reason where the test's reference expects a failure; the report follows.

    Nothing else changes: not an ERROR, not an INCONCLUSIVE, and not a failure of anything but that threshold.
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
    if verdict is not Verdict.FAIL or not _missed(item.funcargs.get("run"), reference):  # type: ignore[attr-defined]
        return verdict, reason
    if over:
        return verdict, f"{reason} (it was expected {known}; that day is over)"
    message = f"expected {known} ({reason})"
    report.outcome, report.wasxfail = "skipped", message  # as pytest's own marker does
    return Verdict.XFAIL, message


def _missed(run: object, reference: Reference) -> bool:
    """Whether the comparison that ended the test is that of the reference, and its number misses the bound."""
    last = run.comparisons.last if isinstance(run, Run) else None
    if last is None or (last.number.statistic, last.threshold) != (reference.statistic, reference.threshold):
        return False
    return last.holds is False
