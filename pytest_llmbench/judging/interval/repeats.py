"""Several runs of one system: their common interval, and the number of runs or steps that would decide."""

import math
import statistics as stats
from collections.abc import Sequence

from pytest_llmbench.core.record.steady import Steady
from pytest_llmbench.judging.interval.steady import ALPHA, BETWEEN_RUNS, FREEDOM, unseen
from pytest_llmbench.judging.interval.student import quantile

# A single run shows nothing of the difference between runs: it is judged as if the usual one were wider by this factor.
_ALONE = 1.13
_MOST_RUNS, _MOST_STEPS = 100, 1_000_000


def share_of_look(look: int) -> float:
    """The part of alpha that may be spent at a look, counted from 0; the number of runs doubles from look to look.

    The sum of all parts stays below alpha for any number of looks.
    """
    return ALPHA * 0.5 ** (look + 1)


def pool(
    runs: Sequence[Steady],
    *,
    between_runs: float = BETWEEN_RUNS,
    freedom: float = FREEDOM,
    known: bool = False,
    alpha: float = ALPHA,
) -> Steady:
    """Combine the steady states of several runs into one, for a claim about the system.

    The more runs there are, the more their own scatter counts, and the less the prior: `between_runs`, a standard
    deviation as a share with `freedom` degrees of freedom, which is `known` from runs of this system, or usual.
    `alpha` is the one of the steady states. Raises ValueError if `runs` is empty.
    """
    if not runs:
        raise ValueError("no runs to pool: give at least one")
    count = len(runs)
    mean = stats.fmean([run.mean for run in runs])
    differing = stats.variance([run.mean / mean for run in runs]) if count > 1 else 0.0
    total = freedom + count - 1
    deviation = math.sqrt((freedom * between_runs**2 + (count - 1) * differing) / total)
    deviation *= _widening(count, known=known)
    within = math.hypot(*(run.within for run in runs)) / count
    drifts = [run.drift for run in runs if run.drift is not None]
    if math.isinf(within):
        lower = upper = 0.0
    else:
        lower = stats.fmean([run.reach - run.half_width for run in runs])
        upper = stats.fmean([run.high - run.mean - run.half_width for run in runs])
    together = Steady(
        low=mean * math.exp(-(lower + within) / mean),
        high=mean + upper + within,
        mean=mean,
        mean_with_pauses=stats.fmean([run.mean_with_pauses for run in runs]),
        left_out=max(run.left_out for run in runs),
        judged=sum(run.judged for run in runs),
        half_width=within,
        slope=stats.fmean([run.slope for run in runs]),
        drift=max(drifts, key=abs, default=None),
        settled=all(run.settled for run in runs),
        enough=all(run.enough for run in runs),
        least=max(run.least for run in runs),
        pauses=max((run.pauses for run in runs), key=lambda pauses: abs(pauses.share)),
        fastest=min(run.fastest for run in runs),
        slowest=max(run.slowest for run in runs),
        pausing=math.hypot(*(run.pausing for run in runs)) / count,
        unseen=math.hypot(*(run.unseen for run in runs)) / count,
    )
    return together.widened(quantile(1 - alpha, total) * deviation * mean / math.sqrt(count))


def steps_to_decide(run: Steady, bound: float) -> int | None:
    """The number of steps, with those left out, that would decide if the run went on as it did.

    None if a million are too few: the run drifts or pauses, is on the bound, or runs differ by more. The bound is in
    seconds per step.
    """
    reason = run.decide(bound)
    if reason == "too_short":
        return run.least
    distance, reach = _distance_and_reach(run, bound)
    if reason not in {"within_noise", "unseen_levels"} or distance <= run.between or math.isinf(reach):
        return None
    # More steps shrink the half width and what a hidden fall adds to it, while the difference between runs stays.
    hidden, steps = max(reach - run.half_width, 0.0), run.judged
    while steps < _MOST_STEPS:
        steps += 1 + steps // 100
        part, levels = math.sqrt(run.judged / steps), run.unseen * unseen(steps) / unseen(run.judged)
        if hidden * part + math.hypot(run.within * part, run.between) + levels < distance:
            return run.left_out + steps
    return None


def runs_to_decide(
    together: Steady,
    bound: float,
    *,
    runs: int = 1,
    freedom: float = FREEDOM,
    known: bool = False,
    alpha: float = ALPHA,
) -> int | None:
    """The number of runs, these included, that would decide if further runs scattered like these.

    It is at most 100; None if that is too few: a run is too short or pauses, or the runs drift or are on the bound.
    `together` is the pooled steady state of `runs` runs. The prior in it, usual or `known`, has `freedom` degrees of
    freedom.
    """
    if together.decide(bound) not in {"within_noise", "drifts"}:
        return None
    distance, reach = _distance_and_reach(together, bound)
    systematic = reach - together.half_width
    differing = together.between / quantile(1 - alpha, freedom + runs - 1) / _widening(runs, known=known)
    for count in range(runs + 1, _MOST_RUNS + 1):
        between = quantile(1 - alpha, freedom + count - 1) * differing
        if systematic + math.hypot(together.within, between) * math.sqrt(runs / count) < distance:
            return count
    return None


def _distance_and_reach(run: Steady, bound: float) -> tuple[float, float]:
    """Distance of the bound from the mean, and that of the end of the interval on its side, both in seconds."""
    if bound < run.mean:
        return run.mean * math.log(run.mean / bound) if bound > 0.0 else math.inf, run.reach
    return bound - run.mean, run.high - run.mean


def _widening(runs: int, *, known: bool) -> float:
    return _ALONE if runs == 1 and not known else 1.0
