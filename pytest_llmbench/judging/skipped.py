"""Steps that a framework skipped because their gradients overflowed: they are untrained, yet counted in its rates."""

import statistics as stats
from collections.abc import Iterator, Sequence

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.series import Step, StepSeries
from pytest_llmbench.judging.statistics import judged_steps

# Of the judged steps. In fp16 the loss scale is found at the start, and tried again every 100 to 1000 steps.
_MOST = 0.05
_NAME = "number_of_skipped_iterations"


def too_many(recipe: Recipe, series: StepSeries) -> Iterator[str]:
    """Yield the problem in a sentence if too many of the judged steps were skipped."""
    count, whole = _count(recipe, series)
    if count > _MOST * whole:
        yield (
            f"{count:g} of {whole} judged steps were skipped, as their gradients overflowed: such steps train nothing; "
            f"let the loss scale settle within warm_up.steps, or give a smaller initial one"
        )


def some(recipe: Recipe, series: StepSeries) -> Iterator[str]:
    """Yield the number of skipped steps and their effect on the rate, if few enough for the others to be judged."""
    count, whole = _count(recipe, series)
    if 0 < count <= _MOST * whole:
        yield (
            f"{count:g} of {whole} judged steps were skipped, as their gradients overflowed: their tokens count in the "
            f"rate, and {100 * count / whole:.2g} % of it trained nothing{_faster(judged_steps(recipe, series.steps))}"
        )


def _count(recipe: Recipe, series: StepSeries) -> tuple[float, int]:
    """Count skipped and all judged steps, by the log's running sums since the warm-up, else by its lines."""
    if not series.skipped:
        judged = judged_steps(recipe, series.steps)
        return sum(step.reported.get(_NAME, 0.0) for step in judged), sum(step.interval for step in judged)
    sums = [(step, count) for step, count in series.skipped if step <= recipe.warm_up.steps]
    (first, had), (last, have) = sums[-1] if sums else (0, 0), series.skipped[-1]
    return have - had, last - first


def _faster(judged: Sequence[Step]) -> str:
    """Describe how lines with a skipped step change the mean duration, if each line has its own count."""
    lines = [(step.reported[_NAME], step.seconds) for step in judged if _NAME in step.reported and step.seconds]
    skipped, made = ([seconds for count, seconds in lines if bool(count) == kind] for kind in (True, False))
    if not skipped or not made:
        return ""
    share = stats.fmean(skipped + made) / stats.fmean(made) - 1
    mean = f"the mean step takes {stats.fmean(made):.4g} s, and with them {share:+.2%}"
    return f"; without the lines that have one, {mean}"
