"""Candidates for the cause of a missed speed, from the durations of steps, the times of ranks, and the GPUs."""

import math
import statistics as stats
from collections.abc import Callable, Iterator, Mapping, Sequence

from pytest_llmbench.core.quantity import counted, for_people
from pytest_llmbench.core.record.series import RankTimes
from pytest_llmbench.core.record.telemetry import SLOWDOWNS, GpuTelemetry
from pytest_llmbench.judging.cause.evidence import (
    Candidate,
    Cause,
    CauseKind,
    Missed,
    crowded_s,
    data_s,
    seconds,
    throttled_s,
)

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
# A host that waits for its GPU for at least this share of a step keeps it busy, so its own delays cost nothing.
_BUSY_HOST = 0.05
# Healthy GPUs of one model are within this of each other; a GPU is throttled in this share of its samples at least.
_SLOWER, _THROTTLED = 0.03, 0.05


def find_candidates(m: Missed) -> Iterator[Candidate]:
    """Yield every cause that the evidence shows, however little it costs."""
    if m.judged:
        yield from (*_slow_start(m), *_pauses(m), *_noise(m))
    late = _late_ranks(m)
    yield from [_straggler(m, late)] if late else _held_up(m)
    yield from _lost_by_all(m)
    yield from _transfer(m)
    yield from _throttled(m)
    yield from _slower_gpus(m)


def _slow_start(m: Missed) -> Iterator[Candidate]:
    took = [step.seconds or 0.0 for step in m.judged]
    rest = stats.median(took[len(took) // 2 :])
    slow = next((at for at, duration in enumerate(took) if duration < _SLOW * rest), len(took))
    slow = max(slow, m.steady.left_out)
    left_out = m.steady.left_out if m.by_interval and m.decided else 0
    if slow <= left_out or slow > _MOST_OF_ALL * len(took):
        return
    first, later = stats.fmean(took[:slow]), stats.fmean(took[slow:])
    sentence = (
        f"the first {counted(slow, 'judged step')} took {seconds(first)} each, and the later ones "
        f"{seconds(later)}: let the recipe leave out more as warm-up, or train longer"
    )
    weight = (slow - left_out) * (first - later) / (len(took) - left_out)
    yield Candidate(cause=Cause(kind="warm-up", sentence=sentence), weight=weight)


def _pauses(m: Missed) -> Iterator[Candidate]:
    pauses, lost = m.steady.pauses, m.steady.mean_with_pauses - m.steady.mean
    later = pauses.at[pauses.first :]
    if later and lost > 0.0:
        every = f", one every {pauses.period} steps," if pauses.period is not None else ""
        share = for_people(100 * lost / m.step_s, 2)
        sentence = (
            f"{counted(len(later), 'slow step')}{every} took {share} % of the time in addition to what a "
            f"usual step takes ({seconds(pauses.usual)}): an evaluation, a checkpoint or a stall"
        )
        yield Candidate(cause=Cause(kind="pauses", sentence=sentence), weight=lost)


def _noise(m: Missed) -> Iterator[Candidate]:
    took = sorted(step.seconds or 0.0 for step in m.typical)
    if len(took) < 2:
        return
    mean, calm = stats.fmean(took), took[len(took) // 10]
    scatter = for_people(100 * stats.pstdev(took) / mean, 2)
    sentence = (
        f"the steps scatter by {scatter} % (standard deviation): the fastest tenth takes up to {seconds(calm)}, "
        f"the mean is {seconds(mean)}, and no rank or phase explains it"
    )
    cause = Cause(kind="noise", sentence=sentence)
    yield Candidate(cause=cause, weight=mean - calm, counts=_NOISE_COUNTS, shown=False)


def _late_ranks(m: Missed) -> list[RankTimes]:
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


_REASONS: tuple[tuple[CauseKind, Callable[[RankTimes], float | None], str], ...] = (
    ("data", data_s, "waits for its data"),
    ("throttled", throttled_s, "is held back by its CPU quota"),
    ("host", crowded_s, "waits for a CPU that other processes use"),
)


def _straggler(m: Missed, late: list[RankTimes]) -> Candidate:
    worst, late_ranks = late[0], [times.rank for times in late]
    own = m.own or {}
    usual = max(own_s for rank, own_s in own.items() if rank not in late_ranks)
    behind = own[worst.rank] - usual
    more = f" (and {len(late) - 1} more ranks)" if len(late) > 1 else ""
    share = round(100 * sum(times.last or 0.0 for times in late))
    kind, reason = _reason_of_delay(m, worst, late_ranks, behind)
    sentence = (
        f"{m.named(worst.rank)}{more} takes {seconds(own[worst.rank])} of its own in each step, the slowest of the "
        f"others {seconds(usual)}; the others wait for it in {share} % of the steps; {reason}"
    )
    cause = Cause(kind=kind, sentence=sentence, rank=worst.rank, host=m.hosts.get(worst.rank))
    return Candidate(cause=cause, weight=behind)


def _reason_of_delay(m: Missed, worst: RankTimes, late: Sequence[int], behind: float) -> tuple[CauseKind, str]:
    """Kind and words of the reason for a late rank, from the counters of its host."""
    for kind, of, words in _REASONS:
        value, normal = of(worst), m.usual(of, late)
        if value is not None and normal is not None and value - normal >= _MOSTLY * behind:
            return kind, f"it {words} for {seconds(value)} a step, the others for {seconds(normal)}"
    return "straggler", "no counter of its host explains it"


def _held_up(m: Missed) -> Iterator[Candidate]:
    """Yield the one rank that stands still in some of the steps, so that the others wait for it."""
    steps = m.record.times.steps if m.record.times is not None else 0
    held_up = {times.rank: round((times.late or 0.0) * steps) for times in m.ranks}
    total = sum(held_up.values())
    if m.own is None or len(m.own) < 2 or not total:
        return
    worst = max(m.ranks, key=lambda times: held_up[times.rank])
    number = held_up[worst.rank]
    if number < _OFTEN * total or _chance(number, total, len(held_up)) > _CHANCE:
        return
    weight = worst.late_s or 0.0
    kind, reason = _reason_of_delay(m, worst, [worst.rank], weight)
    percent = round(100 * number / steps)
    sentence = (
        f"{m.named(worst.rank)} comes a quarter of a step or more after all others in {percent} % of the steps, and no "
        f"other does: they wait for it for {seconds(weight)} a step on average, as for a process that is stopped in "
        f"turns; {reason}"
    )
    cause = Cause(kind=kind, sentence=sentence, rank=worst.rank, host=m.hosts.get(worst.rank))
    yield Candidate(cause=cause, weight=weight)


def _chance(number: int, total: int, ranks: int) -> float:
    """Probability that one of several equal ranks has at least `number` of all late steps by chance."""
    share = 1 / ranks
    ways = (math.comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(number, total + 1))
    return ranks * sum(ways)


_LOST: tuple[tuple[CauseKind, Callable[[RankTimes], float | None], str], ...] = (
    ("data", data_s, "ranks wait {} of each {} step for their data"),
    ("throttled", throttled_s, "CPU quotas hold ranks back for {} of each {} step"),
    ("host", crowded_s, "ranks wait {} of each {} step for a CPU that other processes use"),
    (
        "memory",
        lambda times: times.memory_stalled_s,
        "processes wait {} of each {} step for memory: the host is short of it",
    ),
)


def _lost_by_all(m: Missed) -> Iterator[Candidate]:
    """Yield the delays that the median rank has, too."""
    hidden = any(times.phases.get("device", 0.0) >= _BUSY_HOST * m.step_s for times in m.ranks)
    median = " (median of all ranks)" if len(m.ranks) > 1 else ""
    for kind, of, words in () if hidden else _LOST:  # a GPU has work while its host waits
        value = m.usual(of)
        if value is not None and value >= _LONG * m.step_s:
            cause = Cause(kind=kind, sentence=words.format(seconds(value), seconds(m.step_s)) + median)
            yield Candidate(cause=cause, weight=value)


def _transfer(m: Missed) -> Iterator[Candidate]:
    transfer = m.record.times.transfer_s if m.record.times is not None else None
    if m.own is not None and len(m.own) > 1 and transfer is not None and transfer >= _LONG_TRANSFER * m.step_s:
        sentence = (
            f"once the last rank is there, ranks exchange their gradients for {seconds(transfer)} of each "
            f"{seconds(m.step_s)} step; the time to expect of these links is not known"
        )
        yield Candidate(cause=Cause(kind="network", sentence=sentence), weight=transfer)


def _clocks(m: Missed) -> dict[int, float]:
    return {gpu.rank: gpu.sm_clock_mhz for gpu in m.record.telemetry if gpu.sm_clock_mhz is not None}


def _throttled(m: Missed) -> Iterator[Candidate]:
    held = {gpu.rank: gpu for gpu in m.record.telemetry if gpu.throttled and _share(gpu) >= _THROTTLED}
    if not held:
        return
    worst, clocks = max(held.values(), key=_share), _clocks(m)
    free = [clock for rank, clock in clocks.items() if rank not in held]
    clock = clocks.get(worst.rank)
    weight, slower = _share(worst), ""
    if free and clock is not None:  # the cost of a slowdown shows only in comparison with other GPUs
        weight = 1 - clock / stats.median(free)
        slower = f"; its SM clock was {for_people(clock)} MHz, that of the others {for_people(stats.median(free))} MHz"
    names = [f"{name} in {worst.reasons[name]}" for name in SLOWDOWNS.values() if worst.reasons.get(name)]
    more = f", and {len(held) - 1} more GPUs" if len(held) > 1 else ""
    sentence = f"{m.named(worst.rank)} was held back in {worst.throttled} of {worst.samples} samples"
    cause = Cause(
        kind="throttled", sentence=f"{sentence} ({', '.join(names)}){slower}{more}", rank=worst.rank,
        host=m.hosts.get(worst.rank),
    )  # fmt: skip
    yield Candidate(cause=cause, weight=weight * m.step_s, shown=False)


def _share(gpu: GpuTelemetry) -> float:
    return (gpu.throttled or 0) / gpu.samples


def _slower_gpus(m: Missed) -> Iterator[Candidate]:
    if not m.record.gpus:
        return
    rates = {i.rank: i.matmul_flops_per_s / 1e12 for i in m.record.rank_info if i.matmul_flops_per_s is not None}
    figures: tuple[tuple[str, str, Mapping[int, float]], ...] = (
        ("matrix products", "TFLOP/s", rates),
        ("SM clock", "MHz", _clocks(m)),
    )
    for what, unit, values in figures:
        if len(values) != m.record.ranks or len(values) < 2:
            continue
        rank = min(values, key=lambda number: values[number])
        usual = stats.median(value for number, value in values.items() if number != rank)
        less = 1 - values[rank] / usual
        if less >= _SLOWER:
            sentence = (
                f"{m.named(rank)} has {what} of {for_people(values[rank])} {unit}, {for_people(100 * less, 2)} % less "
                f"than the {for_people(usual)} {unit} of the others"
            )
            cause = Cause(kind="straggler", sentence=sentence, rank=rank, host=m.hosts.get(rank))
            yield Candidate(cause=cause, weight=less * m.step_s, shown=False)
