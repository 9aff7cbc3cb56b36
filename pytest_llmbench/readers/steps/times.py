"""Reads how ranks spent their typical steps, in a second pass over the step logs after these steps were chosen.

Each time is a difference on one rank's clock, so the clocks of ranks may differ.
"""

import statistics as stats
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from heapq import nsmallest
from pathlib import Path

from pytest_llmbench.core.record.series import RankTimes, RunTimes, Step
from pytest_llmbench.core.wire.step_events import Phase, StepEvent, TimeSpent
from pytest_llmbench.readers.steps.progress import event_lines, rank_logs

# Phases may differ from the duration of the steps by the time between them, and by the lead of a host over its GPU.
_APART, _APART_S = 0.1, 1e-3
# Share of a step from which on a rank is late.
_LATE = 0.25


def read_times(folder: Path, typical: Sequence[Step]) -> RunTimes | None:
    """Read how each rank spent these steps; None if a rank measured no phases."""
    if not typical:
        return None
    numbers = {step.step for step in typical}
    rank_times = []
    waits_of: dict[int, array[float]] = {}
    all_known = True  # every rank has a wait for every step
    for rank, path in rank_logs(folder):
        steps = _steps(path, numbers)
        if steps and all(step.spent is None for step in steps):
            return None
        known = [step.spent for step in steps if step.spent is not None]
        known = known if len(known) == len(numbers) else []
        gap = _gap(steps, known, len(numbers))
        waits = [] if gap else [_wait(spent.phases or {}) for spent in known]
        known_waits = [wait for wait in waits if wait is not None]
        all_known &= len(known_waits) == len(numbers)
        waits_of[rank] = array("d", known_waits)
        rank_times.append(_rank(rank, steps, known, gap, waits))
    if not waits_of or not all_known:
        return RunTimes(steps=len(numbers), ranks=tuple(rank_times), transfer_s=None)
    # All ranks of a step go on together, so the one with the shortest wait arrived last.
    first_waits = [nsmallest(2, zip(step, waits_of, strict=True)) for step in zip(*waits_of.values(), strict=True)]
    late_from = _LATE * stats.fmean(step.seconds or 0.0 for step in typical)
    ranks = [times.model_copy(update=_lateness(times.rank, first_waits, late_from)) for times in rank_times]
    transfer_s = stats.fmean(shortest for (shortest, _), *_ in first_waits)  # to the end of the wait of the last one
    return RunTimes(steps=len(numbers), ranks=tuple(ranks), transfer_s=transfer_s)


def _steps(path: Path, numbers: set[int]) -> list[StepEvent]:
    steps: list[StepEvent] = []
    with suppress(OSError):  # reported by the first reading
        events = (event for _, event in event_lines(path))
        steps.extend(event for event in events if isinstance(event, StepEvent) and event.step in numbers)
    return steps


def _wait(phases: Mapping[Phase, float]) -> float | None:
    """Return how long a rank waited for the others; None on a GPU, whose host runs ahead."""
    return None if "device" in phases else phases.get("sync")


def _gap(steps: Sequence[StepEvent], known: Sequence[TimeSpent], due: int) -> str | None:
    phases = [spent.phases for spent in known if spent.phases is not None]
    if len(phases) < due:
        return f"{due - len(phases)} of its {due} typical steps have no phases"
    phases_s, took = sum(sum(phase_times.values()) for phase_times in phases), sum(step.seconds for step in steps)
    if abs(phases_s - took) > _APART * took + _APART_S * due:
        return f"its phases add up to {phases_s:.4g} s, and its steps to {took:.4g} s"
    return None


def _rank(
    rank: int, steps: Sequence[StepEvent], known: Sequence[TimeSpent], gap: str | None, waits: Sequence[float | None]
) -> RankTimes:
    times = RankTimes(
        rank=rank,
        cpu_s=_mean(spent.cpu_s for spent in known),
        delayed_s=_mean(spent.delayed_s for spent in known),
        throttled_s=_mean(spent.throttled_s for spent in known),
        memory_stalled_s=_mean(spent.memory_stalled_s for spent in known),
        gap=gap,
    )
    if gap:
        return times
    names = {name for spent in known for name in spent.phases or {}}
    own = [step.seconds - wait for step, wait in zip(steps, waits, strict=True) if wait is not None]
    return times.model_copy(
        update={
            "seconds": stats.fmean(step.seconds for step in steps),
            # A phase that a step skipped took 0 s of it.
            "phases": {name: stats.fmean((e.phases or {}).get(name, 0.0) for e in known) for name in sorted(names)},
            "spread": stats.stdev(own) if len(own) == len(steps) > 1 else None,
        }
    )


def _mean(values: Iterable[float | None]) -> float | None:
    given = list(values)
    known = [value for value in given if value is not None]
    return stats.fmean(known) if known and len(known) == len(given) else None


def _lateness(rank: int, first_waits: Sequence[Sequence[tuple[float, int]]], late_from: float) -> dict[str, float]:
    """How often a rank arrived last, how often by `late_from` seconds or more, and the others' mean wait then.

    `first_waits` has the two shortest waits of each step with their ranks.
    """
    leads = [others[0][0] - wait if own == rank and others else 0.0 for (wait, own), *others in first_waits]
    late = [lead if lead >= late_from else 0.0 for lead in leads]
    half = len(late) // 2
    shares = [sum(late_s > 0.0 for late_s in part) / max(len(part), 1) for part in (late[:half], late[half:])]
    last = sum(own == rank for (_, own), *_ in first_waits) / len(first_waits)
    return {"last": last, "late": min(shares), "late_s": stats.fmean(late)}
