"""Compares numbers of earlier and later runs: the change of each, with its interval.

`compare_runs` judges all numbers of a session together. `compare_sessions` applies it to two sessions, and
`baselines.py` to a session and its history.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from pytest_llmbench.core.quantity import USUAL_BETWEEN_RUNS, BetweenRuns, for_people
from pytest_llmbench.core.record.records import RunRecord, Verdict
from pytest_llmbench.history.queries import PastRun
from pytest_llmbench.history.rows import MetricRow, Series, metrics_of, problem_of, series_of
from pytest_llmbench.history.scatter import (
    LEAST_PAST,
    Scatter,
    scatter_of_runs,
    shared_scatter,
    usual_scatter,
    without_outliers,
)
from pytest_llmbench.judging.interval.steady import ALPHA, FEW_TO_COMPARE, unseen_between
from pytest_llmbench.judging.interval.student import quantile
from pytest_llmbench.judging.statistics import Better

# Share of comparisons of sessions in which chance calls any number worse. With the usual 1 %, a gate that compares
# every night would call a healthy system slow three or four times a year.
ALPHA_OF_SESSION = ALPHA / 5
# An interval that reaches this far to the worse, as a share, could hide a regression that matters.
COARSE = 0.05
_ENERGY = "energy_per_token"
# Verdict of a number that lacks a direction or an interval, or is zero.
NOT_JUDGED = "-"
# Degrees of freedom by which an end of a run's own interval is turned into a standard error.
_FREEDOM_WITHIN = 8.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """The change of a number from the mean of earlier runs to that of new ones, both in `unit`."""

    before: float
    after: float
    unit: str
    runs_before: int
    runs_after: int
    share: float  # the change as a share of the mean before, in the interval from `low` to `high`
    better: Better | None  # direction of an improvement
    low: float | None = None
    high: float | None = None
    deviation: float | None = None  # standard deviation of the number of one run, as a share; None if unknown
    alpha: float = ALPHA  # probability that an end of the interval is wrong
    reason: str = ""  # the reason for a missing interval, or for one that is wide because of few steps

    @property
    def loss(self) -> tuple[float, float] | None:
        """The least and the most by which it may be worse, as shares; below 0 if it became better; None if unknown."""
        if self.low is None or self.high is None or self.better is None:
            return None
        return (-self.high, -self.low) if self.better == "higher" else (self.low, self.high)

    @property
    def verdict(self) -> Verdict:
        """FAIL for a regression, INCONCLUSIVE for an interval that is missing or too wide, else PASS."""
        least, most = self.loss or (-math.inf, math.inf)
        if least > 0.0:
            return Verdict.FAIL
        return Verdict.PASS if most <= COARSE else Verdict.INCONCLUSIVE

    @property
    def improved(self) -> bool:
        """True if it is better beyond the uncertainty."""
        return self.loss is not None and self.loss[1] < 0.0


def usual_spread(series: Series) -> BetweenRuns | None:
    """The difference between runs as other systems have it; None on CPUs and for scale smoke."""
    return USUAL_BETWEEN_RUNS if series.gpus and series.scale == "full" else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """A number of earlier and later runs, with the verdict on its change."""

    name: str  # recipe, or key of the first of the later runs
    metric: str = ""  # the statistic; empty for incomparable runs
    # PASS, FAIL (it became worse, beyond what is uncertain), INCONCLUSIVE, SKIP, ERROR, or `-` for a number that lacks
    # a direction or an interval
    verdict: str = NOT_JUDGED
    reason: str = ""  # the reason of the verdict, or a note
    change: Change | None = None
    sessions: tuple[str, ...] = ()  # sessions of the earlier runs that the history chose
    # The number of each earlier and each later run of one series; none for incomparable ones
    before: Sequence[MetricRow] = ()
    after: Sequence[MetricRow] = ()
    past: Sequence[MetricRow] = ()  # of all earlier runs of the series, in order of time; used from 3 runs on
    usual: BetweenRuns | None = None  # the difference between runs of other systems; without it, `past` needs 3 runs
    candidates: int = 1  # number of sessions from which `before` was chosen as the best

    @property
    def judged(self) -> bool:
        """True if it can get a verdict."""
        return all(row.better is not None and row.low is not None for row in (*self.before, *self.after))

    @property
    def scatter(self) -> Scatter:
        """The scatter of the runs of this series."""
        return scatter_of_runs(*([row.value for row in rows] for rows in (self.past, self.before, self.after)))


def measure_change(pair: Compared, *, shared: Scatter | None = None, alpha: float = ALPHA) -> Change:
    """Compare a number of two sets of runs.

    The interval is that of the ratio of both means. It covers the noise of the steps within each run, and the
    difference between runs of one system, from earlier and new runs, and `shared`, the scatter of other series of this
    system, or else that of other systems. An end of it is wrong with probability `alpha`.

    Raises ValueError if a set is empty, units differ, or the mean before is 0 or less.
    """
    before, after, past = pair.before, pair.after, pair.past
    if problem := not_comparable(before, after):
        raise ValueError(problem)
    means = fmean(row.value for row in before), fmean(row.value for row in after)
    ratio = means[1] / means[0]
    change = Change(
        before=means[0], after=means[1], unit=after[-1].unit, runs_before=len(before), runs_after=len(after),
        share=ratio - 1.0, better=after[-1].better or before[-1].better, alpha=alpha,
    )  # fmt: skip
    if any(_error(row) is None for row in (*before, *after)):
        return replace(change, reason="one of the runs has no interval: it is too short, or its statistic has none")
    own = pair.scatter
    if pair.usual is None and (len(past) < LEAST_PAST or own.freedom <= 0.0):
        reason = f"runs on CPUs and at scale smoke scatter: {LEAST_PAST} earlier runs are needed"
        return replace(change, reason=reason)
    measured = [row for row in past if _error(row) is not None]
    alike = measured if len(measured) >= LEAST_PAST else before
    # Medians and not means, which one earlier run with a wide interval would change.
    error = median(_errors(alike))
    if shared is not None:
        own += shared
    elif pair.usual is not None:
        own += usual_scatter(pair.usual, error)
    # A run's own steps limit how well it is measured: earlier runs that agree better may be copies of one.
    variance = max(own.deviation, error) ** 2
    # Runs that are measured less well may only look so by chance: noise that moves a mean makes the steps themselves
    # scatter by as much or more.
    more_before = min(max(0.0, median(_errors(before)) ** 2 - error**2), _more_scatter(alike, before))
    more_after = min(max(0.0, fmean(each**2 for each in _errors(after)) - error**2), _more_scatter(alike, after))
    width = quantile(1 - alpha, own.freedom) * math.sqrt(
        (variance + more_before) / len(before) + (variance + more_after) / len(after)
    )
    reason = ""
    apart = unseen_between(row.steps for row in (*before, *after))
    if apart and shared is None and len(past) < LEAST_PAST:
        width += apart / math.sqrt(min(len(before), len(after)))
        reason = (
            f"runs of fewer than {FEW_TO_COMPARE} judged steps may be on two levels of speed, up to {apart:.0%} apart: "
            f"train longer, or compare where the history has {LEAST_PAST} earlier runs"
        )
    return replace(
        change, low=ratio * math.exp(-width) - 1.0, high=ratio * (1 + width) - 1.0, deviation=math.sqrt(variance),
        reason=reason,
    )  # fmt: skip


def not_comparable(before: Sequence[MetricRow], after: Sequence[MetricRow]) -> str:
    """The obstacle to a ratio of the means of two sets; empty if there is a ratio."""
    if not before or not after:
        return "two sets with at least one run each can be compared"
    units = {row.unit for row in (*before, *after)}
    if len(units) > 1:
        return f"numbers in {' and '.join(sorted(units))} cannot be compared"
    if not _are_finite(before, after):
        return f"one of {', '.join(f'{row.value:g}' for row in (*before, *after))} is not a number"
    mean = fmean(row.value for row in before)
    return "" if mean > 0.0 else f"a mean of {mean:g} cannot be the base of a change in percent"


def _are_finite(*sides: Sequence[MetricRow]) -> bool:
    return all(math.isfinite(row.value) for rows in sides for row in rows)


def _error(row: MetricRow) -> float | None:
    """Standard error of a run's number by its own steps, as a share; None without an interval."""
    if row.low is None or row.high is None or row.value <= 0.0 or not math.isfinite(row.high - row.low):
        return None
    # The wider side allows for a slow start, which is the same in runs of one length.
    half = min(row.high - row.value, row.value - row.low)
    return max(half, 0.0) / (row.value * quantile(1 - ALPHA, _FREEDOM_WITHIN))


def _errors(rows: Sequence[MetricRow]) -> list[float]:
    """The standard errors of some runs, without those of runs whose steps are all alike."""
    return [error for row in rows if (error := _error(row))] or [0.0]


def _more_scatter(alike: Sequence[MetricRow], rows: Sequence[MetricRow]) -> float:
    """How much larger, beyond chance, the variance of the steps is in `rows` than in runs that are `alike`.

    It is a share of the squared mean; infinite if unknown.
    """
    usual, here = ([row.scatter**2 for row in some if row.scatter is not None] for some in (alike, rows))
    if len(usual) < max(LEAST_PAST, len(alike)) or len(here) < len(rows):
        return math.inf
    return max(0.0, fmean(here) - max(usual[i] for i in without_outliers(usual)))


def compare_runs(lines: Sequence[Compared], judge: Callable[[Compared, Change], Compared]) -> list[Compared]:
    """Compare all numbers of a session; any of them is wrong in at most a share `ALPHA_OF_SESSION` of sessions.

    `judge` adds the verdict on a change. Lines without numbers stay as they are.
    """
    numbers = [line for line in lines if line.after]
    scatters: dict[tuple[str, BetweenRuns | None], list[Scatter]] = {}
    for line in numbers:
        scatters.setdefault((line.metric, line.usual), []).append(line.scatter)
    shared = {kind: shared_scatter(of_kind) for kind, of_kind in scatters.items()}
    alpha = ALPHA_OF_SESSION / max(1, sum(line.judged for line in numbers))

    def compare(line: Compared) -> Compared:
        # The mean of the best of many sessions is above its true mean.
        of_kind = shared[line.metric, line.usual]
        change = measure_change(line, shared=of_kind, alpha=alpha / line.candidates)
        return judge(replace(line, change=change), change)

    return [compare(line) if line.after else line for line in lines]


def run_of_record(record: RunRecord, wrong_work: str = "") -> PastRun:
    """The run of a record, as the history returns runs; `wrong_work` is how its recipe is not the one of today."""
    problem = problem_of(record) or (f"wrong_work: {wrong_work}" if wrong_work else None)
    return PastRun(
        session=record.session, name=record.key, time=record.timings.started, series=series_of(record),
        problem=problem, simulated=record.simulated,
        metrics={} if problem is not None else {metric.name: metric for metric in metrics_of(record)},
    )  # fmt: skip


def compare_sessions(
    before: Sequence[PastRun], after: Sequence[PastRun], past: Mapping[str, Sequence[PastRun]] | None = None
) -> list[Compared]:
    """Compare the runs of an earlier and a later session; `past` has runs of the history by recipe."""
    lines: list[Compared] = []
    for recipe in sorted({run.series.recipe for run in (*before, *after)}):
        old, new = ([run for run in runs if run.series.recipe == recipe] for runs in (before, after))
        obstacle = _obstacle(recipe, old, new)
        lines += [obstacle] if obstacle else _numbers(recipe, old, new, (past or {}).get(recipe, ()))
    return compare_runs(lines, _judge)


def _obstacle(recipe: str, old: Sequence[PastRun], new: Sequence[PastRun]) -> Compared | None:
    """The verdict on incomparable runs of a recipe; None if they are comparable."""
    for runs, word in ((old, "earlier"), (new, "later")):
        if not runs:
            return Compared(name=recipe, verdict=Verdict.SKIP, reason=f"the {word} session has no run of it")
        if any(run.simulated for run in runs):
            reason = f"the {word} session simulated a fault: it measured nothing"
            return Compared(name=recipe, verdict=Verdict.SKIP, reason=reason)
        if broken := [run for run in runs if run.problem is not None]:
            reason = f"run {broken[0].name} of the {word} session cannot be judged: {broken[0].problem}"
            return Compared(name=recipe, verdict=Verdict.ERROR, reason=reason)
    series = [*dict.fromkeys(run.series for run in (*old, *new))]
    if len(series) > 1:
        reason = f"its runs are not comparable: {series[0].differs_from(series[1])}"
        return Compared(name=recipe, verdict=Verdict.SKIP, reason=reason)
    return None


def _numbers(
    recipe: str, old: Sequence[PastRun], new: Sequence[PastRun], past: Sequence[PastRun]
) -> Iterator[Compared]:
    """Yield each number of a recipe, or, for an incomparable one, its verdict."""
    series, runs = new[0].series, (*old, *new)
    past = [run for run in past if run.series == series and run.problem is None]
    names = {name for run in runs for name in run.metrics}
    if series.gpus and _ENERGY not in names:
        reason = "no run of either session has it: their reports have the reason"
        yield Compared(name=recipe, metric=_ENERGY, verdict=Verdict.SKIP, reason=reason)
    for metric in sorted(names):
        if any(metric not in run.metrics for run in runs):
            which = "earlier" if any(metric not in run.metrics for run in old) else "later"
            reason = f"a run of the {which} session lacks it"
            yield Compared(name=recipe, metric=metric, verdict=Verdict.SKIP, reason=reason)
            continue
        before, after = ([run.metrics[metric] for run in side] for side in (old, new))
        if reason := not_comparable(before, after):
            verdict = NOT_JUDGED if _are_finite(before, after) else Verdict.ERROR
            yield Compared(name=recipe, metric=metric, verdict=verdict, reason=reason)
            continue
        yield Compared(
            name=recipe, metric=metric, before=before, after=after, usual=usual_spread(series),
            past=[run.metrics[metric] for run in past if metric in run.metrics],
        )  # fmt: skip


def _judge(line: Compared, change: Change) -> Compared:
    if change.better is None:
        return replace(line, reason="no direction")
    if change.low is None:
        needs_past = change.reason.startswith("runs on CPUs")
        return replace(line, verdict=Verdict.INCONCLUSIVE if needs_past else NOT_JUDGED, reason=change.reason)
    wide = change.reason or "a regression could hide in it"
    reason = f"the interval is too wide: {wide}" if change.verdict is Verdict.INCONCLUSIVE else ""
    if change.improved:
        reason = "better beyond the uncertainty"
    return replace(line, verdict=change.verdict, reason=reason)


def change_texts(change: Change | None) -> tuple[str, str, str, str]:
    """Earlier mean, later mean, change and its interval, for people; empty where unknown."""
    if change is None:
        return "", "", "", ""
    before, after = (f"{for_people(mean)} {change.unit}" for mean in (change.before, change.after))
    between = ""
    if change.low is not None and change.high is not None:
        between = f"{100 * change.low:+.2f} to {100 * change.high:+.2f} %"
    return before, after, f"{100 * change.share:+.2f} %", between
