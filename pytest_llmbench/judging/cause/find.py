"""Finds the cause of a missed speed: of all that cost time, the one that cost most; or the reason why none is known.

`docs/measurements/causes_cpu_2026-11-23.yaml` has how often that was right, by injected causes.
"""

import math
from dataclasses import replace

from pytest_llmbench.core.quantity import for_people
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.judging.cause.candidates import find_candidates
from pytest_llmbench.judging.cause.evidence import Cause, Missed, seconds

# A cause costs this share of a step at least; and this one, or this share of what is missing.
_LEAST, _ENOUGH, _OF_MISSING = 0.05, 0.25, 0.5
# From this share of a step on, a rank's own work is most of it; of a GPU, its matrix products are.
_OWN_WORK, _PRODUCTS = 0.5, 0.4


def find_cause(record: RunRecord, needed_s: float, *, by_interval: bool, decided: bool) -> Cause | None:
    """Name the cause of a missed threshold on the speed of a run; None if it is only open, and nothing stands out.

    Args:
        record: the run.
        needed_s: seconds of a step with which it would have met the threshold.
        by_interval: the steady part was judged.
        decided: it missed for sure.
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
    """No fault is seen: the run's own work takes that long, or the evidence is not enough."""
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
    """The reason for missing evidence of what ranks do in a step."""
    gap = next((f"rank {times.rank}: {times.gap}" for times in m.ranks if times.gap), None)
    if gap is not None:
        return f"the step logs do not tell how the ranks spent their steps: {gap}"
    if m.ranks and not m.separable:
        return "ranks wait for each other where the step log does not see it, in forward and backward"
    return "the log does not tell how the ranks spent their steps"
