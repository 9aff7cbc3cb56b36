"""Messages of a comparison that failed or is undecided: how far apart, the cause, and where the evidence is."""

import math
from collections.abc import Sequence

from pytest_llmbench.core.paths import shown_path
from pytest_llmbench.core.quantity import Quantity, for_people, listed, told_apart
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.judging.cause import slower_gpus
from pytest_llmbench.judging.golden import Deviation, GoldenLosses
from pytest_llmbench.judging.interval.decide import Decision
from pytest_llmbench.judging.statistics import SHARED, window
from pytest_llmbench.plugin.verdict.compare import JudgedComparison, Number
from pytest_llmbench.session.ending import log_to_read

# Further away from its bound, the noise of a number is left out of messages.
_NEAR_PERCENT = 20.0


def explain_undecided(judged: JudgedComparison) -> list[str]:
    """Write why a comparison is undecided, what would decide it, and where the evidence is."""
    number, decision, unit = judged.decisive, judged.decision, judged.bound.unit
    if decision is None:
        return []
    shown, bound = told_apart(number.metric.quantity.to(unit), judged.bound)
    interval = ""
    if decision.low is not None and decision.high is not None:
        low, high = (Quantity(end, number.metric.unit).to(unit) for end in (decision.low, decision.high))
        about = "runs of this system are" if decision.claim == "system" else "in more steps this run would be"
        sure = for_people(100.0 * (1.0 - decision.alpha), 6)
        between = decision.between
        assumed = f" if runs differ by {100 * between.spread:g} %" if between and not between.known else ""
        interval = f"{about} between {low} and {high} (each end is {sure} % sure{assumed}). "
    which = "" if number is judged.number else f"run {number.record.key}: "
    runs = f" of {len(number.parts)} runs" if number.parts else ""
    first = (
        f"{which}{number.statistic} {shown}{runs} does not decide on the threshold {judged.op} {bound}: "
        f"{interval}{decision.why}"
    )
    return [first, *_cause(judged), *_evidence(number)]


def _cause(judged: JudgedComparison) -> list[str]:
    """The cause, and the slow GPUs that it leaves out."""
    cause = [f"cause: {judged.cause}"] if judged.cause is not None else []
    slow = [f"slow GPU: {words}" for _, words in slower_gpus(judged.decisive.record) if words not in "".join(cause)]
    return cause + slow


def explain(judged: JudgedComparison) -> list[str]:
    """Write what was measured, what was asked, how far apart they are, and where the evidence is."""
    number, decision, threshold = judged.decisive, judged.decision, judged.bound
    side = "below" if judged.op in {">=", ">"} else "above"
    quantity = number.metric.quantity.to(threshold.unit)
    missing = quantity <= threshold if side == "below" else quantity >= threshold
    if decision is not None and decision.steady is not None and not missing:
        quantity = Quantity(decision.steady, number.metric.unit).to(threshold.unit)
    shown, bound = told_apart(quantity, threshold)
    run = f" in run {number.record.key}" if number is not judged.number else ""
    far = _distance(quantity, threshold, side)
    near = abs(quantity.difference_percent(threshold) or 0.0) < _NEAR_PERCENT
    interval = _between(decision, number.metric.unit, threshold.unit) if near else ""
    return [
        # pytest cuts long explanations at the end, so what is needed most comes first.
        f"measured {shown}{interval}{run} is {far} the threshold {bound}",
        *_cause(judged),
        *_evidence(number),
    ]


def _between(decision: Decision | None, unit: str, shown: str) -> str:
    if decision is None or decision.low is None or decision.high is None or math.isinf(decision.high - decision.low):
        return ""
    low, high = (Quantity(end, unit).to(shown) for end in (decision.low, decision.high))
    return f" (between {for_people(low.value)} and {for_people(high.value)})"


def _evidence(number: Number) -> list[str]:
    """The record, the log, the hosts, and the rule of the statistic."""
    record = number.record
    log = log_to_read(record.logs)
    where = f" on {', '.join(record.hosts)}" if record.hosts else ""
    # The rule of an engine names its lines itself.
    judged = f"; {window(record.recipe, record.early)}" if number.statistic in SHARED.names() else ""
    early = record.early if record.early is not None and record.early.ended_early else None
    runs = ", ".join(f"{part.record.key} {part.metric.quantity}" for part in number.parts)
    return [
        *([f"runs: {runs}"] if runs else []),
        *([f"early verdict: {early}"] if early else []),
        f"run record: {shown_path(record.path)}",
        f"log: {shown_path(log)}",
        f"run: {record.key}{where}{record.job}",
        f"statistic: {number.statistic} = {number.metric.rule}{judged}",
    ]


def _distance(measured: Quantity, threshold: Quantity, side: str) -> str:
    """Write how far a number is from the bound it missed; as a share of the bound where that is far."""
    percent = measured.difference_percent(threshold)
    if percent is None:
        return side
    if side == "below" and percent < -50.0 and measured.base > 0.0:
        return f"only {for_people(100.0 + percent, 2)} % of"
    if side == "above" and percent > 900.0:
        return f"{for_people(1.0 + percent / 100.0, 3)} times"
    return f"{for_people(abs(percent), 3)} % {side}"


def explain_losses(worst: Deviation, records: Sequence[RunRecord], golden: GoldenLosses) -> list[str]:
    """Write where losses are furthest from golden ones, by how much, and what else differs."""
    record = next(record for record in records if record.key == worst.run)
    allowed = for_people(worst.tolerance) if worst.tolerance else "no difference in any bit"
    unlike = [
        f"{name} {record.versions.get(name)}, there {version}" for name, version in golden.versions.items()
        if record.versions.get(name) != version
    ]  # fmt: skip
    what, first = f"loss {worst.loss:.9g} of step {worst.step}", min(worst.beyond, default=0)
    count = f"{len(worst.beyond)} of {len(golden.steps)} steps differ, from step {first} on"
    if worst.lasting:
        what = f"mean loss {worst.loss:.9g} of steps {worst.step} to {worst.beyond[-1]}"
        count = "each of these steps is within its tolerance, and all together are not"
    far = f"the {what} is {for_people(worst.away, 3)} nat away from the golden one, allowed: {allowed}; {count}"
    return [
        far,
        *([f"other software than in the golden runs: {listed(unlike)}"] if unlike else []),
        f"run record: {shown_path(record.path)}",
        f"run: {record.key}{f' on {listed(record.hosts)}' if record.hosts else ''}{record.job}",
        f"golden losses: {golden.recipe}, {len(golden.runs)} runs, {golden.date}",
    ]


def describe(reference: Reference) -> list[str]:
    """Write what a reference asks for, and where it comes from."""
    meant = str(reference.applies_to or "any machine")
    return [
        f"reference: {reference.name} ({reference.asked}) for {meant}",
        f"  {' '.join(reference.why.split())} [{reference.source}, {reference.date}]",
    ]
