"""Evidence about a missed speed, and the types of a cause."""

import math
import statistics as stats
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pytest_llmbench.core.quantity import for_people
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.record.series import RankTimes, Step
from pytest_llmbench.core.record.steady import Steady
from pytest_llmbench.judging.statistics import alike, judged_steps

CauseKind = Literal[
    "compute", "memory", "network", "data", "host", "throttled", "straggler", "warm-up", "pauses", "noise", "not known",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """The main cause of a missed speed; `rank` and `host` are None for a cause that concerns all ranks."""

    kind: CauseKind
    sentence: str
    rank: int | None = None
    host: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.sentence}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A possible cause.

    Attributes:
        cause: the cause.
        weight: seconds of a step that it costs.
        counts: factor of the weight in the comparison with other causes; below 1 if they are seen more directly.
        shown: whether the weight is accurate enough to report the duration of a step without this cause.
    """

    cause: Cause
    weight: float
    counts: float = 1.0
    shown: bool = True


@dataclass(frozen=True, kw_only=True)
class Missed:
    """A run that missed a speed.

    Attributes:
        record: its record.
        steady: its steady part.
        needed_s: seconds of a step that would meet the threshold.
        by_interval: whether its steady part was judged, without the slow start.
        decided: whether the threshold is certainly missed; else the comparison is undecided.
    """

    record: RunRecord
    steady: Steady
    needed_s: float
    by_interval: bool
    decided: bool

    @cached_property
    def judged(self) -> tuple[Step, ...]:
        """Its judged steps."""
        return judged_steps(self.record.recipe, self.record.steps)

    @cached_property
    def typical(self) -> tuple[Step, ...]:
        """The judged steps without slow start and pauses."""
        return alike(self.judged)

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

    @cached_property
    def hosts(self) -> Mapping[int, str]:
        """The host of each rank."""
        return {info.rank: info.node or info.host for info in self.record.rank_info}

    def named(self, rank: int) -> str:
        """A rank with its host and GPU."""
        gpu = next((info.gpu for info in self.record.rank_info if info.rank == rank), None)
        return f"rank {rank} on {self.hosts.get(rank, 'an unknown host')}" + (f" ({gpu})" if gpu else "")

    def usual(self, of: Callable[[RankTimes], float | None], without: Sequence[int] = ()) -> float | None:
        """The lower median of a value over the ranks outside `without`; None if it is unknown for one of them."""
        values = [of(times) for times in self.ranks if times.rank not in without]
        known = [value for value in values if value is not None]
        return stats.median_low(known) if known and len(known) == len(values) else None


def data_s(times: RankTimes) -> float | None:
    """Seconds of a step until a rank has its batch."""
    return times.phases.get("data")


def throttled_s(times: RankTimes) -> float | None:
    """Seconds of a step in which a CPU quota held a rank back, at most its delay, as the counter adds up all CPUs."""
    if times.throttled_s is None or times.delayed_s is None:
        return times.throttled_s
    return min(times.throttled_s, times.delayed_s)


def crowded_s(times: RankTimes) -> float | None:
    """Seconds of a step in which a rank waited for a CPU that other processes used."""
    return None if times.delayed_s is None else times.delayed_s - (throttled_s(times) or 0.0)


def seconds(value: float) -> str:
    """A duration in s or ms, for messages."""
    if not math.isfinite(value):
        return f"{value} s"
    return f"{for_people(1e3 * value, 3)} ms" if value < 1.0 else f"{for_people(value, 3)} s"
