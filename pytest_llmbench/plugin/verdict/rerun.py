"""A test's call: each comparison in it has to count, and `--llmbench-inconclusive rerun` repeats it with more runs."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import pytest

from pytest_llmbench.core.errors import InconclusiveError, RunError
from pytest_llmbench.plugin.bench import Bench
from pytest_llmbench.plugin.collection.checks import key_of
from pytest_llmbench.plugin.collection.parametrize import RunKey
from pytest_llmbench.plugin.pytest_private import runtestprotocol
from pytest_llmbench.plugin.verdict.run import Run

RUN = pytest.StashKey[Run]()
NOT_MADE = "No further run was made:"


@dataclass(slots=True)
class Attempt:
    """Progress of `--llmbench-inconclusive rerun` with one test.

    Attributes:
        runs: number of runs that the next call judges; 0 until runs are added.
        look: number of that look.
        again: whether to call the test again.
        refused: reason why a further run was refused.
    """

    runs: int = 0
    look: int = 0
    again: bool = False
    refused: str = ""


ATTEMPT = pytest.StashKey[Attempt]()


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
        """Refuse a test that passes while one of its comparisons is without effect.

        Raises:
            RunError: the truth of one was left unasked, or one is false.
            InconclusiveError: one is undecided, with the reason why further runs are refused.
        """
        run = item.stash.get(RUN, None)
        try:
            result = yield
            if run is not None:
                refuse_idle_comparisons(run, 0)
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


def refuse_idle_comparisons(run: Run, since: int | None) -> None:
    """Check that each comparison of a test that is about to pass was asked for its truth, and holds.

    A comparison without effect would look like a verdict: one that is left unasked, or one that is false while the
    test passes, as in `if run.throughput >= bound: ...`, `x or y`, `not x`, or under `pytest.raises`.

    Args:
        run: the run of the test.
        since: number of comparisons that are known to count; None where the test failed.

    Raises:
        RunError: `not_asked` or `does_not_hold`.
        InconclusiveError: one is undecided, and the test went on.
    """
    if since is None:
        return
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
