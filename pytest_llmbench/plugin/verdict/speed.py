"""Finds the runs of a session without a verdict on their speed, with reason and cure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pytest_llmbench.cluster.recipes import is_of_another_size
from pytest_llmbench.cluster.runs import RunSpec
from pytest_llmbench.core.quantity import counted, listed
from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.engines.base import asks_for_speed, get_engine, statistics_of
from pytest_llmbench.plugin.verdict.measured import Measured
from pytest_llmbench.plugin.verdict.run import Run
from pytest_llmbench.reporting.verdict import NOTHING_JUDGED
from pytest_llmbench.session.record_store import RunSummary

EXIT_CODE = NOTHING_JUDGED
_GATED = "too few nodes passed the checks for this run. Repair the nodes"

# Reasons that people read in full: the property of the suite has all runs.
_MOST_REASONS = 5
_JUDGED = {str(Verdict.PASS), str(Verdict.FAIL), str(Verdict.INCONCLUSIVE), str(Verdict.XFAIL)}


def find_judged_speeds(run: Run) -> list[str]:
    """The statistics of speed that a test compared with a threshold that a slow run misses.

    A bound that is only a floor, is in the other direction, or was measured itself, is left out.
    """
    floor = run.applied if run.applied is not None and run.applied.floor else None
    bounds = {f"{op} {bound.plain}" for op, bound in floor.bounds} if floor is not None else set()
    speeds = [
        made.number.statistic
        for made in run.comparisons
        if made.asked
        and not isinstance(made.bound, Measured)
        and asks_for_speed(made.number.statistic, run.record.recipe.engine, made.op, made.bound)
        and not (floor is not None and made.number.statistic == floor.statistic and made.judged.threshold in bounds)
    ]
    return list(dict.fromkeys(speeds))


def not_judged(
    runs: Sequence[RunSpec], rows: Iterable[Mapping[str, Any]], made: Mapping[str, RunSummary]
) -> dict[str, list[str]]:
    """The runs without a verdict on their speed, by the reason, from tests' properties and facts of finished runs.

    A run that is an ERROR is left out: each of its tests shows that.
    """
    of_runs: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        of_runs.setdefault(str(row.get("run")), []).append(row)
    alike: dict[str, list[tuple[RunSpec, Sequence[Mapping[str, Any]]]]] = {}
    for run in runs:
        tests, summary = of_runs.get(run.key, []), made.get(run.key)
        judged = any(test["verdict"] in _JUDGED and test.get("speed_judged") for test in tests)
        if not judged and any(test["verdict"] != Verdict.ERROR for test in tests):
            gated = summary is not None and summary.problem is not None
            alike.setdefault(_GATED if gated else _find_reason(run, tests, "NAME"), []).append((run, tests))
    reasons: dict[str, list[str]] = {}
    for reason, found in alike.items():
        names = {run.recipe.name for run, _ in found}
        named = reason if reason == _GATED or len(names) > 1 else _find_reason(*found[0], *names)
        reasons[named] = [run.key for run, _ in found]
    return reasons


def describe_reasons(reasons: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a line for each reason; of very many, one counts the others."""
    lines = [f"NO SPEED WAS JUDGED for {listed(runs)}: {reason}" for reason, runs in reasons.items()]
    yield from lines[:_MOST_REASONS]
    if left := [*reasons.values()][_MOST_REASONS:]:
        runs = sum(map(len, left))
        yield f"NO SPEED WAS JUDGED for {runs} more, for {counted(len(left), 'other reason')}"


def _find_reason(run: RunSpec, tests: Sequence[Mapping[str, Any]], recipe: str) -> str:
    """The reason, and what to do, for recipes of one `recipe` name."""
    engine = run.recipe.engine
    skipped = {str(test.get("reference")) for test in tests if test["verdict"] == Verdict.SKIP}
    floors = {str(test.get("reference")) for test in tests if test.get("floor")}
    known = statistics_of(get_engine(engine))
    by_kind: dict[str, list[str]] = {"skipped": [], "compared by no test": [], "floor": [], "met": []}
    for reference in run.recipe.references:
        away = run.replayed is not None and is_of_another_size(reference, run.replayed.topology)
        if away or not known[reference.statistic].of_speed:
            continue
        met = not any(asks_for_speed(reference.statistic, engine, op, bound) for op, bound in reference.bounds)
        kind = "floor" if reference.floor or reference.name in floors else "met" if met else "compared by no test"
        by_kind["skipped" if kind == "compared by no test" and reference.name in skipped else kind].append(
            reference.name
        )
    for test in tests:
        statistic = known.get(str(test.get("statistic")))
        compared = statistic is not None and statistic.of_speed and test.get("threshold") and test["verdict"] in _JUDGED
        if compared and not test.get("reference"):
            by_kind["met"].append(str(test["test"]))
    words = {
        "skipped": ("was skipped", "were skipped"),
        "compared by no test": ("was compared by no test", "were compared by no test"),
        "floor": ("is only a floor", "are only floors"),
        "met": ("is a bound that every slow run meets", "are bounds that every slow run meets"),
    }
    causes = [f"{_join(names)} {words[kind][len(names) > 1]}" for kind, names in by_kind.items() if names]
    reason = ", ".join(causes) or f"recipe {recipe} has no reference on speed"
    return f"{reason}. {_advise(run, by_kind, recipe)}"


def _advise(run: RunSpec, by_kind: Mapping[str, Sequence[str]], recipe: str) -> str:
    if by_kind["compared by no test"]:
        return "Select the tests that compare it"
    if by_kind["met"]:
        return "Bound a rate by at_least, and a time by at_most"
    if run.recipe.scale == "smoke":
        return "Thresholds for a machine apply at --scale full only, on the hardware that they are for"
    return (
        f"Write a reference for this machine: in its system file, references: {recipe}: "
        '(how-to guide "Set your own threshold")'
    )


def _join(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
