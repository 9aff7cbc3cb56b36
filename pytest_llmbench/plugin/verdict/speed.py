"""Green means judged: which runs of a session have no verdict on their speed, why, and what to do."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pytest_llmbench.cluster.runs import RunSpec
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.engines.base import get_engine, statistics_of
from pytest_llmbench.plugin.verdict.run import Run
from pytest_llmbench.reporting.ci.verdict import NOTHING_JUDGED
from pytest_llmbench.session.record_store import Glance

EXIT_CODE = NOTHING_JUDGED

_JUDGED = {str(Verdict.PASS), str(Verdict.FAIL), str(Verdict.INCONCLUSIVE), str(Verdict.XFAIL)}


def compared(run: Run, reference: Reference | None) -> list[str]:
    """The statistics of speed that a test compared with a threshold, but for one that is only a floor."""
    floor = reference if reference is not None and reference.floor else None
    bounds = {f"{op} {bound.plain}" for op, bound in floor.bounds} if floor is not None else set()
    known = statistics_of(get_engine(run.record.recipe.engine))
    found = [
        measured.statistic
        for measured in run.used
        if known[measured.statistic].of_speed
        and measured.threshold is not None
        and not (floor is not None and measured.statistic == floor.statistic and measured.threshold in bounds)
    ]
    return list(dict.fromkeys(found))


def not_judged(
    runs: Sequence[RunSpec], rows: Iterable[Mapping[str, Any]], made: Mapping[str, Glance]
) -> dict[str, list[str]]:
    """The runs without a verdict on their speed, by the reason.

    A run that is an ERROR says so itself, in each of its tests.

    Args:
        runs: all of the session.
        rows: the properties of its tests.
        made: the facts of its finished runs.
    """
    of_runs: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        of_runs.setdefault(str(row.get("run")), []).append(row)
    said: dict[str, list[str]] = {}
    for run in runs:
        tests, glance = of_runs.get(run.key, []), made.get(run.key)
        judged = any(test["verdict"] in _JUDGED and test.get("speed_judged") for test in tests)
        if not judged and any(test["verdict"] != Verdict.ERROR for test in tests):
            gated = glance is not None and glance.problem is not None
            said.setdefault(_gated() if gated else _say(run, tests), []).append(run.key)
    return said


def lines(said: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a line for each cause."""
    for why, runs in said.items():
        yield f"NO SPEED WAS JUDGED for {', '.join(runs)}: {why}"


def _gated() -> str:
    return "too few nodes passed the checks for this run. Repair the nodes"


def _say(run: RunSpec, tests: Sequence[Mapping[str, Any]]) -> str:
    known = statistics_of(get_engine(run.recipe.engine))
    asked = [reference for reference in run.recipe.references if known[reference.statistic].of_speed]
    floors = [reference.name for reference in asked if reference.floor]
    bounds = [reference.name for reference in asked if not reference.floor]
    skipped = {str(test.get("reference")) for test in tests if test["verdict"] == Verdict.SKIP}
    left_out = [name for name in bounds if name not in skipped]
    causes = [
        f"{_all(names)} {(one if len(names) == 1 else many)}"
        for names, one, many in (
            ([name for name in bounds if name in skipped], "was skipped", "were skipped"),
            (left_out, "was compared by no test", "were compared by no test"),
            (floors, "is only a floor", "are only floors"),
        )
        if names
    ]
    why = ", ".join(causes) or f"recipe {run.recipe.name} has no reference on speed"
    return f"{why}. {_advice(run, bool(left_out))}"


def _advice(run: RunSpec, left_out: bool) -> str:
    if left_out:
        return "Select the tests that compare it"
    if run.recipe.scale == "smoke":
        return "Thresholds for a machine apply at --scale full only, on the hardware that they are for"
    return (
        f"Write a reference for this machine: in its system file, references: {run.recipe.name}: "
        '(how-to guide "Set your own threshold")'
    )


def _all(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
