"""An early verdict: looks at a run that goes on, each with its share of alpha."""

import math
from collections.abc import Sequence
from dataclasses import replace

from pytest_llmbench.core.record.steady import Steady
from pytest_llmbench.judging.interval.steady import ALPHA, LEAST, steady_state

# Parts of the plan at which is looked. Earlier looks judge runs that drift by where they begin.
LOOKS = (0.25, 0.35, 0.50, 0.70, 1.0)
# Shares of alpha: the last look has the largest.
_AT_THE_END, _BEFORE = 0.40, 0.15


def looks(plan: int, skip: int) -> tuple[int, ...]:
    """Numbers of steps after which is looked, the whole plan last."""
    return tuple(sorted({max(math.ceil(part * plan), min(skip + LEAST, plan)) for part in LOOKS}))


def alpha_at(look: int, plan: int, alpha: float = ALPHA) -> float:
    """The share of alpha at a look."""
    return alpha * (_AT_THE_END if look >= plan else _BEFORE)


def at_a_look(
    seconds: Sequence[float], *, plan: int, skip: int, steps_of_a_line: int = 1, alpha: float = ALPHA
) -> Steady:
    """Find the steady state of the whole plan from the steps so far: a drift may go on to its end.

    It cannot know what happens afterwards, such as a node that throttles later. `plan` are the steps of the whole run,
    and `alpha` is the probability of an error on either side at all looks together; the rest is as of `steady_state`.
    """
    share = alpha_at(len(seconds), plan, alpha)
    now = steady_state(seconds, skip=skip, steps_of_a_line=steps_of_a_line, alpha=share)
    if len(seconds) < plan:
        # Middle of the plan's judged steps, from the middle of those so far, in lengths of what was judged so far.
        ahead = ((plan - len(seconds)) / 2) / now.judged
        further = now.mean * (1 + now.slope * ahead)
        wide = now.half_width * math.sqrt(1 + 12 * ahead * ahead)
        now = replace(now, low=min(now.low, further - wide), high=max(now.high, further + wide))
    return now


def out_of_reach(so_far: Steady, bound: float, *, plan: int, peak: float) -> bool:
    """True if the run misses a bound even if the rest of its plan runs at the peak of the hardware.

    The fast end of the interval counts for the steps so far: their mean may be slow by chance.

    Args:
        so_far: of the steps so far, each of them an entry.
        bound: seconds per step; a faster run is fast enough.
        plan: steps of the whole run.
        peak: seconds per step at that peak.
    """
    rest = max(plan - so_far.left_out - so_far.judged, 0)
    return so_far.enough and (so_far.judged * so_far.low + rest * peak) / (so_far.judged + rest) > bound
