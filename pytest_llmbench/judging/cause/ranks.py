"""Causes that the ranks' own times show: one that comes late, and times that are lost on all of them."""

import math
from collections.abc import Callable, Iterator, Sequence

from pytest_llmbench.core.record.times import RankTimes
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

# A rank is late by this share of a step at least, and by so many standard errors; together the late ones come last in
# so many of the steps.
_LATE, _ERRORS, _LAST = 0.05, 4.0, 0.6
# One that is late in some steps only has this share of all late steps; equal ranks would have it by chance so rarely.
_OFTEN, _CHANCE = 0.9, 1e-3
# The share of a rank's delay that one of its counters has to explain.
_MOSTLY = 0.5
# Shares of a step from which on a time is too long: of all ranks' data and lost CPU, and of the transfer of gradients.
_LONG, _LONG_TRANSFER = 0.1, 0.25
# A host that waits for its GPU for less than this share of a step may keep it waiting.
_BUSY_HOST = 0.05


def of_ranks(m: Missed) -> Iterator[Candidate]:
    """Yield all of them."""
    late = _late(m)
    if late:
        yield _straggler(m, late)
    else:
        yield from _held_up(m)
    yield from _lost(m)
    transfer = m.record.times.transfer_s if m.record.times is not None else None
    if m.own is not None and len(m.own) > 1 and transfer is not None and transfer >= _LONG_TRANSFER * m.step_s:
        cause = Cause(
            kind="network",
            sentence=(
                f"once the last rank is there, ranks exchange their gradients for {seconds(transfer)} of each "
                f"{seconds(m.step_s)} step; the time to expect of these links is not known"
            ),
        )
        yield Candidate(cause=cause, weight=transfer)


def _late(m: Missed) -> list[RankTimes]:
    """The ranks that the others wait for, the latest first; empty where it is not always the same."""
    if m.own is None or len(m.own) < 2 or m.record.times is None:
        return []
    by_time = sorted(m.ranks, key=lambda each: (m.own or {})[each.rank])
    usual = by_time[(len(by_time) - 1) // 2]
    late = []
    for each in by_time:
        error = math.hypot(each.spread or 0.0, usual.spread or 0.0) / math.sqrt(m.record.times.steps)
        if m.own[each.rank] - m.own[usual.rank] >= max(_LATE * m.step_s, _ERRORS * error):
            late.append(each)
    few = len(late) <= len(m.own) // 2
    always = sum(each.last or 0.0 for each in late) >= _LAST
    return late[::-1] if few and always else []


_OF_A_RANK: tuple[tuple[CauseKind, Callable[[RankTimes], float | None], str], ...] = (
    ("data", data_s, "waits for its data"),
    ("throttled", throttled_s, "is held back by its CPU quota"),
    ("host", crowded_s, "waits for a CPU that other processes use"),
)


def _straggler(m: Missed, late: list[RankTimes]) -> Candidate:
    worst, others = late[0], [each.rank for each in late]
    own = m.own or {}
    usual = max(own_s for rank, own_s in own.items() if rank not in others)
    behind = own[worst.rank] - usual
    more = f" (and {len(late) - 1} more ranks)" if len(late) > 1 else ""
    share = round(100 * sum(each.last or 0.0 for each in late))
    kind, why = _explained(m, worst, others, behind)
    sentence = (
        f"{m.named(worst.rank)}{more} takes {seconds(own[worst.rank])} of its own in each step, the slowest of the "
        f"others {seconds(usual)}; the others wait for it in {share} % of the steps; {why}"
    )
    cause = Cause(kind=kind, sentence=sentence, rank=worst.rank, host=m.hosts.get(worst.rank))
    return Candidate(cause=cause, weight=behind)


def _explained(m: Missed, worst: RankTimes, late: Sequence[int], behind: float) -> tuple[CauseKind, str]:
    """Name the reason for a late rank, by the counters of its host."""
    for kind, of, words in _OF_A_RANK:
        value, normal = of(worst), m.usual(of, late)
        if value is not None and normal is not None and value - normal >= _MOSTLY * behind:
            return kind, f"it {words} for {seconds(value)} a step, the others for {seconds(normal)}"
    return "straggler", "no counter of its host explains it"


def _held_up(m: Missed) -> Iterator[Candidate]:
    """Yield the one rank that the others wait for again and again, as it stands still in some of the steps."""
    steps = m.record.times.steps if m.record.times is not None else 0
    held_up = {each.rank: round((each.late or 0.0) * steps) for each in m.ranks}
    total = sum(held_up.values())
    if m.own is None or len(m.own) < 2 or not total:
        return
    worst = max(m.ranks, key=lambda each: held_up[each.rank])
    number = held_up[worst.rank]
    if number < _OFTEN * total or _by_chance(number, total, len(held_up)) > _CHANCE:
        return
    weight = worst.late_s or 0.0
    kind, why = _explained(m, worst, [worst.rank], weight)
    percent = round(100 * number / steps)
    sentence = (
        f"{m.named(worst.rank)} comes a quarter of a step or more after all others in {percent} % of the steps, and no "
        f"other does: they wait for it for {seconds(weight)} a step on average, as for a process that is stopped in "
        f"turns; {why}"
    )
    yield Candidate(
        cause=Cause(kind=kind, sentence=sentence, rank=worst.rank, host=m.hosts.get(worst.rank)), weight=weight
    )


def _by_chance(number: int, total: int, ranks: int) -> float:
    """Probability that one of several equal ranks has this number of all late steps."""
    share = 1 / ranks
    ways = (math.comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(number, total + 1))
    return ranks * sum(ways)


def _lost(m: Missed) -> Iterator[Candidate]:
    """Yield the times that are lost on the usual rank."""
    known = {
        "data": (m.usual(data_s), "ranks wait {} of each {} step for their data"),
        "throttled": (m.usual(throttled_s), "CPU quotas hold ranks back for {} of each {} step"),
        "host": (m.usual(crowded_s), "ranks wait {} of each {} step for a CPU that other processes use"),
        "memory": (
            m.usual(lambda each: each.memory_stalled_s),
            "processes wait {} of each {} step for memory: the host is short of it",
        ),
    }
    kinds: tuple[CauseKind, ...] = ("data", "throttled", "host", "memory")
    hidden = any(each.phases.get("device", 0.0) >= _BUSY_HOST * m.step_s for each in m.ranks)
    median = " (median of all ranks)" if len(m.ranks) > 1 else ""
    for kind in () if hidden else kinds:  # a GPU has work while its host waits
        value, words = known[kind]
        if value is not None and value >= _LONG * m.step_s:
            cause = Cause(kind=kind, sentence=words.format(seconds(value), seconds(m.step_s)) + median)
            yield Candidate(cause=cause, weight=value)
