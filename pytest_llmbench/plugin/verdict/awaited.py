"""The work of the fixtures: they wait for the record of a run or a check, and end a test that lacks a measurement."""

from collections.abc import Iterator

import pytest

from pytest_llmbench.cluster.runs import repeat_key
from pytest_llmbench.core.errors import LLMBenchError
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import RunRecord, Verdict
from pytest_llmbench.judging.references import why_not_applicable
from pytest_llmbench.plugin.bench import bench_of
from pytest_llmbench.plugin.collection.checks import CheckKey, Health
from pytest_llmbench.plugin.ours import is_begun
from pytest_llmbench.plugin.verdict import facts, outcome
from pytest_llmbench.plugin.verdict.compare import find_copy
from pytest_llmbench.plugin.verdict.rerun import ATTEMPT, RUN, Attempt, refuse_idle_comparisons
from pytest_llmbench.plugin.verdict.run import Run
from pytest_llmbench.session.record_store import AnyRecord


def judged_run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Yield the run of a test, and note at the end what the test asked of it."""
    item = request.node
    repeats = getattr(getattr(request, "param", None), "repeats", 1)
    attempt = item.stash.get(ATTEMPT, Attempt())
    first = _wait_for_record(request, RunRecord, "recipe")
    waiter = bench_of(request.config).waiter
    if attempt.runs > repeats and waiter is not None:
        waiter.repeat(first.key, attempt.runs, attempt.look)
    others = (_wait_for_record(request, RunRecord, "recipe", n) for n in range(2, max(repeats, attempt.runs) + 1))
    records = [first, *others]
    for record in records[repeats:]:
        if record.problem is not None and record.problem.kind == "not_repeated":
            attempt.refused = record.problem.message
            records = [earlier for earlier in records if earlier.look < attempt.look]
            break
    outcome.note(item, **facts.facts_of_run(first, len(records)))
    for record in records:
        if record.problem is not None and record.problem.kind == "gated":
            pytest.skip(record.problem.message)
        if record.problem is not None:
            pytest.fail(outcome.broken(record), pytrace=False)
    if (copy := find_copy(records)) is not None:
        pytest.fail(copy, pytrace=False)
    run = item.stash[RUN] = Run(*records, may_repeat=ATTEMPT in item.stash)
    yield run
    outcome.note_measured(item, run, item.callspec.params.get("reference"))
    run.comparisons.closed = True
    try:
        refuse_idle_comparisons(run, run.comparisons.counted)
    except LLMBenchError as error:  # of the teardown of another fixture: the call has its verdict
        outcome.note(item, verdict=str(Verdict.ERROR), reason=str(error).partition("\n")[0])
        pytest.fail(str(error), pytrace=False)


def applied_reference(request: pytest.FixtureRequest, run: Run) -> Reference:
    """The reference of a test, if it is for the machine of the run."""
    reference: Reference = request.param
    outcome.note(request.node, **facts.facts_of_reference(reference))
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
    record = _wait_for_record(request, HealthRecord, "check")
    key: CheckKey = request.param
    outcome.note(request.node, **facts.facts_of_check(record, key.slot))
    verdict, message = record.state(key.slot)
    if verdict is Verdict.SKIP:
        pytest.skip(message)
    if verdict is Verdict.ERROR:
        pytest.fail(f"cannot be judged: {message}\nhealth record: {record.path}", pytrace=False)
    health = Health(record, key.slot)
    outcome.note(request.node, **health.properties())
    return health


def _wait_for_record(request: pytest.FixtureRequest, kind: type[AnyRecord], subject: str, number: int = 1) -> AnyRecord:
    """The record that a fixture is about, as soon as it is there; of several runs that with a number."""
    # Unless a test names the fixture among its arguments, the session may still have to begin.
    waiter = bench_of(request.config).waiter if is_begun(request.config) else None
    key = getattr(request, "param", None)
    if waiter is None or key is None:
        pytest.fail(
            f"the fixture `{request.fixturename}` needs to know its {subject} at collection: name it among the "
            "arguments of the test or of a fixture, not in getfixturevalue",
            pytrace=False,
        )
    return waiter.wait(kind, key.check if isinstance(key, CheckKey) else repeat_key(key, number))
