"""Quantities that remember their origin, and failing comparisons told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.core.errors import InconclusiveError
from pytest_llmbench.core.quantity import USUAL_BETWEEN_RUNS, BetweenRuns, Quantity, for_people, listed, told_apart
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.records import Metric, RunRecord
from pytest_llmbench.judging.cause.evidence import Cause
from pytest_llmbench.judging.findings.gather import slowest_node
from pytest_llmbench.judging.golden import Deviation, GoldenLosses, Losses
from pytest_llmbench.judging.interval.decide import Decision, Op, apart, decide, in_doubt
from pytest_llmbench.judging.interval.steady import ALPHA
from pytest_llmbench.judging.statistics import SHARED, window
from pytest_llmbench.plugin.verdict.caused import cause_of
from pytest_llmbench.plugin.verdict.several import steady_at
from pytest_llmbench.session.ending.logs import log_to_read

if TYPE_CHECKING:
    from pytest_llmbench.plugin.verdict.run import Run

# Further away from its bound, the noise of a number is of no interest.
_NEAR_PERCENT = 20.0


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


def undecided(measured: Measured, op: Op, threshold: Quantity, decision: Decision) -> list[str]:
    """Say why a comparison is not decided, what would decide it, and where the evidence is."""
    shown, bound = told_apart(measured.to(threshold.unit), threshold)
    interval = ""
    if decision.low is not None and decision.high is not None:
        low, high = (Quantity(end, measured.unit).to(threshold.unit) for end in (decision.low, decision.high))
        about = "runs of this system are" if decision.claim == "system" else "in more steps this run would be"
        sure = for_people(100.0 * (1.0 - decision.alpha), 6)
        interval = f"{about} between {low} and {high} (each end is {sure} % sure). "
    runs = f" of {len(measured.each)} runs" if measured.each else ""
    first = (
        f"{measured.statistic} {shown}{runs} does not decide on the threshold {op} {bound}: {interval}{decision.why}"
    )
    return [first, *_caused(measured), *_evidence(measured)]


def _caused(measured: Measured) -> list[str]:
    return [f"cause: {measured.cause}"] if measured.cause is not None else []


def explain(measured: Measured, threshold: Quantity, side: str) -> list[str]:
    """Say what was measured, what was asked, how far apart they are, and where the evidence is.

    Args:
        measured: the number.
        threshold: the bound it missed.
        side: `below` or `above`.
    """
    part, decision = measured.decisive, measured.decision
    judged = part.to(threshold.unit)
    if decision is not None and decision.steady is not None and not _MISSING[side](judged, threshold):
        judged = Quantity(decision.steady, measured.unit).to(threshold.unit)
    shown, bound = told_apart(judged, threshold)
    run = f" in run {part.record.key}" if part is not measured else ""
    far = _distance(judged, threshold, side)
    near = abs(judged.difference_percent(threshold) or 0.0) < _NEAR_PERCENT
    interval = _between(decision, measured.unit, threshold.unit) if near else ""
    return [
        # pytest cuts long explanations at the end, so what is needed most comes first.
        f"measured {shown}{interval}{run} is {far} the threshold {bound}",
        *_caused(measured),
        *_evidence(part),
    ]


def _between(decision: Decision | None, unit: str, shown: str) -> str:
    """The interval of a number, where it has one."""
    if decision is None or decision.low is None or decision.high is None or math.isinf(decision.high - decision.low):
        return ""
    low, high = (Quantity(end, unit).to(shown) for end in (decision.low, decision.high))
    return f" (between {for_people(low.value)} and {for_people(high.value)})"


def _evidence(measured: Measured) -> list[str]:
    """The slow node, the record, the log, the hosts, and the statistic's rule."""
    record = measured.record
    log = log_to_read(record.logs)
    where = f" on {', '.join(record.hosts)}" if record.hosts else ""
    # An engine's own rule says itself which lines it is about.
    node = slowest_node(record.rank_info, record.telemetry)
    judged = f"; {window(record.recipe, record.early)}" if measured.statistic in SHARED.names() else ""
    early = record.early if record.early is not None and record.early.ended_early else None
    return [
        *([node] if node else []),
        *([f"runs: {', '.join(f'{each.record.key} {each}' for each in measured.each)}"] if measured.each else []),
        *([f"early verdict: {early}"] if early else []),
        f"run record: {_short(record.path)}",
        f"log: {_short(log)}",
        f"run: {record.key}{where}{record.job}",
        f"statistic: {measured.statistic} = {measured.metric.rule}{judged}",
    ]


def _distance(measured: Quantity, threshold: Quantity, side: str) -> str:
    """Say how far a number is from the bound it missed, as a share of it where "90 % below" would tell little."""
    percent = measured.difference_percent(threshold)
    if percent is None:
        return side
    if side == "below" and percent < -50.0 and measured.base > 0.0:
        return f"only {for_people(100.0 + percent, 2)} % of"
    if side == "above" and percent > 900.0:
        return f"{for_people(1.0 + percent / 100.0, 3)} times"
    return f"{for_people(abs(percent), 3)} % {side}"


def _short(path: Path) -> str:
    """A path relative to where the user stands, when it is below."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


_MISSING = {"below": Quantity.__le__, "above": Quantity.__ge__}
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


def explain_losses(worst: Deviation, records: Sequence[RunRecord], golden: GoldenLosses) -> list[str]:
    """Say where losses are furthest from golden ones, by how much, and what else differs."""
    record = next(each for each in records if each.key == worst.run)
    allowed = for_people(worst.tolerance) if worst.tolerance else "no difference in any bit"
    unlike = [
        f"{name} {record.versions.get(name)}, there {version}" for name, version in golden.versions.items()
        if record.versions.get(name) != version
    ]  # fmt: skip
    far = (
        f"the loss {worst.loss:.9g} of step {worst.step} is {for_people(worst.away, 3)} nat away from the golden one, "
        f"allowed: {allowed}; {len(worst.beyond)} of {len(golden.steps)} steps differ, from step "
        f"{min(worst.beyond, default=0)} on"
    )
    return [
        far,
        *([f"other software than in the golden runs: {listed(unlike)}"] if unlike else []),
        f"run record: {_short(record.path)}",
        f"run: {record.key}{f' on {listed(record.hosts)}' if record.hosts else ''}{record.job}",
        f"golden losses: {golden.recipe}, {len(golden.runs)} runs, {golden.date}",
    ]


def describe(reference: Reference) -> list[str]:
    """Say what a reference is and where it comes from."""
    meant = str(reference.applies_to or "any machine")
    return [
        f"reference: {reference.name} ({reference.asked}) for {meant}",
        f"  {' '.join(reference.why.split())} [{reference.source}, {reference.date}]",
    ]
