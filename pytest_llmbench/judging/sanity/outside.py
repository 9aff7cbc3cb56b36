"""Time of a run outside of its steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_llmbench.core.record.series import Step
from pytest_llmbench.judging.sanity.evidence import Evidence


@dataclass(frozen=True, kw_only=True, slots=True)
class Outside:
    """The parts of a run's time, in seconds.

    Attributes:
        steps_s: in steps.
        before_s: from launch to the first step, which starts ranks, builds the model and measures rates; None if
            unknown.
        around_s: all the rest, up to the end of the ranks or, if that is unknown, of the run.
    """

    steps_s: float
    before_s: float | None
    around_s: float

    @property
    def seconds(self) -> float:
        """All time outside of steps."""
        return (self.before_s or 0.0) + self.around_s

    @property
    def known(self) -> dict[str, float]:
        """The known parts, for a record."""
        before = {} if self.before_s is None else {"before_s": self.before_s}
        return {"steps_s": self.steps_s, **before, "around_s": self.around_s}


def outside(e: Evidence) -> Outside | None:
    """The time outside of steps; None if the steps' durations are the only times."""
    seconds, ranks = seconds_of(e.series.steps), [info for info in e.series.ranks if info.steps is not None]
    began = min((info.steps.began for info in ranks if info.steps), default=None)
    finished = max((info.finished for info in ranks if info.finished is not None), default=None)
    launched = e.origin.launched
    before = None if began is None or launched is None else max(0.0, began - launched)
    if began is not None and finished is not None:  # the time after the ranks' end belongs to the launcher
        around = finished - began - seconds
    elif e.wall_s is not None:
        around = e.wall_s - seconds - (before or 0.0)
    else:
        return None
    return Outside(steps_s=seconds, before_s=before, around_s=max(0.0, around)) if math.isfinite(around) else None


def seconds_of(steps: Sequence[Step]) -> float:
    """Add up the durations of all steps, each once."""
    seconds, begun = 0.0, math.inf
    for step in reversed(steps):
        if step.seconds is not None and step.step <= begun:  # else a later line's mean is about it, too
            seconds += step.seconds * step.interval
            begun = step.step - step.interval
    return seconds
