"""Whether the judged steps are all of one kind.

A mean over a warm-up that lasts longer than its rule, an evaluation or a drift is a true number about those steps, and
says little about the next ones. On CPUs, which other processes use as well, steps are never steady, so there is no
finding.
"""

import math
import statistics as stats
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_llmbench.core.quantity import listed
from pytest_llmbench.core.record.series import Step
from pytest_llmbench.judging.sanity.evidence import Evidence
from pytest_llmbench.judging.statistics import judged_steps

# Of fewer steps nobody can tell which are unlike the others.
_FEWEST = 10
# A slow step is this much above the median: in scaled MADs, and as a share of it.
_SLOW_MADS, _SLOW_SHARE = 6.0, 0.2
# MAD of normal noise as a standard deviation.
_SCALED = 1.4826
# A drift is worth a word from this share on, where it is so many times its standard error.
_DRIFT_SHARE, _DRIFT_ERRORS = 0.01, 4.0
# However alike neighbours are, so many of them count for one.
_MOST_ALIKE = 0.97


def unsteady(e: Evidence) -> Iterator[str]:
    """Tell the judged steps that are unlike the others, and a drift of those that are alike."""
    steps = _timed(e)
    slow = _slow(steps)
    start, end = _leading(slow), _leading(slow[::-1])
    middle = [step for step, is_slow in zip(steps, slow, strict=True) if is_slow][start : sum(slow) - end]
    if start:
        told, rule = _times(steps[:start], steps), e.recipe.warm_up.steps
        yield f"the first {start} judged steps are slow ({told}): a warm-up of {rule} steps is too short"
    if middle:
        told, numbers = _times(middle, steps), listed([step.step for step in middle])
        yield f"slow steps among the judged ones ({told}): {numbers}: an evaluation, a checkpoint or a stall?"
    if end:
        yield f"the last {end} judged steps are slow ({_times(steps[len(steps) - end :], steps)})"
    yield from _drift([step.seconds or 0.0 for step, is_slow in zip(steps, slow, strict=True) if not is_slow])


def _timed(e: Evidence) -> list[Step]:
    """The judged steps of a run on GPUs, where there are enough of them and each has a duration."""
    steps = [step for step in judged_steps(e.recipe, e.series.steps) if step.seconds] if e.topology.gpus else []
    return steps if len(steps) >= _FEWEST else []


def _slow(steps: Sequence[Step]) -> list[bool]:
    if not steps:
        return []
    seconds = [step.seconds or 0.0 for step in steps]
    usual = stats.median(seconds)
    scatter = _SCALED * stats.median(abs(each - usual) for each in seconds)
    most = usual + max(_SLOW_MADS * scatter, _SLOW_SHARE * usual)
    return [each > most for each in seconds]


def _leading(flags: Sequence[bool]) -> int:
    return next((index for index, flag in enumerate(flags) if not flag), 0)


def _times(some: Sequence[Step], steps: Sequence[Step]) -> str:
    seconds = [step.seconds or 0.0 for step in some]
    usual = stats.median(step.seconds or 0.0 for step in steps)
    return f"{stats.fmean(seconds) / usual:.3g} times the median of {usual:.4g} s"


def _drift(seconds: Sequence[float]) -> Iterator[str]:
    if len(seconds) < _FEWEST:
        return
    found = _error(seconds)
    if abs(found.drift) > max(_DRIFT_SHARE * found.mean, _DRIFT_ERRORS * math.sqrt(12) * found.of_mean_beside_drift):
        yield (
            f"the judged steps drift by {100 * found.drift / found.mean:+.2g} % from the first to the last: the speed "
            "is not settled"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Error:
    """Statistics of a mean of steps that are not independent.

    Attributes:
        drift: rise of the least-squares line from the first to the last step, seconds.
        of_mean_beside_drift: standard error of the mean, from what the line leaves, seconds.
    """

    mean: float
    drift: float
    of_mean_beside_drift: float


def _error(seconds: Sequence[float]) -> _Error:
    mean, middle = stats.fmean(seconds), (len(seconds) - 1) / 2
    slope = sum((i - middle) * (x - mean) for i, x in enumerate(seconds)) / sum(
        (i - middle) ** 2 for i in range(len(seconds))
    )
    return _Error(
        mean=mean,
        drift=slope * (len(seconds) - 1),
        of_mean_beside_drift=_standard_error([x - mean - slope * (i - middle) for i, x in enumerate(seconds)]),
    )


def _standard_error(residuals: Sequence[float]) -> float:
    """The standard error of a mean by its residuals, of which neighbours may be alike."""
    squares = math.fsum(each * each for each in residuals)
    if not squares or math.isinf(squares):
        return squares
    products = math.fsum(one * other for one, other in pairwise(residuals))
    alike = min(max(0.0, products / squares), _MOST_ALIKE)
    count = len(residuals)
    return math.sqrt(squares / (count - 1) / (count * (1 - alike) / (1 + alike)))
