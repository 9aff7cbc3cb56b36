"""The energy of one GPU over a window of time, as the difference of its counter at the end and at the start."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_llmbench.core.wire.step_events import GpuEvent

# An energy that can be wrong by a larger share than this is none.
MOST_ERROR = 0.1


@dataclass(frozen=True, slots=True)
class Edge:
    """The counter at an end of the window.

    Attributes:
        millijoules: between two samples as if power were constant there.
        error: the most that can be wrong, mJ: the counter never falls, so it was between those of the two samples.
    """

    millijoules: float
    error: float


@dataclass(frozen=True, slots=True)
class Energy:
    """Energy of a window.

    Attributes:
        joules: J; None where it is not known.
        error_j: the most that it can be wrong by, J.
        why: the reason for an unknown energy.
    """

    joules: float | None = None
    error_j: float | None = None
    why: str = ""


def edge(at: float, before: GpuEvent | None, after: GpuEvent | None, longest_s: float) -> Edge | None:
    """Read the counter at a Unix time; None where no samples close enough are around it, or one has no counter.

    Args:
        at: the time.
        before: the last sample at that time or before.
        after: the first sample at that time or after.
        longest_s: seconds that may lie between the two.
    """
    for sample in (before, after):
        if sample is not None and sample.time == at:
            return None if sample.energy_mj is None else Edge(sample.energy_mj, 0.0)
    if before is None or after is None or not 0.0 < after.time - before.time <= longest_s:
        return None
    if before.energy_mj is None or after.energy_mj is None:
        return None
    share, spent = (at - before.time) / (after.time - before.time), after.energy_mj - before.energy_mj
    return Edge(before.energy_mj + share * spent, max(share, 1.0 - share) * spent)


def between(first: Edge | None, last: Edge | None) -> Energy:
    """Subtract the counter at the start from that at the end."""
    if first is None or last is None:
        return Energy(why="no samples close enough around both ends of the judged window to know its energy")
    joules, error = (last.millijoules - first.millijoules) / 1e3, (first.error + last.error) / 1e3
    if joules <= 0.0:
        return Energy(why="its energy counter stood still")
    if error > MOST_ERROR * joules:
        wrong = f"{100.0 * error / joules:.0f} %"
        return Energy(why=f"the judged window is too short for its samples: its energy could be wrong by {wrong}")
    return Energy(joules, error)


def fell(before: GpuEvent | None, after: GpuEvent | None) -> bool:
    """Whether the counter went backwards from one sample to the next, as when the driver is loaded again."""
    known = [each.energy_mj for each in (before, after) if each is not None and each.energy_mj is not None]
    return len(known) == 2 and known[1] < known[0]
