"""Reads how the ranks spent their steps out of the step logs, once it is known which steps are typical.

That is one more reading of logs that tell it. Clocks of ranks are never compared: each time is a difference on one
clock.
"""

import math
import statistics as stats
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pytest_llmbench.core.record.series import Step
from pytest_llmbench.core.record.times import RankTimes, RunTimes
from pytest_llmbench.core.wire.step_events import Phase, StepEvent, TimeSpent
from pytest_llmbench.readers.steps.progress import event_lines, rank_logs

# Phases add up to the steps, but for what a rank does between them, and for a GPU's steps that its host is ahead of.
_APART, _APART_S = 0.1, 1e-3
# Share of a step from which on a rank is late.
_LATE = 0.25


def read_times(folder: Path, typical: Sequence[Step]) -> RunTimes | None:
    """Read how each rank spent these steps; None where a rank measured nothing of it."""
    if not typical:
        return None
    numbers = {step.step for step in typical}
    arrivals = _Arrivals([math.inf] * len(numbers), [math.inf] * len(numbers), [-1] * len(numbers))
    found = []
    for rank, path in rank_logs(folder):
        steps = _steps(path, numbers)
        if steps and all(step.spent is None for step in steps):
            return None
        known = [step.spent for step in steps if step.spent is not None]
        known = known if len(known) == len(numbers) else []
        gap = _gap(steps, known, len(numbers))
        waits = [] if gap else [_wait(each.phases or {}) for each in known]
        arrivals.add(rank, waits)
        found.append(_rank(rank, steps, known, gap, waits))
    lasts = arrivals.lasts()
    late_from = _LATE * stats.fmean(step.seconds or 0.0 for step in typical)
    ranks = tuple(
        each
        if lasts is None
        else each.model_copy(
            update={"last": lasts.count(each.rank) / len(lasts), **arrivals.late(each.rank, late_from)}
        )
        for each in found
    )
    return RunTimes(steps=len(numbers), ranks=ranks, transfer_s=arrivals.transfer_s())


def _steps(path: Path, numbers: set[int]) -> list[StepEvent]:
    """The readable steps of these numbers."""
    steps: list[StepEvent] = []
    with suppress(OSError):  # the first reading said so
        events = (line.event for line in event_lines(path))
        steps.extend(event for event in events if isinstance(event, StepEvent) and event.step in numbers)
    return steps


def _wait(phases: Mapping[Phase, float]) -> float | None:
    """How long a rank waited for the others; None on a GPU, whose host goes on."""
    return None if "device" in phases else phases.get("sync")


def _gap(steps: Sequence[StepEvent], known: Sequence[TimeSpent], due: int) -> str | None:
    phases = [each.phases for each in known if each.phases is not None]
    if len(phases) < due:
        return f"{due - len(phases)} of its {due} typical steps have no phases"
    told, took = sum(sum(each.values()) for each in phases), sum(step.seconds for step in steps)
    if abs(told - took) > _APART * took + _APART_S * due:
        return f"its phases add up to {told:.4g} s, and its steps to {took:.4g} s"
    return None


def _rank(
    rank: int, steps: Sequence[StepEvent], known: Sequence[TimeSpent], gap: str | None, waits: Sequence[float | None]
) -> RankTimes:
    told = RankTimes(
        rank=rank,
        cpu_s=_mean(each.cpu_s for each in known),
        delayed_s=_mean(each.delayed_s for each in known),
        throttled_s=_mean(each.throttled_s for each in known),
        memory_stalled_s=_mean(each.memory_stalled_s for each in known),
        gap=gap,
    )
    if gap:
        return told
    names = {name for each in known for name in each.phases or {}}
    own = [step.seconds - wait for step, wait in zip(steps, waits, strict=True) if wait is not None]
    return told.model_copy(
        update={
            "seconds": stats.fmean(step.seconds for step in steps),
            # A phase that a step did not go through took none of its time.
            "phases": {name: stats.fmean((e.phases or {}).get(name, 0.0) for e in known) for name in sorted(names)},
            "spread": stats.stdev(own) if len(own) == len(steps) > 1 else None,
        }
    )


def _mean(values: Iterable[float | None]) -> float | None:
    told = list(values)
    known = [each for each in told if each is not None]
    return stats.fmean(known) if known and len(known) == len(told) else None


@dataclass(slots=True)
class _Arrivals:
    """The last rank to come, step by step: all go on together, so it is the one that waits least.

    Attributes:
        least: shortest wait so far of each step.
        next: the one after it.
        who: its rank.
        whole: whether each rank told each wait.
    """

    least: list[float]
    next: list[float]
    who: list[int]
    whole: bool = field(default=True)

    def add(self, rank: int, waits: Sequence[float | None]) -> None:
        """Take the waits of one more rank."""
        self.whole &= len(waits) == len(self.least) and None not in waits
        for at, wait in enumerate(waits if self.whole else ()):
            if wait is not None and wait < self.least[at]:
                self.next[at], self.least[at], self.who[at] = self.least[at], wait, rank
            elif wait is not None:
                self.next[at] = min(self.next[at], wait)

    def lasts(self) -> list[int] | None:
        """The rank that came last, of each step."""
        return self.who if self.whole and self.who[0] >= 0 else None

    def late(self, rank: int, by_s: float) -> dict[str, float]:
        """In how many steps a rank was the last by a time, and how long the others waited for it then."""
        steps = list(zip(self.who, self.least, self.next, strict=True))
        alone = [after - least if who == rank and math.isfinite(after) else 0.0 for who, least, after in steps]
        late = [each if each >= by_s else 0.0 for each in alone]
        half = len(late) // 2
        shares = [sum(each > 0.0 for each in part) / max(len(part), 1) for part in (late[:half], late[half:])]
        return {"late": min(shares), "late_s": stats.fmean(late)}

    def transfer_s(self) -> float | None:
        """Mean time from then on."""
        return stats.fmean(self.least) if self.lasts() is not None else None
