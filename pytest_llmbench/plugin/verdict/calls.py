"""Tests that wait for a run or a check: the work of their fixtures, and their calls.

Each comparison in a call has to count, and `--llmbench-inconclusive rerun` repeats the call with more runs.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import pytest

from pytest_llmbench.cluster.runs import repeat_key
from pytest_llmbench.core.errors import InconclusiveError, LLMBenchError, RunError
from pytest_llmbench.core.quantity import counted
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import RunRecord, Verdict
from pytest_llmbench.plugin.bench import Bench, bench_of
from pytest_llmbench.plugin.collection.checks import CheckKey, Health, key_of
from pytest_llmbench.plugin.collection.parametrize import RunKey
from pytest_llmbench.plugin.ours import is_begun
from pytest_llmbench.plugin.pytest_private import runtestprotocol
from pytest_llmbench.plugin.verdict import facts, outcome
from pytest_llmbench.plugin.verdict.compare import find_copy
from pytest_llmbench.plugin.verdict.run import Run
from pytest_llmbench.session.record_store import AnyRecord

RUN = pytest.StashKey[Run]()
HEALTH = pytest.StashKey[Health]()
NOT_MADE = "No further run was made:"


@dataclass(slots=True)
class Attempt:
    """Progress of `--llmbench-inconclusive rerun` with one test."""

    runs: int = 0  # number of runs that the next call judges; 0 until runs are added
    look: int = 0  # number of that look
    again: bool = False  # whether to call the test again
    refused: str = ""  # reason why a further run was refused


ATTEMPT = pytest.StashKey[Attempt]()


def wait_for_run(request: pytest.FixtureRequest) -> Iterator[Run]:
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
            pytest.fail(outcome.describe_problem(record), pytrace=False)
    if (copy := find_copy(records)) is not None:
        pytest.fail(copy, pytrace=False)
    run = item.stash[RUN] = Run(*records, may_repeat=ATTEMPT in item.stash)
    yield run
    outcome.note_measured(item, run)
    run.comparisons.closed = True
    try:
        if run.comparisons.counted is not None:
            refuse_idle_comparisons(run, run.comparisons.counted)
    except LLMBenchError as error:  # of the teardown of another fixture: the call has its verdict
        outcome.note(item, verdict=str(Verdict.ERROR), reason=str(error).partition("\n")[0])
        pytest.fail(str(error), pytrace=False)


def find_reference(request: pytest.FixtureRequest, run: Run) -> Reference:
    """The reference of a test as it counts on the machine of the run, if it is for that."""
    reference: Reference = request.param
    metric, here = run.record.metrics.get(reference.statistic), run.reference(reference)
    outcome.note(request.node, **facts.facts_of_reference(reference if isinstance(here, str) else here))
    if isinstance(here, str):
        measured = run.measured(reference.statistic) if metric else "nothing"
        pytest.skip(f"{here}; measured {reference.statistic}: {measured}")
    if metric is None and run.record.recipe.scale == "smoke":
        pytest.skip(f"{reference.statistic} has no meaning for the tiny variant on this machine: {run.machine}")
    run.measured(reference.statistic)
    run.applied = here
    return here


def wait_for_health(request: pytest.FixtureRequest) -> Health:
    """The result of a check of a test, for its node."""
    record = _wait_for_record(request, HealthRecord, "check")
    key: CheckKey = request.param
    outcome.note(request.node, **facts.facts_of_check(record, key.slot))
    verdict, message = record.state(key.slot)
    if verdict is Verdict.SKIP:
        pytest.skip(message)
    if verdict is Verdict.ERROR:
        pytest.fail(f"cannot be judged: {message}\nhealth record: {record.path}", pytrace=False)
    health = request.node.stash[HEALTH] = Health(record, key.slot)
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


class TestCalls:
    """Hooks around the calls of tests that wait for a run."""

    __test__ = False

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Repeat a test, as pytest-rerunfailures does, as long as more runs can decide what these leave open.

        Its fixtures are set up again, so that each of them sees all runs. Only the last call is reported.
        """
        if key_of(item, "run", RunKey) is None or not self._bench.settings.rerun or self._bench.waiter is None:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        attempt = item.stash[ATTEMPT] = Attempt()
        properties = list(item.user_properties)
        while True:
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
            broken = any(report.failed and report.when != "call" for report in reports)
            stopped = item.session.shouldstop or item.session.shouldfail
            if broken or stopped or not attempt.again:
                break
            item.user_properties[:], attempt.again = properties, False
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Refuse a test that passes while one of its comparisons is without effect, or its node has faults.

        Raises RunError if the truth of one was not asked, or one is false, and InconclusiveError if one is undecided,
        with the reason why further runs are refused.
        """
        run, health = item.stash.get(RUN, None), item.stash.get(HEALTH, None)
        try:
            result = yield
            if health is not None:
                _refuse_faults(health)
            if run is not None:
                refuse_idle_comparisons(run, 0)
                if run.applied is not None:
                    _refuse_unasked_reference(run, run.applied)
                run.comparisons.counted = len(run.comparisons)
        except InconclusiveError as error:
            attempt = item.stash.get(ATTEMPT, None)
            if attempt is None or run is None:
                raise
            reason = attempt.refused or self._find_reason_against(run)
            if reason:
                first, *rest = str(error).split("\n")
                raise InconclusiveError("\n".join([f"{first}. {NOT_MADE} {reason}", *rest])) from error
            attempt.again, attempt.runs, attempt.look = True, 2 * len(run.records), run.look + 1
            raise
        return result

    def _find_reason_against(self, run: Run) -> str:
        """The reason why more runs would be useless, or lack the time; empty if they can decide."""
        records = run.records
        if records[0].cluster == "replay":
            return "logs are replayed"
        decisions = [comparison.judged.decision for comparison in run.comparisons if comparison.asked]
        needed = next((made.needed for made in decisions if made is not None and made.needed is not None), None)
        if needed is None:
            return "more runs do not decide that"
        limit_min = self._bench.settings.time_limit_min(records[0].recipe)
        room = int(limit_min * 60 / max(1.0, *(record.took_s for record in records)))
        wanted = max(needed, 2 * len(records))
        if wanted <= room:
            return ""
        return (
            f"it takes about {wanted} runs in all, and the time limit of {limit_min} min has room for {room} (give a "
            "longer --time)"
        )


def _refuse_faults(health: Health) -> None:
    """Check that a test that is about to pass has gone through the faults of its node, to let each of them pass.

    Raises RunError `does_not_hold`.
    """
    if health.faults and not health.faults.gone_through:
        raise RunError(
            "does_not_hold",
            f"{health.host or health.record.check} has {counted(len(health.faults), 'fault')}, and the test passed. "
            f"Write `assert not health.faults, health.explanation`; to allow some, go through them one by one\n"
            f"{health.explanation}",
        )  #: error does_not_hold: a node has faults, and the test passed


def _refuse_unasked_reference(run: Run, reference: Reference) -> None:
    """Check that a test that is about to pass has compared its number with each bound of its reference.

    The report gives that threshold with the verdict. Raises RunError `not_asked`.
    """
    for op, bound in reference.bounds:
        if not any(made.applies(reference.statistic, op, bound) for made in run.comparisons):
            raise RunError(
                "not_asked",
                f"reference {reference.name} was asked for, and `{reference.statistic} {op} {bound}` was not: write "
                "`assert run.measured(reference.statistic) in reference`",
            )


def refuse_idle_comparisons(run: Run, since: int) -> None:
    """Check that each comparison of a test that is about to pass was asked for its truth, and holds.

    A comparison without effect would look like a verdict: one that is left unasked, or one that is false while the
    test passes, as in `if run.throughput >= bound: ...`, `x or y`, `not x`, or under `pytest.raises`.

    The first `since` comparisons are known to count.

    Raises RunError `not_asked` or `does_not_hold`, and InconclusiveError if one is undecided and the test went on.
    """
    for made in run.comparisons[since:]:
        if not made.asked:  #: error not_asked: a comparison of the test was made, and never asked whether it holds
            raise RunError(
                "not_asked",
                f"{made.place}: `{made!r}` judged nothing: the test never asked whether it holds. Write `assert` in "
                "front of it, one comparison in each, and no parentheses around it and its message",
            )
        if not made:  #: error does_not_hold: a comparison of the test does not hold, and the test passed
            raise RunError(
                "does_not_hold",
                f"{made.place}: `{made!r}` does not hold, and the test passed. Write what has to hold, as an `assert` "
                "of its own, without `not`, `or`, `if` or `pytest.raises` around it; to choose by a number, use its "
                "`.value`",
            )
    worst = run.losses.worst
    if worst is not None and worst.beyond:
        raise RunError(
            "does_not_hold",
            f"the losses of run {worst.run} are not the golden ones, in {len(worst.beyond)} steps, and the test "
            "passed: write `assert run.losses in golden`",
        )
