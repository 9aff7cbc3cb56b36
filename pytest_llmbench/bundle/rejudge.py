"""The verdict of each test once more: by the records that were made of the logs, and the bounds in the recipe."""

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.bundle.recompute import same
from pytest_llmbench.core.errors import InconclusiveError, LLMBenchError
from pytest_llmbench.core.quantity import USUAL_BETWEEN_RUNS, Quantity
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.records import Judgement, RunRecord, Verdict
from pytest_llmbench.judging.references import why_not_applicable
from pytest_llmbench.plugin.output.provenance import bounds
from pytest_llmbench.plugin.verdict.compare import Judged
from pytest_llmbench.plugin.verdict.run import Run

_COMPARISON = re.compile(r"(>=|>|<=|<) (.+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejudged:
    """A verdict that was looked at again.

    Attributes:
        difference: how the record differs from what the logs come to; empty where it does not.
        taken: the part of it that is taken from the record, and why; empty where it was recomputed.
    """

    difference: str = ""
    taken: str = ""


def rejudged(judgement: Judgement, runs: Sequence[RunRecord], *, rerun: bool = False) -> Rejudged:
    """Judge a test again.

    Args:
        judgement: its verdict as it was kept.
        runs: the runs that it judged together, as their logs have them, the first one first.
        rerun: whether more of them were to be made if these decide nothing.
    """
    verdict, reason = judgement.verdict, judgement.reason or "no reason is kept"
    broken = next((run for run in runs if run.problem is not None), None)
    if broken is not None and broken.problem is not None:
        kind, ends = broken.problem.kind, {Verdict.ERROR, Verdict.SKIP}
        told = f"{judgement.test}: the record says {verdict}, and run {broken.key} cannot be judged: {kind}"
        return Rejudged() if verdict in ends else Rejudged(difference=told)
    reference = _reference(judgement, runs[0])
    if judgement.reference is not None and reference is None:
        told = f"{judgement.test}: its reference {judgement.reference} is not in the recipe of run {runs[0].key}"
        return Rejudged(difference=told)
    if verdict in {Verdict.SKIP, Verdict.ERROR}:
        skipped = verdict is Verdict.SKIP and reference is not None and _skip(reference, Run(*runs, may_repeat=rerun))
        return Rejudged() if skipped else Rejudged(taken=f"{judgement.test}: {verdict}: {reason}")
    if judgement.statistic is None or judgement.threshold is None:
        return Rejudged(taken=f"{judgement.test}: {verdict}: what its body compares is not kept")
    if reference is None or judgement.statistic != reference.statistic:
        return _by_comparison(judgement, Run(*runs, may_repeat=rerun))
    return _by_reference(judgement, reference, Run(*runs, may_repeat=rerun))


def _reference(judgement: Judgement, run: RunRecord) -> Reference | None:
    return next((each for each in run.recipe.references if each.name == judgement.reference), None)


def _skip(reference: Reference, run: Run) -> bool:
    no_meaning = reference.statistic not in run.record.metrics and run.record.recipe.scale == "smoke"
    return no_meaning or why_not_applicable(reference, run.machine) is not None


def _by_reference(judgement: Judgement, reference: Reference, run: Run) -> Rejudged:
    if _skip(reference, run):
        told = f"the record says {judgement.verdict}, and reference {reference.name} is not for {run.machine}"
        return Rejudged(difference=f"{judgement.test}: {told}")
    measured = None
    try:
        measured = run.measured(reference.statistic)
        found = Verdict.PASS if measured in reference else Verdict.FAIL
    except InconclusiveError:
        found = Verdict.INCONCLUSIVE
    except LLMBenchError as error:
        return Rejudged(difference=f"{judgement.test}: the record says {judgement.verdict}, the log {error}")
    if judgement.threshold != reference.threshold:
        told = f"the record says {judgement.threshold}, its recipe {reference.threshold}"
        return Rejudged(difference=f"{judgement.test}: bound: {told}")
    found = _expected(found, reference, run.records)
    if found is not judgement.verdict:
        number = f"{reference.statistic} {measured} for {reference.asked}"
        told = f"the record says {judgement.verdict}, the log {found}: {number}"
        return Rejudged(difference=f"{judgement.test}: {told}")
    return _number(judgement, run.comparisons.last)


def _expected(found: Verdict, reference: Reference, runs: Sequence[RunRecord]) -> Verdict:
    """The verdict where a miss is expected until some day: the last one on which a run of these ended."""
    ends = [run.timings.ended for run in runs if run.timings.ended is not None]
    if reference.xfail is None or not ends or found is Verdict.INCONCLUSIVE:
        return found
    if dt.datetime.fromtimestamp(max(ends), tz=dt.UTC).date() > reference.xfail.until:
        return found
    return Verdict.XFAIL if found is Verdict.FAIL else Verdict.FAIL


def _by_comparison(judgement: Judgement, run: Run) -> Rejudged:
    """Compare as the last comparison of a test's own body did; whatever else it demands is not kept."""
    test = judgement.test
    match = _COMPARISON.fullmatch(judgement.threshold or "")
    taken = f"{test}: {judgement.verdict}: its last comparison is recomputed, the rest of its body is not kept"
    if match is None or judgement.statistic == "losses":
        return Rejudged(taken=f"{test}: {judgement.verdict}: what it was compared with is not kept")
    operator: Any = match[1]
    try:
        measured = run.measured(str(judgement.statistic))
        holds = measured.meets(operator, Quantity(match[2]), USUAL_BETWEEN_RUNS)
    except InconclusiveError:
        return Rejudged(taken=taken)
    except LLMBenchError as error:
        return Rejudged(difference=f"{test}: the record says {judgement.verdict}, the log {error}")
    if judgement.verdict is Verdict.PASS and not holds:
        told = f"the record says PASS, the log {judgement.statistic} {measured}, which is not {judgement.threshold}"
        return Rejudged(difference=f"{test}: {told}")
    return Rejudged(difference=_number(judgement, run.comparisons.last).difference, taken=taken)


def _number(judgement: Judgement, judged: Judged | None) -> Rejudged:
    """Compare the number that a test judged: that of its runs together, or of the one that decided."""
    if judged is None or judgement.measured is None:
        return Rejudged(taken=f"{judgement.test}: {judgement.verdict}: the number that it judged is not kept")
    text, _, unit = judgement.measured.partition(" ")
    try:
        kept: float | None = float(text)
    except ValueError:
        kept = None
    number = judged.decisive.metric
    if unit != number.unit or not same(kept, number.value):
        told = f"the record says {judgement.measured}, the log {number.value!r} {number.unit}"
        return Rejudged(difference=f"{judgement.test}: {judgement.statistic}: {told}")
    decision = judged.decision
    found: dict[str, float | str | None] = {
        "value": number.value,
        "unit": number.unit,
        "low": decision.low if decision is not None else None,
        "high": decision.high if decision is not None else None,
        "at_least": None,
        "at_most": None,
        **bounds(judgement.threshold, number.unit),
    }
    # A record of an earlier version has no numbers but in `measured`.
    for name in sorted(judgement.model_fields_set & found.keys()):
        if not same(getattr(judgement, name), found[name]):
            told = f"the record says {getattr(judgement, name)}, the log {found[name]}"
            return Rejudged(difference=f"{judgement.test}: {name}: {told}")
    return Rejudged()
