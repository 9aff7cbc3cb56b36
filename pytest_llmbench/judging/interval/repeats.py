"""Several runs of one system: one interval of them all, and how many runs or steps would decide."""

import math
import statistics as stats
from collections.abc import Sequence

from pytest_llmbench.core.record.steady import Steady
from pytest_llmbench.judging.interval.steady import ALPHA, BETWEEN_RUNS, FREEDOM
from pytest_llmbench.judging.interval.student import quantile

_MOST_RUNS = 100


def pool(
    runs: Sequence[Steady], *, between_runs: float = BETWEEN_RUNS, freedom: float = FREEDOM, alpha: float = ALPHA
) -> Steady:
    """Make one steady state of several runs: a claim of the system.

    The more runs there are, the more their own difference counts, and the less the one known before.

    Args:
        runs: at least one.
        between_runs: standard deviation of runs of one system, as a share, known before.
        freedom: degrees of freedom with which that is known.
        alpha: probability of an error on either side, with which the runs were judged, too.

    Raises:
        ValueError: there are no runs.
    """
    if not runs:
        raise ValueError("no runs to pool: give at least one")
    count = len(runs)
    mean = _mean([run.mean for run in runs])
    differing = stats.variance([run.mean / mean for run in runs]) if count > 1 else 0.0
    known = freedom + count - 1
    deviation = math.sqrt((freedom * between_runs**2 + (count - 1) * differing) / known)
    within = math.hypot(*(run.within for run in runs)) / count
    drifts = [run.drift for run in runs if run.drift is not None]
    together = Steady(
        low=mean - _mean([run.mean - run.low - run.half_width for run in runs]) - within,
        high=mean + _mean([run.high - run.mean - run.half_width for run in runs]) + within,
        mean=mean,
        mean_with_pauses=_mean([run.mean_with_pauses for run in runs]),
        left_out=max(run.left_out for run in runs),
        judged=sum(run.judged for run in runs),
        half_width=within,
        slope=_mean([run.slope for run in runs]),
        drift=max(drifts, key=abs, default=None),
        settled=all(run.settled for run in runs),
        enough=all(run.enough for run in runs),
        least=max(run.least for run in runs),
        pauses=max((run.pauses for run in runs), key=lambda pauses: abs(pauses.share)),
        fastest=min(run.fastest for run in runs),
        slowest=max(run.slowest for run in runs),
    )
    return together.widened(quantile(1 - alpha, known) * deviation * mean / math.sqrt(count))


def steps_to_decide(run: Steady, bound: float) -> int | None:
    """Return how many steps, with those left out, would decide if the run went on as it did.

    Args:
        run: its interval contains the bound, or it is too short.
        bound: seconds per step.

    Returns:
        None where more steps alone would not decide: it drifts or pauses, is on the bound, or runs differ by more.
    """
    match run.decide(bound):
        case "too_short":
            return run.least
        case "within_noise":
            pass
        case _:
            return None
    distance = abs(run.mean - bound)
    # Both the half width and what a hidden fall adds to it become smaller with more steps.
    reach = (run.mean - run.low if bound < run.mean else run.high - run.mean) - run.half_width + run.within
    if distance <= run.between:
        return None
    return run.left_out + math.ceil(run.judged * reach**2 / (distance**2 - run.between**2))


def runs_to_decide(
    run: Steady, bound: float, *, between_runs: float = BETWEEN_RUNS, freedom: float = FREEDOM, alpha: float = ALPHA
) -> int | None:
    """Return how many runs like this one would decide, if they differed as runs did before.

    Args:
        run: its interval contains the bound.
        bound: seconds per step.
        between_runs: as of `pool`.
        freedom: as of `pool`.
        alpha: as of `pool`.

    Returns:
        None where no number up to 100 would: it is too short, drifts or pauses, or is on the bound.
    """
    if run.decide(bound) != "within_noise":
        return None
    distance = abs(run.mean - bound)
    reach = run.mean - run.low if bound < run.mean else run.high - run.mean
    systematic = reach - run.half_width
    for count in range(2, _MOST_RUNS + 1):
        between = quantile(1 - alpha, freedom + count - 1) * between_runs * run.mean
        if systematic + math.hypot(run.within, between) / math.sqrt(count) < distance:
            return count
    return None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
