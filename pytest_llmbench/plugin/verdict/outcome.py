"""Every test of ours ends in exactly one verdict, written into its report's properties.

Properties are plain text and numbers: they cross xdist and become JUnit `<property>` elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pytest_llmbench.core.errors import LLMBenchError
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import RunRecord, Verdict
from pytest_llmbench.plugin.verdict import speed
from pytest_llmbench.plugin.verdict.measured import Run


def facts_of_run(record: RunRecord, *, made: bool = True) -> dict[str, Any]:
    """Properties of a test's report about its run.

    Args:
        record: the run.
        made: whether it was; else there is no evidence to point to.
    """
    planned = {
        "run": record.key,
        "recipe": record.recipe.name,
        "scale": record.recipe.scale,
        "system": record.system,
        "cluster": record.cluster,
        "nodes": record.nodes,
        "ranks": record.ranks,
        "gpus": record.gpus,
    }
    if not made:
        return planned
    return planned | {
        "hosts": ",".join(record.hosts),
        "job_id": record.job_id or "",
        "run_record": str(record.path),
        "log": str(record.logs),
        "findings": "; ".join(record.findings),
    }


def facts_of_check(record: HealthRecord, slot: int | None, *, made: bool = True) -> dict[str, Any]:
    """Properties of a test's report about its check and node, likewise."""
    host = record.host(slot)
    planned = {
        "check": record.check,
        "family": record.family,
        "slot": "" if slot is None else slot,
        "host": host or "",
        "hosts": host or ",".join(record.hosts),
        "system": record.system,
        "cluster": record.cluster,
        "nodes": 1 if slot is not None else len(record.hosts),
    }
    return planned | ({"job_id": record.job_id or "", "health_record": str(record.path)} if made else {})


def facts_of_reference(reference: Reference) -> dict[str, Any]:
    """Properties of a test's report about the threshold that it applies, also without a measurement."""
    return {"reference": reference.name, "statistic": reference.statistic, "threshold": reference.threshold}


def note(item: pytest.Item, **properties: Any) -> None:
    """Set properties of a test; earlier values of the same name are replaced."""
    others = [(name, value) for name, value in item.user_properties if name not in properties]
    item.user_properties[:] = [*others, *properties.items()]


def note_measured(item: pytest.Item, run: Run, reference: Reference | None = None) -> None:
    """Write down the number a test judged: the last one it compared, else the last one it asked for."""
    if speeds := speed.compared(run, reference):
        note(item, speed_judged=",".join(speeds))
    compared = [measured for measured in run.used if measured.threshold is not None]
    for measured in (compared or run.used)[-1:]:
        note(item, statistic=measured.statistic, value=measured.value, unit=measured.unit)
        if "threshold" not in dict(item.user_properties) and measured.threshold is not None:
            note(item, threshold=measured.threshold)


def broken(record: RunRecord) -> str:
    """Say why a run cannot be judged, and where to look."""
    problem = record.problem
    if problem is None:
        return ""
    lines = [f"run {record.key} cannot be judged ({problem.kind}): {problem.message}"]
    if told := record.unjudged.get(record.recipe.statistic_of_record):
        lines.append(f"its log gives {record.recipe.statistic_of_record} {told.quantity}, which is not a verdict")
    if record.hosts:
        lines.append(f"on: {', '.join(record.hosts)}" + (f" (job {record.job_id})" if record.job_id else ""))
    lines.append(f"run record: {record.path}")
    if problem.log:
        lines.append(f"log: {problem.log}")
    return "\n".join(lines)


def judge(
    item: pytest.Item,
    call: pytest.CallInfo[None],
    report: pytest.TestReport,
    known: Callable[[], Mapping[str, Any]],
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
    # What broke may have come before its run, check or reference could be noted.
    noted = dict(item.user_properties)
    note(item, **{name: fact for name, fact in known().items() if name not in noted})
    if verdict is Verdict.ERROR and report.when == "call":
        report.when = "setup"
        if call.excinfo is not None and call.excinfo.errisinstance(LLMBenchError):
            report.longrepr = str(call.excinfo.value)
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
