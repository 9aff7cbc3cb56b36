"""An early verdict: looks at a run that goes on, each with its share of α."""

import math
from collections.abc import Sequence
from dataclasses import replace

from pytest_llmbench.judging.interval.steady import ALPHA, Steady, steady_state

# Parts of the plan at which is looked. Earlier looks judge runs that drift by where they begin.
LOOKS = (0.25, 0.35, 0.50, 0.70, 1.0)
# Shares of α: the last look has the largest.
_AT_THE_END, _BEFORE = 0.40, 0.15
_LEAST_JUDGED = 20


def looks(plan: int, skip: int) -> tuple[int, ...]:
    """Numbers of steps after which is looked, the whole plan last."""
    return tuple(sorted({max(math.ceil(part * plan), min(skip + _LEAST_JUDGED, plan)) for part in LOOKS}))


def at_a_look(
    seconds: Sequence[float],
    *,
    plan: int,
    skip: int,
    steps_of_a_line: int = 1,
    alpha: float = ALPHA,
    between_runs: float | None = None,
) -> Steady:
    """The steady state of the whole plan, seen from the steps so far: a drift may go on to its end.

    Args:
        seconds: of the steps so far.
        plan: steps of the whole run.
        skip, steps_of_a_line, alpha, between_runs: as of `steady_state`; α is for all looks together.
    """
    last = len(seconds) >= plan
    share = _AT_THE_END if last else _BEFORE
    now = steady_state(
        seconds, skip=skip, steps_of_a_line=steps_of_a_line, alpha=alpha * share, between_runs=between_runs
    )
    if last:
        return now
    # Middle of the plan's judged steps, from the middle of those so far, in lengths of what was judged so far.
    ahead = ((plan - len(seconds)) / 2) / now.judged
    further = now.mean * (1 + now.slope * ahead)
    wide = now.half_width * math.sqrt(1 + 12 * ahead * ahead)
    return replace(now, low=min(now.low, further - wide), high=max(now.high, further + wide))
