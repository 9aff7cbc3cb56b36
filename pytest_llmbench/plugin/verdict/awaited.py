"""The work of the fixtures: they wait for the record of a run or a check, and end a test that it cannot judge."""

from collections.abc import Iterator

import pytest

from pytest_llmbench.cluster.runs import repeat_key
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import RunRecord, Verdict
from pytest_llmbench.judging.references import why_not_applicable
from pytest_llmbench.plugin.bench import bench_of
from pytest_llmbench.plugin.collection.checks import CheckKey, Health
from pytest_llmbench.plugin.ours import is_begun
from pytest_llmbench.plugin.verdict import outcome
from pytest_llmbench.plugin.verdict.rerun import Rerun
from pytest_llmbench.plugin.verdict.run import Run
from pytest_llmbench.plugin.verdict.several import one_run
from pytest_llmbench.session.record_store import AnyRecord


def judged_run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Yield the run of a test, and note at the end what the test asked of it."""
    repeats = getattr(getattr(request, "param", None), "repeats", 1)
    records = [_awaited(request, RunRecord, "recipe", number) for number in range(1, repeats + 1)]
    outcome.note(request.node, **outcome.facts_of_run(records[0], repeats))
    for record in records:
        if record.problem is not None and record.problem.kind == "gated":
            pytest.skip(record.problem.message)
        if record.problem is not None:
            pytest.fail(outcome.broken(record), pytrace=False)
    if (twice := one_run(records)) is not None:
        pytest.fail(twice, pytrace=False)
    state = bench_of(request.config)
    rerun = None
    if state.settings.rerun and state.waiter is not None:
        limit = state.settings.time_limit_min(records[0].recipe)
        rerun = Rerun(waiter=state.waiter, series=records[0].key, limit_min=limit)
    run = Run(*records, rerun=rerun)
    yield run
    outcome.note_measured(request.node, run, request.node.callspec.params.get("reference"))


def applied_reference(request: pytest.FixtureRequest, run: Run) -> Reference:
    """The reference of a test, if it is for the machine of the run."""
    reference: Reference = request.param
    outcome.note(request.node, **outcome.facts_of_reference(reference))
    not_for_us = why_not_applicable(reference, run.machine)
    metric = run.record.metrics.get(reference.statistic)
    if not_for_us is not None:
        measured = run.measured(reference.statistic) if metric else "nothing"
        pytest.skip(f"{not_for_us}; measured {reference.statistic}: {measured}")
    if metric is None and run.record.recipe.scale == "smoke":
        pytest.skip(f"{reference.statistic} has no meaning for the tiny variant on this machine: {run.machine}")
    run.measured(reference.statistic)
    return reference


def judged_health(request: pytest.FixtureRequest) -> Health:
    """The result of a check of a test, for its node."""
    record = _awaited(request, HealthRecord, "check")
    key: CheckKey = request.param
    outcome.note(request.node, **outcome.facts_of_check(record, key.slot))
    verdict, told = record.state(key.slot)
    if verdict is Verdict.SKIP:
        pytest.skip(told)
    if verdict is Verdict.ERROR:
        pytest.fail(f"cannot be judged: {told}\nhealth record: {record.path}", pytrace=False)
    health = Health(record, key.slot)
    outcome.note(request.node, **dict(health.properties()))
    return health


def _awaited(request: pytest.FixtureRequest, kind: type[AnyRecord], subject: str, number: int = 1) -> AnyRecord:
    """The record that a fixture is about, as soon as it is there; of several runs that with a number."""
    # Without a test that names the fixture, the session may not have begun.
    waiter = bench_of(request.config).waiter if is_begun(request.config) else None
    key = getattr(request, "param", None)
    if waiter is None or key is None:
        pytest.fail(
            f"the fixture `{request.fixturename}` needs to know its {subject} at collection: name it among the "
            "arguments of the test or of a fixture, not in getfixturevalue",
            pytrace=False,
        )
    return waiter.wait(kind, key.check if isinstance(key, CheckKey) else repeat_key(key, number))
