"""Turns a threshold beyond the hardware into an error of collection, and doubtful ones into warnings."""

import warnings
from collections.abc import Generator, Iterator, Sequence

import pytest

from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.plugin import options
from pytest_llmbench.plugin.bench import bench_of
from pytest_llmbench.plugin.collection.checks import key_of
from pytest_llmbench.plugin.collection.parametrize import RunKey
from pytest_llmbench.plugin.ours import FeasibilityWarning
from pytest_llmbench.session.forecast import demand_of, doubts


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> Generator[None]:
    """Judge the selected tests. This hook is outermost, so that `-k` and `--last-failed` have run."""
    result = yield
    if options.plan_only(session.config):  # the plan itself shows such thresholds
        return result
    asked = list(_concerns(items))
    doubted = {text: item for item, text, impossible in asked if not impossible}
    unwanted = {text for text, item in doubted.items() if _warning_is_error(item, text)}
    refused = [item for item, text, impossible in asked if impossible or text in unwanted]
    for item, text, impossible in asked:
        if impossible or text in unwanted:
            _report(item, text)
    if refused:
        session.config.hook.pytest_deselected(items=refused)
        items[:] = [item for item in items if item not in refused]
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Fail a plan with an impossible threshold, as one with an impossible run."""
    result = yield
    if options.plan_only(session.config) and any(impossible for _, _, impossible in _concerns(session.items)):
        session.testsfailed += 1
    return result


def _concerns(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, str, bool]]:
    """Doubts about each test's run and its bound, on the GPUs that it would get; True for an impossible bound.

    A run that is replayed is judged by what it measured, on whatever it ran.
    """
    of_runs: dict[str, list[str]] = {}
    for item in items:
        key = key_of(item, "run", RunKey)
        if key is None:
            continue
        bench = bench_of(item.config)
        run, settings = bench.choices[key], bench.settings
        if run.replayed is not None:
            continue
        if key not in of_runs:
            of_runs[key] = list(doubts(run.recipe, settings))
        yield from ((item, text, False) for text in of_runs[key])
        reference = item.callspec.params.get("reference")  # type: ignore[attr-defined]
        demand = demand_of(reference, run.recipe, settings) if isinstance(reference, Reference) else None
        if demand is not None and demand.bold:
            yield item, str(demand), demand.impossible


def _report(item: pytest.Item, text: str) -> None:
    # With its name the text is unlike any other's: xdist shows equal ones once, taking them for those of two workers.
    longrepr = f"{text}\n{item.nodeid}"
    report = pytest.CollectReport(nodeid=item.nodeid, outcome="failed", longrepr=longrepr, result=[])
    item.ihook.pytest_collectreport(report=report)


def _warning_is_error(item: pytest.Item, text: str) -> bool:
    """Warn, and return whether the user's filters make an error of that."""
    # Of several workers that collect the same tests, the first alone is heard.
    heard = getattr(item.config, "workerinput", {}).get("workerid", "gw0") == "gw0"
    with warnings.catch_warnings(record=not heard):
        try:
            item.warn(FeasibilityWarning(text))
        except FeasibilityWarning:
            return True
    return False
