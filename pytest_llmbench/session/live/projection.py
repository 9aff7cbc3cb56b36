"""Projections: what a run under way would come to by its steps so far, judged by the rule that will judge it."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.records import Metric
from pytest_llmbench.core.record.series import StepSeries
from pytest_llmbench.engines.base import statistics_of
from pytest_llmbench.judging.interval.decide import Decision, decide
from pytest_llmbench.judging.sanity import first_problem
from pytest_llmbench.judging.statistics import measure
from pytest_llmbench.session.active import RunView
from pytest_llmbench.session.early import looked_at, references_for
from pytest_llmbench.session.live.snapshot import Expectation, Projected
from pytest_llmbench.session.script.prepared import PreparedRun

# A projection reads all logs of a run. It comes again after so many more steps, and all of them together take no more
# than this share of the time.
_MORE_STEPS = 1.15
_SHARE = 0.01
_USUAL = "throughput"


@dataclass
class Projector:
    """Projects the runs under way, one at a time, and keeps what it found.

    Attributes:
        settings: of the session.
        references: names of the references of a run's tests, by the key of its series.
        clock: in seconds.
    """

    settings: Settings
    references: Callable[[str], Sequence[str]]
    clock: Callable[[], float] = time.monotonic
    _known: dict[str, Projected] = field(default_factory=dict)
    _next_step: dict[str, int] = field(default_factory=dict)
    _free_at: float = 0.0

    def get(self, key: str) -> Projected | None:
        """The last projection of a run; None before the first."""
        return self._known.get(key)

    def forget(self, key: str) -> None:
        """Forget a run that is over, or begins again."""
        self._known.pop(key, None)
        self._next_step.pop(key, None)

    def look(self, views: Sequence[RunView]) -> None:
        """Project the run that has waited longest for it, if there is time for one.

        Args:
            views: how the runs stand.
        """
        began = self.clock()
        if began < self._free_at:
            return
        ready = [(self._next_step.get(view.key, 1), view) for view in views if view.state == "running" and view.run]
        ready = [(due, view) for due, view in ready if view.step >= due]
        if not ready:
            return
        _, view = min(ready, key=lambda each: each[0])
        if view.run is not None:
            series = view.run.engine.read(view.run.place.folder, view.run.spec.recipe)
            self._known[view.key] = project(view.run, self.references(view.run.spec.series), self.settings, series)
            self._next_step[view.key] = max(view.step + 1, math.ceil(_MORE_STEPS * view.step))
        ended = self.clock()
        self._free_at = ended + (ended - began) / _SHARE


def project(run: PreparedRun, names: Sequence[str], settings: Settings, series: StepSeries) -> Projected:
    """Hold the steps that all ranks have logged so far against the speeds that the tests of a run ask for.

    Args:
        run: it goes on.
        names: the references of its tests.
        settings: of the session.
        series: all that it logged.
    """
    recipe = run.spec.recipe
    look = _whole_steps(series, run.topology.world_size)
    if look == 0:
        return Projected(why="no step of all ranks so far")
    evidence, measurement, early = looked_at(run, settings, series, look, (look,))
    known = statistics_of(run.engine)
    metrics = measure(measurement, known)
    asked = [each for each in references_for(run, settings, evidence, names) if known[each.statistic].of_speed]
    if not asked:
        metric = metrics.get(_USUAL)
        told = _numbers(_USUAL, metric, None, look) if metric is not None else Projected(steps=look)
        return told.model_copy(update={"why": "its tests have no reference on speed for this machine"})
    problem = first_problem(evidence, over=False)
    found: list[Projected] = []
    for reference in asked:
        metric = metrics.get(reference.statistic)
        if metric is None or metric.sense is None or known[reference.statistic].needs_all_steps:
            told = Projected(statistic=reference.statistic, bound=reference.asked, steps=look)
            if metric is not None:
                told = _numbers(reference.statistic, metric, reference, look)
            found.append(told.model_copy(update={"why": f"{reference.statistic} is known when all steps are"}))
            continue
        made = [
            decide(metric, [measurement.steady], op, bound, reference.between, early.alpha, early)
            for op, bound in reference.bounds
        ]
        told = _numbers(reference.statistic, metric, reference, look, made)
        steady = measurement.steady
        if steady is None or not steady.enough:
            # Far from the bound, a verdict needs no interval. What is yet to come may be far from these steps as well.
            few = "too few steps so far for an interval"
            told = told.model_copy(update={"verdict": "undecided", "low": None, "high": None, "why": few})
        if problem is not None:
            told = told.model_copy(update={"verdict": "undecided", "why": f"{problem.kind}: {problem.message}"})
        found.append(told)
    order: Mapping[Expectation, int] = {"FAIL": 0, "undecided": 1, "PASS": 2}
    decisive = min(found, key=lambda each: order[each.verdict])
    if decisive.verdict == "PASS" and look >= recipe.steps:
        return decisive.model_copy(update={"verdict": "undecided", "why": "all its steps are there, and it is judged"})
    return decisive


def _whole_steps(series: StepSeries, world_size: int) -> int:
    """Number of steps, from the first, that all ranks have logged."""
    whole = 0
    for step in series.steps:
        if step.ranks not in {None, world_size} or step.step < whole:
            break
        whole = step.step
    return whole


def _numbers(
    statistic: str, metric: Metric, reference: Reference | None, look: int, made: Sequence[Decision] = ()
) -> Projected:
    verdict: Expectation = "undecided"
    holds = [each.holds for each in made]
    if False in holds:
        verdict = "FAIL"
    elif made and None not in holds:
        verdict = "PASS"
    low, high = (made[0].low, made[0].high) if made else (metric.low, metric.high)
    if verdict == "PASS" and (low is None and high is None):
        verdict = "undecided"
    return Projected(
        verdict=verdict, statistic=statistic, value=metric.value, low=low, high=high, unit=metric.unit,
        bound=reference.asked if reference is not None else "", steps=look,
        why=next((each.why for each in made if each.why), ""),
    )  # fmt: skip
