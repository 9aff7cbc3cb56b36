"""Golden losses: the loss of every step of a training, and by how much repeats of it differ.

The tolerance comes from the repeats alone. Each repeat is compared with the mean of the others: its distance at its
worst step, in units of their spread there, and the sum over its worst steps in a row, in units of its own noise. The
tolerances are the prediction limits of both for the next run, with 99 % certainty together. They are 0 if the repeats
are equal in every bit.
"""

import math
import statistics as stats
from collections.abc import Mapping, Sequence
from itertools import accumulate, combinations
from typing import NamedTuple, Self

from pydantic import FiniteFloat, NonNegativeFloat, model_validator

from pytest_llmbench.core.errors import ConfigError, RunError
from pytest_llmbench.core.quantity import for_people, listed
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.record.series import Step
from pytest_llmbench.core.schema import Document, Strict
from pytest_llmbench.judging.good_runs import LEAST_RUNS, facts_of
from pytest_llmbench.judging.interval.steady import ALPHA
from pytest_llmbench.judging.interval.student import quantile

# The least number of repeats that differ: of three, 0.5 to 1.4 % of further ones were refused, of four at most 0.8 %.
LEAST_DIFFERING = 4
# Neighbouring steps whose spread counts for one, on either side.
_NEIGHBOURS = 5
# Prior for the scatter of the repeats' worst distances: standard deviation of their logarithm, and its degrees of
# freedom.
_USUAL_SCATTER, _FREEDOM = 0.7, 4.0
_LEAST_WORST = 0.01
# A shift lasts for at least this many steps; each further length is longer by this factor. The prior of their sums.
_LASTING, _LONGER, _USUAL_SCATTER_OF_SUMS = 8, 1.5, 0.6
# A repeat is odd if its distance to the nearest other is this many times the usual one, and above this share of the
# range of the losses: differences of last bits may grow by any factor.
_APART, _HARMFUL = 10.0, 0.01
# Facts of a run that leave its losses as they are.
_IRRELEVANT_FACTS = {"system", "recipe.warm_up", "recipe.statistic_of_record", "recipe.end"}


class GoldenStep(Strict):
    """The loss of one step."""

    step: int
    """Number of the step, from 1."""
    loss: FiniteFloat
    """Mean loss of the repeats, in nat per token."""
    tolerance: NonNegativeFloat
    """Allowed distance of another run in nat; 0 where the loss must be the same in every bit."""


class GoldenLosses(Document):
    """The losses of a training, from repeats."""

    title = "golden losses"
    recipe: str
    """Name of the recipe."""
    training: Mapping[str, str]
    """Facts that a run must share: recipe, seed, layout, precision and device."""
    runs: tuple[str, ...]
    """Names of the repeats."""
    versions: Mapping[str, str]
    """Software versions of the repeats, from which a run may differ."""
    exact: bool
    """Whether the repeats were the same in every bit."""
    date: str
    """Day of the recording."""
    steps: tuple[GoldenStep, ...]
    """Loss of each step, in order."""
    lasting: NonNegativeFloat | None = None
    """Allowed sum of the distances of n steps in a row, in tolerances, as a multiple of the square root of n.

    Null where single steps decide alone: they are the same in every bit, or in every printed digit.
    """

    @model_validator(mode="after")
    def _whole(self) -> Self:
        numbers = [golden.step for golden in self.steps]
        if len(self.runs) < LEAST_RUNS or not numbers or numbers != sorted(set(numbers)):
            raise ValueError(f"golden losses need at least {LEAST_RUNS} runs, and each step once and in order")
        if any((golden.tolerance == 0.0) != self.exact for golden in self.steps):
            raise ValueError("a tolerance is 0 in all steps, if the runs were the same in every bit, or in none")
        return self

    def __repr__(self) -> str:
        return f"GoldenLosses({self.recipe}, {len(self.runs)} runs)"

    def __contains__(self, losses: object) -> bool:
        """Compare the losses of a run, and of the runs that are judged together with it, with these.

        Raises RunError `other_training` if they are of another training.
        """
        if not isinstance(losses, Losses):
            raise TypeError(f"{losses!r} in golden losses: write `run.losses in GoldenLosses.read(...)`")
        deviations = [deviation(record, self) for record in losses.records]
        losses.worst = max(deviations, key=lambda worst: (worst.beyond != (), _units(worst.away, worst.tolerance)))
        return not any(worst.beyond for worst in deviations)


class Losses:
    """The losses of a run, or of several that are judged together; `worst` is the step furthest from golden ones."""

    def __init__(self, records: Sequence[RunRecord]) -> None:
        self.records = records
        self.worst: Deviation | None = None

    def __repr__(self) -> str:
        return f"losses of {', '.join(record.key for record in self.records)}"


class Deviation(NamedTuple):
    """The step at which losses are furthest from golden ones: loss, distance and allowed distance, nat.

    `beyond` lists all steps whose distance exceeds the allowed one. If only the sum of several in a row does, it lists
    these, `lasting` is True, `step` is the first of them, and the numbers are their means.
    """

    run: str
    step: int
    loss: float
    away: float
    tolerance: float
    beyond: tuple[int, ...]
    lasting: bool = False


def golden_losses(runs: Mapping[str, RunRecord], date: str, resolution: float) -> GoldenLosses:
    """Put golden losses together from sane runs of one training, by name.

    `resolution` is that of a loss in a framework's log, nat; 0 for losses that have all their bits. Raises ConfigError
    if there are too few runs, or they differ by more than repeats of one training.
    """
    if len(runs) < LEAST_RUNS:
        raise ConfigError(f"{len(runs)} runs given: golden losses need at least {LEAST_RUNS}, better 5 or more")
    curves = {name: _losses(name, record.steps) for name, record in runs.items()}
    numbers = {tuple(curve) for curve in curves.values()}
    if len(numbers) > 1:
        raise ConfigError("the runs have losses of different steps: give runs that logged the same ones")
    columns = [[curve[step] for curve in curves.values()] for step in next(iter(numbers))]
    exact, lasting = all(len(set(column)) == 1 for column in columns), None
    tolerances = [0.0] * len(columns)
    if not exact:
        if len(runs) < LEAST_DIFFERING:
            raise ConfigError(
                f"the {len(runs)} runs differ: golden losses need at least {LEAST_DIFFERING} runs that differ, better "
                f"5 or more; {LEAST_RUNS} are enough if they are the same in every bit"
            )
        _refuse_odd(curves)
        tolerances, lasting = find_tolerances(columns)
    means = [column[0] if exact else stats.fmean(column) for column in columns]
    if not exact and all(abs(mean - means[0]) <= allowed for mean, allowed in zip(means, tolerances, strict=True)):
        raise ConfigError("the runs differ so much that a run that learns nothing would pass: find out why they do")
    first = next(iter(runs.values()))
    steps = tuple(
        GoldenStep(step=step, loss=mean, tolerance=max(allowed, resolution))
        for step, mean, allowed in zip(next(iter(numbers)), means, tolerances, strict=True)
    )
    return GoldenLosses(
        recipe=first.recipe.name, training=_training(first), runs=tuple(runs), versions=first.versions,
        exact=exact and not resolution, date=date, steps=steps, lasting=lasting,
    )  # fmt: skip


def deviation(record: RunRecord, golden: GoldenLosses) -> Deviation:
    """Compare every loss of a run with the golden ones.

    Raises RunError `other_training` if recipe, seed, layout, precision, device or steps differ.
    """
    own = _training(record)
    unlike = [
        f"{name} {own.get(name)}, there {value}" for name, value in golden.training.items() if own.get(name) != value
    ]
    if unlike:  #: error other_training: golden losses of another recipe, seed, layout, precision, device or steps
        raise RunError(
            "other_training", f"the golden losses of {golden.recipe} are of another training: {listed(unlike)}"
        )
    losses = {step.step: step.loss for step in record.steps}
    due = [expected.step for expected in golden.steps]
    if list(losses) != due or None in losses.values():
        raise RunError(
            "other_training",
            f"run {record.key} has losses of {len(losses)} steps, up to {max(losses, default=0)}, and the golden ones "
            f"are of {len(due)}, up to {due[-1]}: compare the same steps",
        )
    away = [((losses[expected.step] or 0.0) - expected.loss, expected) for expected in golden.steps]
    far, worst = max(away, key=lambda pair: _units(abs(pair[0]), pair[1].tolerance))
    beyond = tuple(expected.step for distance, expected in away if not abs(distance) <= expected.tolerance)
    if not beyond and golden.lasting is not None:
        total, start, end = worst_in_a_row([distance / expected.tolerance for distance, expected in away])
        if total > golden.lasting:
            several, steps = golden.steps[start:end], end - start
            mean = stats.fmean(distance for distance, _ in away[start:end])
            allowed = golden.lasting / math.sqrt(steps) * stats.fmean(expected.tolerance for expected in several)
            loss = mean + stats.fmean(expected.loss for expected in several)
            numbers = tuple(expected.step for expected in several)
            return Deviation(record.key, numbers[0], loss, abs(mean), allowed, numbers, lasting=True)
    loss = losses[worst.step] or 0.0
    return Deviation(record.key, worst.step, loss, abs(far), worst.tolerance, beyond)


def worst_in_a_row(units: Sequence[float]) -> tuple[float, int, int]:
    """The largest sum of steps in a row as a multiple of the square root of their number, and where it is."""
    sums, worst, length = [0.0, *accumulate(units)], (0.0, 0, 0), _LASTING
    while length <= len(units):
        found = ((abs(sums[end] - sums[end - length]), end) for end in range(length, len(sums)))
        total, end = max(found)
        worst = max(worst, (total / math.sqrt(length), end - length, end))
        length = round(_LONGER * length)
    return worst


def _units(distance: float, tolerance: float) -> float:
    if not math.isfinite(distance):
        return math.inf
    return distance / tolerance if tolerance else math.inf if distance else 0.0


def _training(record: RunRecord) -> dict[str, str]:
    return {name: str(value) for name, value in facts_of(record).items() if name not in _IRRELEVANT_FACTS}


def _losses(name: str, steps: Sequence[Step]) -> dict[int, float]:
    losses = {step.step: step.loss for step in steps}
    lacking = [step for step, loss in losses.items() if loss is None or not math.isfinite(loss)]
    if lacking or not losses:
        raise ConfigError(f"{name} has no loss, or none that is a number, at step {listed(lacking) or 1}")
    return {step: loss for step, loss in losses.items() if loss is not None}


def _refuse_odd(curves: Mapping[str, Mapping[int, float]]) -> None:
    """Refuse copies among repeats, and a repeat that is an outlier."""
    same = [pair for pair in combinations(curves, 2) if curves[pair[0]] == curves[pair[1]]]
    if same:
        one, other = same[0]
        third = next(name for name in curves if curves[name] != curves[one])
        step = next(number for number, loss in curves[one].items() if curves[third][number] != loss)
        raise ConfigError(
            f"{one} and {other} are the same in every bit, and {third} differs from step {step} on: if this training "
            "is deterministic, one of their machines computes wrong numbers; if not, one is a copy of the other"
        )
    nearest = {
        name: min(_apart(curves[name], other) for rival, other in curves.items() if rival != name) for name in curves
    }
    every = [loss for curve in curves.values() for loss in curve.values()]
    harmful = _HARMFUL * (max(every) - min(every))
    for name, distance in nearest.items():
        usual = stats.median(other for rival, other in nearest.items() if rival != name)
        if distance > max(_APART * usual, harmful):
            raise ConfigError(
                f"{name} differs from the other runs by {for_people(distance, 2)} nat, and they from each other by "
                f"{for_people(usual, 2)}: find out why, and leave it out"
            )


def _apart(one: Mapping[int, float], other: Mapping[int, float]) -> float:
    return max(abs(loss - other[step]) for step, loss in one.items())


def find_tolerances(columns: Sequence[Sequence[float]]) -> tuple[list[float], float]:
    """Allowed distance of the next run from the mean, at each step, and that of several steps in a row."""
    spreads = _spreads([stats.variance(column) for column in columns])
    count = len(columns[0])
    units = [
        [
            (column[run] - (sum(column) - column[run]) / (count - 1)) / spread
            for column, spread in zip(columns, spreads, strict=True)
        ]
        for run in range(count)
    ]
    most = _limit([max(map(abs, of_run)) for of_run in units], _USUAL_SCATTER)
    in_a_row = _limit([worst_in_a_row(of_run)[0] for of_run in units], _USUAL_SCATTER_OF_SUMS)
    return [most * spread for spread in spreads], in_a_row / most


def _limit(worst: Sequence[float], usual_scatter: float) -> float:
    """The prediction limit of the next one; half of alpha is for each of two limits."""
    # The least value keeps the logarithm finite for a run that lies in the middle of the others by chance.
    logs = [math.log(max(distance, _LEAST_WORST)) for distance in worst]
    known = _FREEDOM + len(logs) - 1
    scatter = math.sqrt((_FREEDOM * usual_scatter**2 + (len(logs) - 1) * stats.variance(logs)) / known)
    return math.exp(stats.fmean(logs) + quantile(1 - ALPHA / 2, known) * scatter * math.sqrt(1 + 1 / len(logs)))


def _spreads(variances: Sequence[float]) -> list[float]:
    """Standard deviation at each step, over its neighbours; steps before the runs diverge get the first above 0."""
    spreads: list[float] = []
    for number in range(len(variances)):
        near = variances[max(0, number - _NEIGHBOURS) : number + _NEIGHBOURS + 1]
        spreads.append(math.sqrt(sum(near) / len(near)) or (spreads[-1] if spreads else 0.0))
    first = next(spread for spread in spreads if spread)
    return [spread or first for spread in spreads]
