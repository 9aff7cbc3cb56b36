"""Finds the main cause of a missed speed, the one that costs most time, or the reason why it is unknown.

Evidence are the durations of steps, the times of ranks and the telemetry of GPUs. The share of injected causes that it
found is in `docs/measurements/causes_cpu_2026-11-23.yaml`.
"""

import math
import statistics as stats
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from pytest_llmbench.core.quantity import counted, for_people
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.record.series import RankTimes, Step
from pytest_llmbench.core.record.steady import Steady
from pytest_llmbench.core.record.telemetry import GpuTelemetry
from pytest_llmbench.judging.findings import product_rates, slowdowns, sm_clocks
from pytest_llmbench.judging.statistics import judged_steps, typical_steps

CauseKind = Literal[
    "compute", "memory", "network", "data", "host", "throttled", "straggler", "warm-up", "pauses", "noise", "not known",
]  # fmt: skip

# A cause must cost the first share of a step, and either the second share of it or the third of the missing time.
_LEAST, _ENOUGH, _OF_MISSING = 0.05, 0.25, 0.5
# Shares of a step from which on it counts as compute: a rank's own work, and the matrix products of a GPU.
_OWN_WORK, _PRODUCTS = 0.5, 0.4
# A step at the start counts as slow from this factor on; a slow start is at most this share of all steps.
_SLOW, _MOST_OF_ALL = 1.15, 2 / 3
# Noise has many causes, so its weight is reduced in favour of causes that are seen directly.
_NOISE_COUNTS = 0.5
# A rank counts as late from this share of a step and this many standard errors on, if the late ranks together come
# last in this share of the steps.
_LATE, _ERRORS, _LAST = 0.05, 4.0, 0.6
# A rank that is late only in some steps must have this share of all late steps, with a probability by chance below
# this one.
_OFTEN, _CHANCE = 0.9, 1e-3
# The share of a rank's delay that one of its counters has to explain.
_MOSTLY = 0.5
# Shares of a step above which a time is too long: for data and lost CPU on the usual rank, and for gradient transfer.
_LONG, _LONG_TRANSFER = 0.1, 0.25
# A host that waits for its GPU for at least this share of a step keeps the GPU busy: its own delays cost no time.
_BUSY_HOST = 0.05
# Healthy GPUs of one model are within this of each other; a GPU is throttled in this share of its samples at least.
_SLOWER, _THROTTLED = 0.03, 0.05


class Cause(NamedTuple):
    """A cause of a missed speed."""

    kind: CauseKind
    sentence: str
    weight: float = 0.0  # seconds of a step that it costs
    # Factor of the weight in the comparison with other causes; below 1 if they are seen more directly
    counts: float = 1.0
    shown: bool = True  # True if the weight is accurate enough to report the duration of a step without this cause

    def __str__(self) -> str:
        return f"{self.kind}: {self.sentence}"


@dataclass(frozen=True, kw_only=True)
class _Missed:
    """A run that missed a speed."""

    record: RunRecord
    steady: Steady
    needed_s: float  # seconds of a step that would meet the threshold
    by_interval: bool  # True if its steady part was judged, without the slow start
    decided: bool  # True if the threshold is certainly missed; else the comparison is undecided

    @cached_property
    def judged(self) -> tuple[Step, ...]:
        return judged_steps(self.record.recipe, self.record.steps)

    @property
    def step_s(self) -> float:
        """Seconds of a step, pauses included."""
        return self.steady.mean_with_pauses

    @property
    def ranks(self) -> tuple[RankTimes, ...]:
        """The times of its ranks; empty if their logs lack them."""
        return self.record.times.ranks if self.record.times is not None else ()

    @property
    def separable(self) -> bool:
        """True if the step log covers all places where ranks wait for one another."""
        layout = self.record.recipe.parallelism
        return layout.tensor == layout.pipeline == 1 and layout.sharding in {"none", "optimizer"}

    @cached_property
    def own(self) -> dict[int, float] | None:
        """Seconds of a step that each rank takes without waiting for others; None if one is unknown."""
        known = {times.rank: times.own_s for times in self.ranks if times.own_s is not None}
        whole = self.separable and len(known) == len(self.ranks) == self.record.ranks
        return known if whole and known else None

    def usual(self, of: Callable[[RankTimes], float | None], without: Sequence[int] = ()) -> float | None:
        """The lower median of a value over the ranks outside `without`; None if it is unknown for one of them."""
        values = [of(times) for times in self.ranks if times.rank not in without]
        known = [value for value in values if value is not None]
        return stats.median_low(known) if known and len(known) == len(values) else None


def find_cause(record: RunRecord, needed_s: float, *, by_interval: bool, decided: bool) -> Cause | None:
    """Find the cause of a missed threshold on speed; None if the comparison is undecided and all causes are small.

    A step of `needed_s` seconds would meet the threshold. `by_interval` is True if the steady part was judged,
    `decided` if the threshold is certainly missed.
    """
    if record.steady is None:
        return Cause("not known", "fewer than 4 judged steps have a duration")
    m = _Missed(record=record, steady=record.steady, needed_s=needed_s, by_interval=by_interval, decided=decided)
    least = max(_LEAST * m.step_s, min(_ENOUGH * m.step_s, _OF_MISSING * max(m.step_s - needed_s, 0.0)))
    causes = [cause for cause in _find_causes(m) if cause.weight >= least]
    worst = max(causes, key=lambda cause: cause.counts * cause.weight, default=None)
    if worst is None:
        return _none_stands_out(m) if decided else None
    if not worst.shown or not math.isfinite(needed_s) or needed_s <= 0.0:
        return worst
    without = f"without that a step would take about {_seconds(m.step_s - worst.weight)}"
    return worst._replace(sentence=f"{worst.sentence}; {without}, and the threshold needs {_seconds(needed_s)}")


def _none_stands_out(m: _Missed) -> Cause:
    """The cause of a miss without a visible fault: the run's own work, or unknown for lack of evidence."""
    fraction = m.record.metrics.get("matmul_fraction")
    share = 0.0 if fraction is None else fraction.value / 100
    own_work = False
    if m.record.gpus:
        own_work = share >= _PRODUCTS
        reason = "the host of a GPU does not see what it computes and what it waits for: profile a step"
        if own_work:
            reason = f"a step takes {_seconds(m.step_s)}, and no GPU stands out"
    elif m.own is None:
        gap = next((f": rank {times.rank}: {times.gap}" for times in m.ranks if times.gap), "")
        reason = f"the log does not show how long each rank works, and how long it waits for others{gap}"
    else:
        work = stats.median_low(m.own.values())
        own_work = work >= _OWN_WORK * m.step_s
        reason = f"ranks work for {_seconds(work)} of each {_seconds(m.step_s)} step, and none stands out"
    rate = f"; at the measured rate its matrix products alone would take {_seconds(share * m.step_s)}" if share else ""
    return Cause("compute" if own_work else "not known", reason + rate)


def _find_causes(m: _Missed) -> Iterator[Cause]:
    """Yield every cause that the evidence shows, however little it costs."""
    if m.judged:
        yield from (*_slow_start(m), *_pauses(m), *_noise(m))
    late = _late_ranks(m)
    yield from [_straggler(m, late)] if late else _held_up(m)
    yield from (*_lost_by_all(m), *_transfer(m), *_throttled(m))
    for less, sentence in slower_gpus(m.record):
        yield Cause("straggler", sentence, less * m.step_s, shown=False)


def _slow_start(m: _Missed) -> Iterator[Cause]:
    took = [step.seconds or 0.0 for step in m.judged]
    rest = stats.median(took[len(took) // 2 :])
    slow = next((at for at, duration in enumerate(took) if duration < _SLOW * rest), len(took))
    slow = max(slow, m.steady.left_out)
    left_out = m.steady.left_out if m.by_interval and m.decided else 0
    if slow <= left_out or slow > _MOST_OF_ALL * len(took):
        return
    first, later = stats.fmean(took[:slow]), stats.fmean(took[slow:])
    sentence = (
        f"the first {counted(slow, 'judged step')} took {_seconds(first)} each, and the later ones "
        f"{_seconds(later)}: let the recipe leave out more as warm-up, or train longer"
    )
    weight = (slow - left_out) * (first - later) / (len(took) - left_out)
    yield Cause("warm-up", sentence, weight)


def _pauses(m: _Missed) -> Iterator[Cause]:
    pauses, lost = m.steady.pauses, m.steady.mean_with_pauses - m.steady.mean
    later = pauses.at[pauses.first :]
    if later and lost > 0.0:
        every = f", one every {pauses.period} steps," if pauses.period is not None else ""
        share = for_people(100 * lost / m.step_s, 2)
        sentence = (
            f"{counted(len(later), 'slow step')}{every} took {share} % of the time in addition to what a "
            f"usual step takes ({_seconds(pauses.usual)}): an evaluation, a checkpoint or a stall"
        )
        yield Cause("pauses", sentence, lost)


def _noise(m: _Missed) -> Iterator[Cause]:
    took = sorted(step.seconds or 0.0 for step in typical_steps(m.judged))
    if len(took) < 2:
        return
    mean, calm = stats.fmean(took), took[len(took) // 10]
    scatter = for_people(100 * stats.pstdev(took) / mean, 2)
    sentence = (
        f"the steps scatter by {scatter} % (standard deviation): the fastest tenth takes up to {_seconds(calm)}, "
        f"the mean is {_seconds(mean)}, and no rank or phase explains it"
    )
    yield Cause("noise", sentence, mean - calm, counts=_NOISE_COUNTS, shown=False)


def _late_ranks(m: _Missed) -> list[RankTimes]:
    """The ranks that the others wait for, the latest first; empty if it is another rank from step to step."""
    if m.own is None or len(m.own) < 2 or m.record.times is None:
        return []
    by_time = sorted(m.ranks, key=lambda times: (m.own or {})[times.rank])
    usual = by_time[(len(by_time) - 1) // 2]
    late = []
    for times in by_time:
        error = math.hypot(times.spread or 0.0, usual.spread or 0.0) / math.sqrt(m.record.times.steps)
        if m.own[times.rank] - m.own[usual.rank] >= max(_LATE * m.step_s, _ERRORS * error):
            late.append(times)
    few = len(late) <= len(m.own) // 2
    always = sum(times.last or 0.0 for times in late) >= _LAST
    return late[::-1] if few and always else []


def _straggler(m: _Missed, late: list[RankTimes]) -> Cause:
    worst, late_ranks = late[0], [times.rank for times in late]
    own = m.own or {}
    usual = max(own_s for rank, own_s in own.items() if rank not in late_ranks)
    behind = own[worst.rank] - usual
    more = f"(and {len(late) - 1} more ranks) " if len(late) > 1 else ""
    share = round(100 * sum(times.last or 0.0 for times in late))
    kind, reason = _reason_of_delay(m, worst, late_ranks, behind)
    sentence = (
        f"{_named(m.record, worst.rank)} {more}takes {_seconds(own[worst.rank])} of its own in each step, the slowest "
        f"of the others {_seconds(usual)}; the others wait for it in {share} % of the steps; {reason}"
    )
    return Cause(kind, sentence, behind)


def _held_up(m: _Missed) -> Iterator[Cause]:
    """Yield the rank that pauses in some of the steps while the others wait for it."""
    steps = m.record.times.steps if m.record.times is not None else 0
    held_up = {times.rank: round((times.late or 0.0) * steps) for times in m.ranks}
    total = sum(held_up.values())
    if m.own is None or len(m.own) < 2 or not total:
        return
    worst = max(m.ranks, key=lambda times: held_up[times.rank])
    number, share = held_up[worst.rank], 1 / len(held_up)
    # Probability that one of several equal ranks has at least that many of all late steps by chance.
    ways = (math.comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(number, total + 1))
    if number < _OFTEN * total or len(held_up) * sum(ways) > _CHANCE:
        return
    weight = worst.late_s or 0.0
    kind, reason = _reason_of_delay(m, worst, [worst.rank], weight)
    sentence = (
        f"{_named(m.record, worst.rank)} comes a quarter of a step or more after all others in "
        f"{round(100 * number / steps)} % of the steps, and no other does: they wait for it for {_seconds(weight)} a "
        f"step on average, as for a process that is stopped in turns; {reason}"
    )
    yield Cause(kind, sentence, weight)


def _quota_s(times: RankTimes) -> float | None:
    """Seconds of a step in which a CPU quota held a rank back, at most its delay, as the counter adds up all CPUs."""
    if times.throttled_s is None or times.delayed_s is None:
        return times.throttled_s
    return min(times.throttled_s, times.delayed_s)


def _crowded_s(times: RankTimes) -> float | None:
    """Seconds of a step in which a rank waited for a CPU that other processes used."""
    return None if times.delayed_s is None else times.delayed_s - (_quota_s(times) or 0.0)


# Reasons for a late rank, each with its words for one rank and for all ranks.
_DELAYS: tuple[tuple[CauseKind, Callable[[RankTimes], float | None], str, str], ...] = (
    ("data", lambda times: times.phases.get("data"), "waits for its data",
     "ranks wait {} of each {} step for their data"),
    ("throttled", _quota_s, "is held back by its CPU quota", "CPU quotas hold ranks back for {} of each {} step"),
    (
        "host", _crowded_s, "waits for a CPU that other processes use",
        "ranks wait {} of each {} step for a CPU that other processes use",
    ),
    (
        "memory", lambda times: times.memory_stalled_s, "",
        "processes wait {} of each {} step for memory: the host is short of it",
    ),
)  # fmt: skip


def _reason_of_delay(m: _Missed, worst: RankTimes, late: Sequence[int], behind: float) -> tuple[CauseKind, str]:
    """Kind and words of the reason for a late rank, from the counters of its host."""
    for kind, of, words, _ in _DELAYS:
        value, normal = of(worst), m.usual(of, late)
        if words and value is not None and normal is not None and value - normal >= _MOSTLY * behind:
            return kind, f"it {words} for {_seconds(value)} a step, the others for {_seconds(normal)}"
    return "straggler", "no counter of its host explains it"


def _lost_by_all(m: _Missed) -> Iterator[Cause]:
    """Yield the delays that the median rank has, too."""
    hidden = any(times.phases.get("device", 0.0) >= _BUSY_HOST * m.step_s for times in m.ranks)
    median = " (median of all ranks)" if len(m.ranks) > 1 else ""
    for kind, of, _, words in () if hidden else _DELAYS:  # a GPU has work while its host waits
        value = m.usual(of)
        if value is not None and value >= _LONG * m.step_s:
            yield Cause(kind, words.format(_seconds(value), _seconds(m.step_s)) + median, value)


def _transfer(m: _Missed) -> Iterator[Cause]:
    """Yield the exchange of gradients: its time, where that is seen, and the way by NCCL's own lines."""
    transfer = m.record.times.transfer_s if m.record.times is not None else None
    way = "; ".join(m.record.transport)
    if m.own is not None and len(m.own) > 1 and transfer is not None:
        sentence = (
            f"once the last rank is there, ranks exchange their gradients for {_seconds(transfer)} of each "
            f"{_seconds(m.step_s)} step; {way or 'the time to expect of these links is not known'}"
        )
        if transfer >= _LONG_TRANSFER * m.step_s:
            yield Cause("network", sentence, transfer)
    elif way and m.needed_s < m.step_s:  # the host of a GPU does not see the exchange
        yield Cause("network", way, m.step_s - m.needed_s, shown=False)


def _throttled(m: _Missed) -> Iterator[Cause]:
    held = {gpu.rank: gpu for gpu in m.record.telemetry if gpu.throttled and _share(gpu) >= _THROTTLED}
    if not held:
        return
    worst, clocks = max(held.values(), key=_share), sm_clocks(m.record.telemetry)
    free = [clock for rank, clock in clocks.items() if rank not in held]
    clock = clocks.get(worst.rank)
    weight, slower = _share(worst), ""
    if free and clock is not None:  # the cost of a slowdown shows only in comparison with other GPUs
        weight = 1 - clock / stats.median(free)
        slower = f"; its SM clock was {for_people(clock)} MHz, that of the others {for_people(stats.median(free))} MHz"
    more = f", and {len(held) - 1} more GPUs" if len(held) > 1 else ""
    sentence = (
        f"{_named(m.record, worst.rank)} was held back in {worst.throttled} of {worst.samples} samples "
        f"({slowdowns(worst)}){slower}{more}"
    )
    yield Cause("throttled", sentence, weight * m.step_s, shown=False)


def _share(gpu: GpuTelemetry) -> float:
    return (gpu.throttled or 0) / gpu.samples


def slower_gpus(record: RunRecord) -> Iterator[tuple[float, str]]:
    """Yield the slowest GPU by rate and by clock, if it stands out: the share by which it is slower, and a sentence."""
    figures = (
        ("matrix products", "TFLOP/s", product_rates(record.rank_info)),
        ("SM clock", "MHz", sm_clocks(record.telemetry)),
    )
    for what, unit, values in figures if record.gpus > 1 else ():
        if len(values) != record.ranks:
            continue
        rank = min(values, key=lambda number: values[number])
        usual = stats.median(value for number, value in values.items() if number != rank)
        less = 1 - values[rank] / usual
        if less >= _SLOWER:
            yield (
                less,
                (
                    f"{_named(record, rank)} has {what} of {for_people(values[rank])} {unit}, "
                    f"{for_people(100 * less, 2)} % less than the {for_people(usual)} {unit} of the others"
                ),
            )


def _named(record: RunRecord, rank: int) -> str:
    """A rank with its host and GPU."""
    info = next((info for info in record.rank_info if info.rank == rank), None)
    if info is None:
        return f"rank {rank} on an unknown host"
    return f"rank {rank} on {info.node or info.host}" + (f" ({info.gpu})" if info.gpu else "")


def _seconds(value: float) -> str:
    if not math.isfinite(value):
        return f"{value} s"
    return f"{for_people(1e3 * value, 3)} ms" if value < 1.0 else f"{for_people(value, 3)} s"
