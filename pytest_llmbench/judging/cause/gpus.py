"""Causes that GPUs show: clocks that were held back, and matrix products that are slower than the others'."""

import statistics as stats
from collections.abc import Iterator, Mapping

from pytest_llmbench.core.quantity import for_people
from pytest_llmbench.core.record.telemetry import SLOWDOWNS, GpuTelemetry
from pytest_llmbench.judging.cause.evidence import Candidate, Cause, CauseKind, Missed

# Healthy GPUs of one model are within this of each other.
_SLOWER = 0.03
_THROTTLED = 0.05


def of_gpus(m: Missed) -> Iterator[Candidate]:
    """Yield all of them."""
    held = [each for each in m.record.telemetry if each.throttled and each.throttled >= _THROTTLED * each.samples]
    clocks = {each.rank: each.sm_clock_mhz for each in m.record.telemetry if each.sm_clock_mhz is not None}
    if held:
        yield _throttled(m, held, clocks)
    if not m.record.gpus:
        return
    rates = {i.rank: i.matmul_flops_per_s / 1e12 for i in m.record.rank_info if i.matmul_flops_per_s is not None}
    for what, unit, values in (("matrix products", "TFLOP/s", rates), ("SM clock", "MHz", clocks)):
        yield from _slower(m, what, unit, values)


def _throttled(m: Missed, held: list[GpuTelemetry], clocks: Mapping[int, float]) -> Candidate:
    worst = max(held, key=lambda each: (each.throttled or 0) / each.samples)
    share = (worst.throttled or 0) / worst.samples
    free = [clock for rank, clock in clocks.items() if rank not in {each.rank for each in held}]
    clock = clocks.get(worst.rank)
    deficit, told = None, ""
    if free and clock is not None:
        deficit = 1 - clock / stats.median(free)
        told = f"; its SM clock was {for_people(clock)} MHz, that of the others {for_people(stats.median(free))} MHz"
    names = [f"{name} in {worst.reasons[name]}" for name in SLOWDOWNS.values() if worst.reasons.get(name)]
    more = f", and {len(held) - 1} more GPUs" if len(held) > 1 else ""
    sentence = f"{m.named(worst.rank)} was held back in {worst.throttled} of {worst.samples} samples"
    cause = Cause(
        kind="throttled",
        sentence=f"{sentence} ({', '.join(names)}){told}{more}",
        rank=worst.rank,
        host=m.hosts.get(worst.rank),
    )
    # How much a slowdown costs is not known without others to compare with.
    weight = share if deficit is None else deficit
    return Candidate(cause=cause, weight=weight * m.step_s, shown=False)


def _slower(m: Missed, what: str, unit: str, values: Mapping[int, float]) -> Iterator[Candidate]:
    if len(values) != m.record.ranks or len(values) < 2:
        return
    rank = min(values, key=lambda each: values[each])
    usual = stats.median(value for each, value in values.items() if each != rank)
    less = 1 - values[rank] / usual
    kind: CauseKind = "straggler"
    if less >= _SLOWER:
        sentence = (
            f"{m.named(rank)} has {what} of {for_people(values[rank])} {unit}, {for_people(100 * less, 2)} % less than "
            f"the {for_people(usual)} {unit} of the others"
        )
        cause = Cause(kind=kind, sentence=sentence, rank=rank, host=m.hosts.get(rank))
        yield Candidate(cause=cause, weight=less * m.step_s, shown=False)
