"""How the ranks of a run spent their typical judged steps, which are neither pauses nor part of a slow start."""

from collections.abc import Mapping

from pytest_llmbench.core.schema import Strict
from pytest_llmbench.core.wire.step_events import Phase


class RankTimes(Strict):
    """One rank, in seconds per step by its own clocks; null where it is not known."""

    rank: int
    """The rank."""
    seconds: float | None = None
    """Duration of a step."""
    phases: Mapping[Phase, float] = {}
    """Time of each phase; empty where it is not known."""
    spread: float | None = None
    """Standard deviation of the time that it takes without waiting for others."""
    last: float | None = None
    """Share of the steps in which it came last to where ranks wait for one another."""
    late: float | None = None
    """Share of the steps in which it came last by a quarter of a step or more: of the first half and the second half of
    the steps, the smaller one.
    """
    late_s: float | None = None
    """Time of a step that the others waited for it alone in these."""
    cpu_s: float | None = None
    """CPU time of its process."""
    delayed_s: float | None = None
    """It could run, and had no CPU."""
    throttled_s: float | None = None
    """CPU quotas held it back."""
    memory_stalled_s: float | None = None
    """Processes around it waited for memory."""
    gap: str | None = None
    """The reason for unknown phases."""

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
    """By rank."""
    transfer_s: float | None = None
    """Time of a step from the arrival of the last rank to the end of its wait; null where a rank's is not known."""
