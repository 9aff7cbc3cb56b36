"""How the ranks of a run spent their typical judged steps, which are neither pauses nor part of a slow start."""

from collections.abc import Mapping

from pytest_llmbench.core.schema import Strict
from pytest_llmbench.core.wire.step_events import Phase


class RankTimes(Strict):
    """One rank, in seconds per step by its own clocks; null where it is not known."""

    rank: int
    """Number of the rank."""
    seconds: float | None = None
    """Mean duration of a step, in seconds."""
    phases: Mapping[Phase, float] = {}
    """Mean seconds of a step in each phase; empty where it is not known."""
    spread: float | None = None
    """Standard deviation of the seconds of a step without waiting for others."""
    last: float | None = None
    """Share of the steps in which this rank was the last to arrive where ranks wait for one another."""
    late: float | None = None
    """Share of the steps in which this rank arrived last by a quarter of a step or more.

    The smaller value of the first half and the second half of the steps counts.
    """
    late_s: float | None = None
    """Mean seconds of a step in which the others waited for this rank alone, in steps where it was late."""
    cpu_s: float | None = None
    """Mean CPU time of the process in a step, in seconds."""
    delayed_s: float | None = None
    """Mean seconds of a step in which the training thread could run and had no CPU."""
    throttled_s: float | None = None
    """Mean seconds of a step in which CPU quotas held the process back."""
    memory_stalled_s: float | None = None
    """Mean seconds of a step in which processes waited for memory."""
    gap: str | None = None
    """Reason for unknown phases; null where they are known."""

    @property
    def own_s(self) -> float | None:
        """Time of a step in which it did not wait for others; None where it is not known, as on a GPU."""
        sync = self.phases.get("sync")
        return None if self.seconds is None or sync is None or "device" in self.phases else self.seconds - sync


class RunTimes(Strict):
    """All ranks of a run."""

    steps: int
    """Number of typical steps."""
    ranks: tuple[RankTimes, ...]
    """Times of each rank, in order."""
    transfer_s: float | None = None
    """Mean seconds of a step from the arrival of the last rank to the end of its wait; null where a rank's wait is
    unknown.
    """
