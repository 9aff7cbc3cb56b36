"""The evidence that a cause is found in, and the words for it."""

import math
import statistics as stats
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pytest_llmbench.core.quantity import for_people
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.record.series import Step
from pytest_llmbench.core.record.steady import Steady
from pytest_llmbench.core.record.times import RankTimes
from pytest_llmbench.judging.statistics import alike, judged_steps

CauseKind = Literal[
    "compute", "memory", "network", "data", "host", "throttled", "straggler", "warm-up", "pauses", "noise", "not known",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """The part of a run that most of a missed speed comes from; `rank` and `host` are None where it is not one."""

    kind: CauseKind
    sentence: str
    rank: int | None = None
    host: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.sentence}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A cause that a run may have, and the seconds of a step that it costs (`weight`).

    It counts by the factor `counts` where others are seen more directly. With `shown`, its seconds are known well
    enough for what a step would take without it.
    """

    cause: Cause
    weight: float
    counts: float = 1.0
    shown: bool = True


@dataclass(frozen=True, kw_only=True)
class Missed:
    """A run that missed a speed.

    `needed_s` are the seconds of a step with which it would have met the threshold. With `by_interval` its steady part
    was judged, without the slow start; with `decided` it missed for sure.
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
        """The steps among them that are alike."""
        return alike(self.judged)

    @property
    def step_s(self) -> float:
        """Seconds of a step, pauses included."""
        return self.steady.mean_with_pauses

    @property
    def ranks(self) -> tuple[RankTimes, ...]:
        """How its ranks spent their time; empty where they do not tell."""
        return self.record.times.ranks if self.record.times is not None else ()

    @property
    def separable(self) -> bool:
        """True if ranks wait for one another only where the step log sees it."""
        layout = self.record.recipe.parallelism
        return layout.tensor == layout.pipeline == 1 and layout.sharding in {"none", "optimizer"}

    @cached_property
    def own(self) -> dict[int, float] | None:
        """Seconds of a step that each rank takes without waiting for others; None where one is not known."""
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
        """The usual value of a rank, which half of them do not exceed; None where one is not known."""
        values = [of(times) for times in self.ranks if times.rank not in without]
        known = [value for value in values if value is not None]
        return stats.median_low(known) if known and len(known) == len(values) else None


def data_s(times: RankTimes) -> float | None:
    """Time until a rank has its batch."""
    return times.phases.get("data")


def throttled_s(times: RankTimes) -> float | None:
    """Time in which a CPU quota held a rank back: a group's counter adds up its CPUs, so at most all of its delay."""
    if times.throttled_s is None or times.delayed_s is None:
        return times.throttled_s
    return min(times.throttled_s, times.delayed_s)


def crowded_s(times: RankTimes) -> float | None:
    """Time in which others had a rank's CPU."""
    return None if times.delayed_s is None else times.delayed_s - (throttled_s(times) or 0.0)


def seconds(value: float) -> str:
    """A duration for people."""
    if not math.isfinite(value):
        return f"{value} s"
    return f"{for_people(1e3 * value, 3)} ms" if value < 1.0 else f"{for_people(value, 3)} s"
