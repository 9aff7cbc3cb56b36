"""How the ranks of a run spent their typical judged steps, which are neither pauses nor part of a slow start."""

from collections.abc import Mapping

from pytest_llmbench.core.schema import Strict
from pytest_llmbench.core.wire.step_events import Phase


class RankTimes(Strict):
    """One rank, in seconds per step by its own clocks; null where it is not known.

    Attributes:
        rank: the rank.
        seconds: duration of a step.
        phases: time of each phase; empty where it is not known.
        spread: standard deviation of the time that it takes without waiting for others.
        last: share of the steps in which it came last to where ranks wait for one another.
        late: share of the steps in which it came last by a quarter of a step or more: of the first half and the second
            half of the steps, the smaller one.
        late_s: time of a step that the others waited for it alone in these.
        cpu_s: CPU time of its process.
        delayed_s: it could run, and had no CPU.
        throttled_s: CPU quotas held it back.
        memory_stalled_s: processes around it waited for memory.
        gap: the reason for unknown phases.
    """

    rank: int
    seconds: float | None = None
    phases: Mapping[Phase, float] = {}
    spread: float | None = None
    last: float | None = None
    late: float | None = None
    late_s: float | None = None
    cpu_s: float | None = None
    delayed_s: float | None = None
    throttled_s: float | None = None
    memory_stalled_s: float | None = None
    gap: str | None = None

    @property
    def own_s(self) -> float | None:
        """Time of a step in which it did not wait for others; None where it is not known, as on a GPU."""
        sync = self.phases.get("sync")
        return None if self.seconds is None or sync is None or "device" in self.phases else self.seconds - sync


class RunTimes(Strict):
    """All ranks of a run.

    Attributes:
        steps: number of typical steps.
        ranks: by rank.
        transfer_s: time of a step from the arrival of the last rank to the end of its wait; null where a rank's is not
            known.
    """

    steps: int
    ranks: tuple[RankTimes, ...]
    transfer_s: float | None = None
