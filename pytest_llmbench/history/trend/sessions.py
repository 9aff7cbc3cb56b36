"""Two sessions compared: every recipe that either has, and every number that both have."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pytest_llmbench.core.quantity import BetweenRuns
from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.history.store.queries import PastRun
from pytest_llmbench.history.store.rows import MetricRow, RecordRows, Series
from pytest_llmbench.history.trend.comparing import ALPHA_OF_SESSION, Change, change, not_comparable, usual_spread
from pytest_llmbench.history.trend.scatter import Scatter, scatter_of_runs, shared_scatter

# A number without a verdict: it has no direction, no interval, or is zero.
NOT_JUDGED = "-"


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedNumber:
    """One line of a comparison.

    Attributes:
        recipe: the recipe.
        metric: the statistic; empty for a recipe that is not compared at all.
        verdict: PASS, FAIL (it became worse, beyond what is uncertain), INCONCLUSIVE, SKIP, ERROR, or `-` for a number
            that has no direction or no interval.
        change: None where nothing was compared.
        reason: the reason that it is not a PASS, or a note about it.
    """

    recipe: str
    metric: str
    verdict: str
    change: Change | None = None
    reason: str = ""

    @property
    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        told = {"recipe": self.recipe, "metric": self.metric, "verdict": self.verdict, "reason": self.reason}
        if self.change is not None:
            told |= {name: getattr(self.change, name) for name in Change.__slots__ if name != "why"}
        return told


def runs_of_rows(rows: Sequence[RecordRows]) -> list[PastRun]:
    """The runs among the records of a session's folder, as the history has them."""
    return [
        PastRun(
            session=row.session, name=row.name, time=row.time, series=row.series, problem=row.problem,
            simulated=row.simulated is not None, metrics={metric.name: metric for metric in row.metrics},
        )
        for row in rows if row.series is not None
    ]  # fmt: skip


def compare_sessions(
    before: Sequence[PastRun], after: Sequence[PastRun], past: Mapping[str, Sequence[PastRun]] | None = None
) -> list[ComparedNumber]:
    """Compare the runs of two sessions, recipe by recipe.

    Args:
        before: runs of the earlier session.
        after: those of the later one.
        past: earlier runs by recipe, where there is a history: they say how runs differ.
    """
    recipes = sorted({run.series.recipe for run in (*before, *after)})
    lines = [line for recipe in recipes for line in _of_recipe(recipe, before, after, past or {})]
    pairs = [line for line in lines if isinstance(line, _Pair)]
    kinds: dict[_Kind, list[Scatter]] = {}
    for pair in pairs:
        kinds.setdefault(pair.kind, []).append(pair.scatter)
    shared = {kind: shared_scatter(scatters) for kind, scatters in kinds.items()}
    alpha = ALPHA_OF_SESSION / max(1, sum(pair.judged for pair in pairs))
    return [_judged(line, shared[line.kind], alpha) if isinstance(line, _Pair) else line for line in lines]


_Kind: TypeAlias = tuple[str, BetweenRuns | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pair:
    """A number that runs of both sessions have.

    Attributes:
        before, after: the number in each run of the earlier session, and of the later one.
        past: the same of earlier runs, in order of time.
        usual: how runs of such a series differ on other systems; None if that is not known.
    """

    recipe: str
    metric: str
    before: Sequence[MetricRow]
    after: Sequence[MetricRow]
    past: Sequence[float]
    usual: BetweenRuns | None

    @property
    def kind(self) -> _Kind:
        """Pairs of one kind tell each other how runs differ."""
        return self.metric, self.usual

    @property
    def judged(self) -> bool:
        """Whether it can get a verdict."""
        return all(row.better is not None and row.low is not None for row in (*self.before, *self.after))

    @property
    def scatter(self) -> Scatter:
        """The scatter of these runs alone."""
        return scatter_of_runs(self.past, [row.value for row in self.before], [row.value for row in self.after])


def _of_recipe(
    recipe: str, before: Sequence[PastRun], after: Sequence[PastRun], past: Mapping[str, Sequence[PastRun]]
) -> "Iterator[ComparedNumber | _Pair]":
    old, new = ([run for run in runs if run.series.recipe == recipe] for runs in (before, after))
    for runs, word in ((old, "earlier"), (new, "later")):
        if not runs:
            reason = f"the {word} session has no run of it"
            yield ComparedNumber(recipe=recipe, metric="", verdict=str(Verdict.SKIP), reason=reason)
            return
    for runs, word in ((old, "earlier"), (new, "later")):
        if any(run.simulated for run in runs):
            reason = f"the {word} session simulated a fault: it measured nothing"
            yield ComparedNumber(recipe=recipe, metric="", verdict=str(Verdict.SKIP), reason=reason)
            return
        if broken := [run for run in runs if run.problem is not None]:
            reason = f"run {broken[0].name} of the {word} session cannot be judged: {broken[0].problem}"
            yield ComparedNumber(recipe=recipe, metric="", verdict=str(Verdict.ERROR), reason=reason)
            return
    shapes = dict.fromkeys(run.series for run in (*old, *new))
    if len(shapes) > 1:
        first, second, *_ = shapes
        reason = f"its runs are not comparable: {first.differs_from(second)}"
        yield ComparedNumber(recipe=recipe, metric="", verdict=str(Verdict.SKIP), reason=reason)
        return
    (series,) = shapes
    earlier = [run for run in past.get(recipe, ()) if run.series == series and run.problem is None]
    yield from _numbers(series, old, new, earlier)


def _numbers(
    series: Series, old: Sequence[PastRun], new: Sequence[PastRun], earlier: Sequence[PastRun]
) -> "Iterator[ComparedNumber | _Pair]":
    every = (*old, *new)
    for metric in sorted({name for run in every for name in run.metrics}):
        having = [run.metrics[metric] for run in every if metric in run.metrics]
        if len(having) < len(every):
            which = "earlier" if any(metric not in run.metrics for run in old) else "later"
            reason = f"a run of the {which} session lacks it"
            yield ComparedNumber(recipe=series.recipe, metric=metric, verdict=str(Verdict.SKIP), reason=reason)
            continue
        numbers = _Pair(
            recipe=series.recipe, metric=metric,
            before=[run.metrics[metric] for run in old], after=[run.metrics[metric] for run in new],
            past=[run.metrics[metric].value for run in earlier if metric in run.metrics],
            usual=usual_spread(gpus=series.gpus, scale=series.scale),
        )  # fmt: skip
        if problem := not_comparable(numbers.before, numbers.after):
            yield ComparedNumber(recipe=series.recipe, metric=metric, verdict=NOT_JUDGED, reason=problem)
        else:
            yield numbers


def _judged(pair: _Pair, shared: Scatter | None, alpha: float) -> ComparedNumber:
    recipe, metric = pair.recipe, pair.metric
    told = change(pair.before, pair.after, past=pair.past, usual=pair.usual, shared=shared, alpha=alpha)
    if told.better is None:
        return ComparedNumber(recipe=recipe, metric=metric, verdict=NOT_JUDGED, change=told, reason="no direction")
    if told.low is None:
        scatters = told.why.startswith("runs on CPUs")
        verdict = str(Verdict.INCONCLUSIVE) if scatters else NOT_JUDGED
        return ComparedNumber(recipe=recipe, metric=metric, verdict=verdict, change=told, reason=told.why)
    verdict = {True: Verdict.FAIL, False: Verdict.PASS, None: Verdict.INCONCLUSIVE}[told.regressed]
    reason = "" if told.regressed is not None else "the interval is too wide: a regression could hide in it"
    if told.improved:
        reason = "better, beyond what is uncertain"
    return ComparedNumber(recipe=recipe, metric=metric, verdict=str(verdict), change=told, reason=reason)
