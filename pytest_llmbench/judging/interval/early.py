"""An early verdict: looks at a run that goes on, each with its share of alpha."""

import math
from collections.abc import Sequence
from dataclasses import replace

from pytest_llmbench.core.record.steady import Steady
from pytest_llmbench.judging.interval.slow_steps import SHARE
from pytest_llmbench.judging.interval.steady import ALPHA, LEAST, steady_state, unseen

# Shares of the plan after which the run is judged. Earlier looks would judge a drifting run by its beginning.
LOOKS = (0.25, 0.35, 0.50, 0.70, 1.0)
# Shares of alpha: the last look has the largest.
_AT_THE_END, _BEFORE = 0.40, 0.15


def looks(plan: int, skip: int) -> tuple[int, ...]:
    """Numbers of steps after which the run is judged, the whole plan last."""
    return tuple(sorted({max(math.ceil(part * plan), min(skip + LEAST, plan)) for part in LOOKS}))


def alpha_at(look: int, plan: int, alpha: float = ALPHA) -> float:
    """The part of alpha that is spent at a look."""
    return alpha * (_AT_THE_END if look >= plan else _BEFORE)


def at_a_look(seconds: Sequence[float], *, plan: int, steps_of_a_line: int = 1, alpha: float = ALPHA) -> Steady:
    """Estimate the steady state of the whole plan from the steps so far: a drift may go on to its end.

    Later events, such as a node that throttles, are outside of this estimate.

    `plan` is the number of entries of the whole run, `alpha` the probability of an error on either side at all looks
    together; the rest is as for `steady_state`.
    """
    share = alpha_at(len(seconds), plan, alpha)
    now = steady_state(seconds, steps_of_a_line=steps_of_a_line, alpha=share)
    if len(seconds) < plan:
        # Distance from the middle of the steps so far to the middle of all planned ones, in lengths of those so far.
        ahead = ((plan - len(seconds)) / 2) / now.judged
        change = now.slope * ahead
        further = now.mean * (1 + change if change > 0.0 else 1 / (1 - change))
        wide = now.half_width * math.sqrt(1 + 12 * ahead * ahead)
        # Pauses that are too seldom to be seen so far.
        pauses = -math.log(share) * SHARE * now.mean / (now.left_out + now.judged)
        now = replace(
            now, low=min(now.low, further * math.exp(-wide / further)), high=max(now.high, further + wide),
            pausing=max(now.pausing, pauses),
            # A level that comes later is more likely the shorter the look.
            unseen=max(now.unseen, unseen(now.judged * steps_of_a_line) * now.mean),
        )  # fmt: skip
    return now
