"""Finds the main cause of a missed speed, the one that costs most time, or the reason why it is unknown.

`docs/measurements/causes_cpu_2026-11-23.yaml` has the share of injected causes that it found.
"""

import math
from dataclasses import replace

from pytest_llmbench.core.quantity import for_people
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.judging.cause.candidates import find_candidates
from pytest_llmbench.judging.cause.evidence import Cause, Missed, seconds

# A cause must cost the first share of a step, and either the second share of it or the third of the missing time.
_LEAST, _ENOUGH, _OF_MISSING = 0.05, 0.25, 0.5
# Shares of a step from which on it counts as compute: a rank's own work, and the matrix products of a GPU.
_OWN_WORK, _PRODUCTS = 0.5, 0.4


def find_cause(record: RunRecord, needed_s: float, *, by_interval: bool, decided: bool) -> Cause | None:
    """Find the cause of a missed threshold on speed; None if the comparison is undecided and all causes are small.

    Args:
        record: the run.
        needed_s: seconds of a step that would meet the threshold.
        by_interval: whether the steady part was judged.
        decided: whether the threshold is certainly missed.
    """
    if record.steady is None:
        return Cause(kind="not known", sentence="fewer than 4 judged steps have a duration")
    m = Missed(record=record, steady=record.steady, needed_s=needed_s, by_interval=by_interval, decided=decided)
    least = max(_LEAST * m.step_s, min(_ENOUGH * m.step_s, _OF_MISSING * max(m.step_s - needed_s, 0.0)))
    candidates = [candidate for candidate in find_candidates(m) if candidate.weight >= least]
    worst = max(candidates, key=lambda candidate: candidate.counts * candidate.weight, default=None)
    if worst is None:
        return _none_stands_out(m) if decided else None
    if not worst.shown or not math.isfinite(needed_s) or needed_s <= 0.0:
        return worst.cause
    without = f"without that a step would take about {seconds(m.step_s - worst.weight)}"
    return replace(
        worst.cause, sentence=f"{worst.cause.sentence}; {without}, and the threshold needs {seconds(needed_s)}"
    )


def _none_stands_out(m: Missed) -> Cause:
    """The cause of a miss without a visible fault: the run's own work, or unknown for want of evidence."""
    fraction = m.record.metrics.get("matmul_fraction")
    share = 0.0 if fraction is None else fraction.value / 100
    rate = f"; at the measured rate its matrix products alone would take {seconds(share * m.step_s)}" if share else ""
    if m.record.gpus:
        if share >= _PRODUCTS:
            return Cause(kind="compute", sentence=f"a step takes {seconds(m.step_s)}, and no GPU stands out{rate}")
        return Cause(
            kind="not known",
            sentence=f"the host of a GPU does not see what it computes and what it waits for{rate}: profile a step",
        )
    if m.own is None:
        return Cause(kind="not known", sentence=_reason_unknown(m) + rate)
    work = sorted(m.own.values())[(len(m.own) - 1) // 2]
    if work >= _OWN_WORK * m.step_s:
        sentence = f"ranks work for {seconds(work)} of each {seconds(m.step_s)} step, and none stands out"
        return Cause(kind="compute", sentence=sentence + rate)
    percent = for_people(100 * work / m.step_s, 2)
    sentence = f"ranks work for {percent} % of a step, and no rank or phase explains the rest"
    return Cause(kind="not known", sentence=sentence + rate)


def _reason_unknown(m: Missed) -> str:
    """The reason for which the times of ranks within a step are unknown."""
    gap = next((f"rank {times.rank}: {times.gap}" for times in m.ranks if times.gap), None)
    if gap is not None:
        return f"the step logs do not tell how the ranks spent their steps: {gap}"
    if m.ranks and not m.separable:
        return "ranks wait for each other where the step log does not see it, in forward and backward"
    return "the log does not tell how the ranks spent their steps"
