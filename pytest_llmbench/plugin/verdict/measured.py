"""Quantities that remember their origin, and what they were compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_llmbench.core.errors import InconclusiveError
from pytest_llmbench.core.quantity import USUAL_BETWEEN_RUNS, BetweenRuns, Quantity
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.records import Metric, RunRecord
from pytest_llmbench.judging.cause.evidence import Cause
from pytest_llmbench.judging.golden import GoldenLosses, Losses
from pytest_llmbench.judging.interval.decide import Decision, Op, apart, decide, in_doubt
from pytest_llmbench.judging.interval.steady import ALPHA
from pytest_llmbench.plugin.output.explained import describe, explain, explain_losses, undecided
from pytest_llmbench.plugin.verdict.caused import cause_of
from pytest_llmbench.plugin.verdict.several import steady_at

if TYPE_CHECKING:
    from pytest_llmbench.plugin.verdict.run import Run


class Measured(Quantity):
    """A measured quantity. It compares like any other, and keeps what it was compared with.

    Attributes:
        statistic: the rule's name.
        metric: the number with its rule.
        record: the run it is of.
        each: the same number of each run, where several are judged together; it is then their mean.
        alpha: probability of an error on either side of the interval that judges it.
        threshold: the last comparison it was in, such as `>= 200000 words/s`; None so far.
        decision: how that ended, where the steady state of the run judged it; None where the statistic's own rule did.
        decisive: the number that decided it: itself, or one of `each`.
        cause: cause of a speed that does not meet it; None for any other comparison.
        run: makes more runs where these decide nothing; None where no more are wanted.
    """

    __slots__ = ("alpha", "cause", "decision", "decisive", "each", "metric", "record", "run", "statistic", "threshold")

    def __init__(
        self,
        statistic: str,
        metric: Metric,
        record: RunRecord,
        *,
        each: Sequence[Measured] = (),
        alpha: float = ALPHA,
        run: Run | None = None,
    ) -> None:
        super().__init__(metric.value, metric.unit)
        self._set(
            statistic=statistic, metric=metric, record=record, each=tuple(each), alpha=alpha, run=run, threshold=None,
            decision=None, decisive=self, cause=None,
        )  # fmt: skip

    def _set(self, **known: object) -> None:
        for name, value in known.items():
            object.__setattr__(self, name, value)

    statistic: str
    metric: Metric
    record: RunRecord
    each: tuple[Measured, ...]
    alpha: float
    threshold: str | None
    decision: Decision | None
    decisive: Measured
    cause: Cause | None
    run: Run | None

    # Python asks a subclass first, so `Quantity(...) <= measured` ends up here as well.
    def __ge__(self, other: object) -> bool:
        return self._compared(">=", other)

    def __gt__(self, other: object) -> bool:
        return self._compared(">", other)

    def __le__(self, other: object) -> bool:
        return self._compared("<=", other)

    def __lt__(self, other: object) -> bool:
        return self._compared("<", other)

    def _compared(self, op: Op, other: object) -> bool:
        if not isinstance(other, Quantity):
            self._check(other)  # it says why not
            return False
        return self.meets(op, other, USUAL_BETWEEN_RUNS)

    def meets(self, op: Op, bound: Quantity, between: BetweenRuns | None = None) -> bool:
        """Whether `self op bound` holds, for certain where the statistic says how well it is known.

        Raises:
            InconclusiveError: it is not known well enough.
        """
        self._renew()
        holds = super().meets(op, bound)
        self._set(threshold=f"{op} {bound.plain}")
        # Speed is a claim of the system, which all runs together make; anything else has to hold in each of them.
        if self.each and (self.metric.sense is None or (between is None and not isinstance(bound, Measured))):
            return self._each_meets(op, bound, between)
        decision = self._decided(op, bound, between)
        surely, cause = holds if decision is None else decision.holds, None
        if not surely and not isinstance(bound, Measured):
            runs = [(each.metric, each.record) for each in self.each or (self,)]
            cause = cause_of(self.statistic, runs, op, bound, decided=surely is not None)
        self._set(decision=decision, cause=cause)
        if decision is not None and surely is None:
            raise InconclusiveError("\n".join(undecided(self, op, bound, decision)))
        return bool(surely)

    def _decided(self, op: Op, bound: Quantity, between: BetweenRuns | None) -> Decision | None:
        """Compare by the steady state of the runs, and of more where these decide nothing and more are wanted.

        Returns:
            None where the statistic's own rule judges.
        """
        if self.metric.sense is None:
            return in_doubt(self.metric, op, bound, self.record.rank_info)
        if isinstance(bound, Measured):
            return apart(self.metric, op, bound.metric)
        while True:
            runs = [steady_at(each.record, self.alpha) for each in self.each or (self,)]
            decision = decide(self.metric, runs, op, bound, between, self.alpha, self.record.early)
            if decision.holds is not None or self.run is None:
                return decision
            if why_no_more := self.run.repeat(decision.needed):
                return replace(decision, why=f"{decision.why}. {why_no_more}")
            self._renew()

    def _renew(self) -> None:
        """Take in runs that were made since."""
        if self.run is not None and len(self.run.records) > max(len(self.each), 1):
            new = self.run.of_all(self.statistic)
            self._set(**{name: getattr(new, name) for name in ("value", "metric", "each", "alpha")})

    def _each_meets(self, op: Op, bound: Quantity, between: BetweenRuns | None) -> bool:
        """Whether it holds in each run: a miss counts for more than a run that does not decide."""
        undecided = None
        for part in self.each:
            try:
                holds = part.meets(op, bound, between)
            except InconclusiveError as error:
                undecided = undecided or (part, error)
                continue
            if not holds:
                self._decided_by(part)
                return False
        if undecided is not None:
            self._decided_by(undecided[0])
            raise InconclusiveError(f"run {undecided[0].record.key}: {undecided[1]}") from undecided[1]
        self._decided_by((min if op in {">=", ">"} else max)(self.each, key=lambda part: part.base))
        return True

    def _decided_by(self, part: Measured) -> None:
        self._set(decisive=part, decision=part.decision, cause=part.cause)

    __hash__ = Quantity.__hash__


_MIRRORED = {">=": "<=", ">": "<", "<=": ">=", "<": ">"}
_MISSED = {">=": "below", ">": "below", "<=": "above", "<": "above"}


def explain_comparison(op: str, left: object, right: object) -> list[str] | None:
    """Explain `measured >= quantity`, either way round, and `in` of a reference or golden losses; else None."""
    if isinstance(right, Measured) and not isinstance(left, Measured) and op in _MIRRORED:
        op, left, right = _MIRRORED[op], right, left
    if isinstance(left, Losses) and isinstance(right, GoldenLosses) and left.worst is not None:
        return explain_losses(left.worst, left.records, right)
    if not isinstance(left, Measured):
        return None
    if isinstance(right, Quantity) and op in _MISSED:
        return explain(left, right, _MISSED[op])
    if isinstance(right, Reference) and op == "in":
        missed = right.missed_by(left)
        if missed is not None:
            bound_op, bound = missed
            return [*explain(left, bound, _MISSED[bound_op]), *describe(right)]
    return None
