"""Makes a threshold beyond the hardware an error of collection, and a bold one a warning."""

import warnings
from collections.abc import Generator, Iterator, Sequence

import pytest

from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.judging.feasibility import Demand
from pytest_llmbench.plugin import options
from pytest_llmbench.plugin.bench import bench_of
from pytest_llmbench.plugin.collection.checks import key_of
from pytest_llmbench.plugin.collection.parametrize import RunKey
from pytest_llmbench.plugin.ours import FeasibilityWarning
from pytest_llmbench.session.planning import demand_of


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> Generator[None]:
    """Judge the tests that everything else has left: outermost, so that `-k` and `--last-failed` came first."""
    result = yield
    if options.plan_only(session.config):  # the plan itself shows such thresholds
        return result
    asked = list(_demands(items))
    doubted = {str(demand): item for item, demand in asked if demand.bold and not demand.impossible}
    unwanted = {text for text, item in doubted.items() if _warning_is_error(item, text)}
    refused = [item for item, demand in asked if demand.impossible or str(demand) in unwanted]
    for item, demand in asked:
        if item in refused:
            _report(item, str(demand))
    if refused:
        session.config.hook.pytest_deselected(items=refused)
        items[:] = [item for item in items if item not in refused]
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Fail a plan with an impossible threshold, as one with an impossible run."""
    result = yield
    if options.plan_only(session.config) and any(demand.impossible for _, demand in _demands(session.items)):
        session.testsfailed += 1
    return result


def _demands(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, Demand]]:
    """Demand of each test on the GPUs that its run would get, if it bounds the speed.

    A run that is replayed is judged by what it measured, on whatever it ran.
    """
    for item in items:
        key = key_of(item, "run", RunKey)
        reference = item.callspec.params.get("reference") if key is not None else None  # type: ignore[attr-defined]
        if key is None or not isinstance(reference, Reference):
            continue
        bench = bench_of(item.config)
        run = bench.choices[key]
        demand = demand_of(reference, run.recipe, bench.settings) if run.replayed is None else None
        if demand is not None:
            yield item, demand


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
