"""Quantities of a run. Comparing one makes a `Comparison`, which is judged where its truth is asked."""

from __future__ import annotations

import dis
import sys
from functools import cached_property
from pathlib import Path
from types import FrameType

from pytest_llmbench.core.errors import InconclusiveError, RunError
from pytest_llmbench.core.quantity import USUAL_BETWEEN_RUNS, BetweenRuns, Quantity
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.records import Metric, RunRecord
from pytest_llmbench.judging.golden import GoldenLosses, Losses
from pytest_llmbench.judging.interval.decide import Op
from pytest_llmbench.plugin.verdict.compare import JudgedComparison, Number, judge
from pytest_llmbench.plugin.verdict.explain import describe, explain, explain_losses, explain_undecided

_PACKAGE = __name__.partition(".")[0]
_EXPLAINED = {">=", ">", "<=", "<", "in"}


class Comparison:
    """`measured >= bound`, at a `place`, file and line: it is judged when `assert` or other code asks for its truth."""

    def __init__(self, measured: Measured, op: Op, bound: Quantity, between: BetweenRuns | None, place: str) -> None:
        self.number = measured.number
        self.op = op
        self.bound = bound
        self.asked = False
        self.place = place
        self._between = between

    @cached_property
    def judged(self) -> JudgedComparison:
        """How it ends."""
        other = self.bound.number if isinstance(self.bound, Measured) else None
        return judge(self.number, self.op, self.bound, self._between, other)

    def applies(self, statistic: str, op: Op, bound: Quantity) -> bool:
        """True if it was asked whether a statistic meets a bound, or does more than meet it."""
        return self.asked and (self.number.statistic, self.op[0]) == (statistic, op[0]) and self.bound == bound

    def __bool__(self) -> bool:
        """True if it holds for certain. Raises InconclusiveError: the number is too uncertain."""
        self.asked = True
        if self.judged.holds is None:
            raise InconclusiveError("\n".join(explain_undecided(self.judged)))
        return self.judged.holds

    def __eq__(self, other: object) -> bool:
        """Compare its truth: `(run.throughput >= bound) == expected`."""
        return bool(self) == other

    __hash__ = None  # type: ignore[assignment]  # two that hold are not one

    def __repr__(self) -> str:
        return f"{self.number.statistic} {self.number.metric.quantity} {self.op} {self.bound}"


class Comparisons(list[Comparison]):
    """The comparisons of one test, in their order.

    Attributes:
        counted: number of them that were seen to count; those of the teardown of fixtures follow.
        closed: whether that test is over.
    """

    counted: int | None = None
    closed = False

    @property
    def last(self) -> JudgedComparison | None:
        """How the last one ended whose truth was asked."""
        return next((made.judged for made in reversed(self) if made.asked), None)


class Measured(Quantity):
    """A statistic of a run, or of several that are judged together; `to` keeps it one."""

    __slots__ = ("comparisons", "number")

    number: Number  # the statistic with the records that it is of
    comparisons: Comparisons  # all of the test that asked for it

    def __init__(self, number: Number, comparisons: Comparisons | None = None) -> None:
        super().__init__(number.metric.value, number.metric.unit)
        object.__setattr__(self, "number", number)
        object.__setattr__(self, "comparisons", Comparisons() if comparisons is None else comparisons)

    @property
    def statistic(self) -> str:
        """Name of its rule."""
        return self.number.statistic

    @property
    def metric(self) -> Metric:
        """The number with its rule."""
        return self.number.metric

    @property
    def record(self) -> RunRecord:
        """The run; of several, the first."""
        return self.number.record

    def to(self, unit: str) -> Measured:
        """Return the same measured number in another unit of its dimension.

        Raises UnitError if `unit` is unknown or of another dimension.
        """
        super().to(unit)
        return self if unit == self.unit else Measured(self.number.to(unit), self.comparisons)

    # Python asks a subclass first, so `Quantity(...) <= measured` ends up here as well.
    def __ge__(self, other: object) -> Comparison:  # type: ignore[override]  # its truth is the bool
        return self._compare(">=", other)

    def __gt__(self, other: object) -> Comparison | bool:  # type: ignore[override]
        return self._order(">", other)

    def __le__(self, other: object) -> Comparison:  # type: ignore[override]
        return self._compare("<=", other)

    def __lt__(self, other: object) -> Comparison | bool:  # type: ignore[override]
        return self._order("<", other)

    def meets(self, op: Op, bound: Quantity, between: BetweenRuns | None = None) -> bool:
        """True if `self op bound` holds for certain. Raises InconclusiveError: the number is too uncertain."""
        return bool(self._compare(op, bound, between))

    def _order(self, op: Op, other: object) -> Comparison | bool:
        """Compare by the plain numbers, without a verdict, where `max`, `min` or `sorted` asks.

        They compare with `<` and `>` alone, from a call; a comparison in the code of a test is its own instruction.
        """
        caller = _find_caller()
        if "CALL" in dis.opname[caller.f_code.co_code[caller.f_lasti]]:  # `PRECALL` in a loop of Python 3.11
            return super().meets(op, other)  # type: ignore[arg-type]  # it refuses what is no quantity
        return self._compare(op, other)

    def _compare(self, op: Op, other: object, between: BetweenRuns | None = USUAL_BETWEEN_RUNS) -> Comparison:
        self._check(other)
        caller = _find_caller()
        place = f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"
        if self.comparisons.closed:  #: error test_is_over: a test compares a number that it got from another test
            raise RunError(
                "test_is_over",
                f"{place}: {self.statistic} {self} was measured for a test that is over, and cannot judge another one: "
                "ask the fixture `run` of this test for it, or compare its `.value`",
            )
        comparison = Comparison(self, op, other, between, place)  # type: ignore[arg-type]  # checked above
        self.comparisons.append(comparison)
        return comparison

    __hash__ = Quantity.__hash__


def _find_caller() -> FrameType:
    frame = sys._getframe(1)  # noqa: SLF001 - `inspect` reads source files for it
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame = frame.f_back
    return frame


def explain_comparison(op: str, left: object, right: object) -> list[str] | None:
    """Explain a comparison of a measured number that does not hold, and losses unlike golden ones; else None."""
    if isinstance(left, Losses) and isinstance(right, GoldenLosses) and left.worst is not None:
        return explain_losses(left.worst, left.records, right)
    measured = left if isinstance(left, Measured) else right
    judged = measured.comparisons.last if isinstance(measured, Measured) and op in _EXPLAINED else None
    if judged is None or judged.holds is not False:
        return None
    return [*explain(judged), *(describe(right) if isinstance(right, Reference) else ())]
