"""Causes that the durations of steps show: a slow start, pauses, noise."""

import statistics as stats
from collections.abc import Iterator

from pytest_llmbench.core.quantity import counted, for_people
from pytest_llmbench.judging.cause.evidence import Candidate, Cause, Missed, seconds

# A step at the start counts as slow from this factor on.
_SLOW = 1.15
_MOST_OF_ALL = 2 / 3
# Noise has many causes: one that is seen as such goes before it.
_NOISE_COUNTS = 0.5


def of_steps(m: Missed) -> Iterator[Candidate]:
    """Yield all of them."""
    if m.judged:
        yield from (*_warm_up(m), *_pauses(m), *_noise(m))


def _warm_up(m: Missed) -> Iterator[Candidate]:
    took = [step.seconds or 0.0 for step in m.judged]
    rest = stats.median(took[len(took) // 2 :])
    slow = next((at for at, each in enumerate(took) if each < _SLOW * rest), len(took))
    slow = max(slow, m.steady.left_out)
    left_out = m.steady.left_out if m.by_interval and m.decided else 0
    if slow <= left_out or slow > _MOST_OF_ALL * len(took):
        return
    first, later = stats.fmean(took[:slow]), stats.fmean(took[slow:])
    weight = (slow - left_out) * (first - later) / (len(took) - left_out)
    yield Candidate(
        cause=Cause(
            kind="warm-up",
            sentence=(
                f"the first {counted(slow, 'judged step')} took {seconds(first)} each, and the later ones "
                f"{seconds(later)}: let the recipe leave out more as warm-up, or train longer"
            ),
        ),
        weight=weight,
    )


def _pauses(m: Missed) -> Iterator[Candidate]:
    pauses, lost = m.steady.pauses, m.steady.mean_with_pauses - m.steady.mean
    later = pauses.at[pauses.first :]
    if later and lost > 0.0:
        every = f", one every {pauses.period} steps," if pauses.period is not None else ""
        share = for_people(100 * lost / m.step_s, 2)
        yield Candidate(
            cause=Cause(
                kind="pauses",
                sentence=(
                    f"{counted(len(later), 'slow step')}{every} took {share} % of the time in addition to what a "
                    f"usual step takes ({seconds(m.steady.pauses.usual)}): an evaluation, a checkpoint or a stall"
                ),
            ),
            weight=lost,
        )


def _noise(m: Missed) -> Iterator[Candidate]:
    took = sorted(step.seconds or 0.0 for step in m.typical)
    if len(took) < 2:
        return
    mean, calm = stats.fmean(took), took[len(took) // 10]
    scatter = for_people(100 * stats.pstdev(took) / mean, 2)
    cause = Cause(
        kind="noise",
        sentence=(
            f"the steps scatter by {scatter} % (standard deviation): the fastest tenth takes up to {seconds(calm)}, "
            f"the mean is {seconds(mean)}, and no rank or phase explains it"
        ),
    )
    yield Candidate(cause=cause, weight=mean - calm, counts=_NOISE_COUNTS, shown=False)
