"""Early verdicts: looks at a running run, which ends as soon as every threshold of its tests is decided."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_llmbench.cluster.runs import Declared, EarlyPlan, RunSpec
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.records import Verdict, write_model
from pytest_llmbench.core.record.series import EarlyVerdict, StepSeries
from pytest_llmbench.core.wire import layout
from pytest_llmbench.engines.base import get_engine, on_machine, statistics_of
from pytest_llmbench.judging.interval.decide import Op, decide
from pytest_llmbench.judging.interval.early import alpha_at, looks
from pytest_llmbench.judging.interval.steady import ALPHA
from pytest_llmbench.judging.sanity import Evidence, first_problem
from pytest_llmbench.judging.statistics import Measurement, Statistic, measure
from pytest_llmbench.session.ending import device_of, measurement_of, with_expectations
from pytest_llmbench.session.forecast import machine_of
from pytest_llmbench.session.script.prepared import PreparedRun

# Logs of ranks on other nodes may come late, and each reading reads all of them.
_AGAIN_S = 1.0


def early_plan(run: RunSpec, tests: Sequence[Declared], settings: Settings) -> EarlyPlan:
    """The references by which the tests of a run judge it, and the reason if it has to run whole."""
    recipe, known = run.recipe, statistics_of(get_engine(run.recipe.engine))
    names = tuple(dict.fromkeys(test.reference for test in tests if test.reference is not None))
    bodies = [test.test for test in tests if test.reference is None]
    asked = [reference for reference in recipe.references if reference.name in names]
    portable = [
        reference for reference in asked if reference.applies_to is None and known[reference.statistic].needs_all_steps
    ]
    reason = None
    if bodies:
        reason = f"{bodies[0]} has no reference, so its threshold is not known before it"
    elif any(test.repeats > 1 for test in tests):
        reason = "it is judged together with other runs of its recipe"
    elif recipe.end != "steps":
        reason = "it is meant to be cut off at its time limit"
    elif settings.cluster == "debug":
        reason = "with --cluster debug, no look comes before its end"
    elif looks(recipe.steps, recipe.warm_up.steps) == (recipe.steps,):
        reason = f"its {recipe.steps} steps are too few for a look before the last one"
    elif portable:
        reason = _needs_all_steps(portable[0])
    return EarlyPlan(references=names, whole=reason)


def _needs_all_steps(reference: Reference) -> str:
    return f"reference {reference.name} is about {reference.statistic}, which needs all steps"


class _RunsWholeError(Exception):
    """No look can decide on every threshold of the tests of a run."""


@dataclass
class Looking:
    """Looks at one run while it goes on; `asked` is the look after which its ranks were asked to end."""

    run: PreparedRun
    plan: EarlyPlan
    settings: Settings
    asked: EarlyVerdict | None = None
    _taken: list[int] = field(default_factory=list)
    _again: float = 0.0

    def __post_init__(self) -> None:
        recipe = self.run.spec.recipe
        self._whole = self.plan.whole
        self._ahead = [] if self._whole else list(looks(recipe.steps, recipe.warm_up.steps)[:-1])

    def look(self, step: int) -> bool:
        """Look at the run if its last `step` has reached a look; return True if its ranks were just asked to end."""
        if not self._ahead or step < self._ahead[0] or time.monotonic() < self._again:
            return False
        self._again = time.monotonic() + _AGAIN_S
        series = self.run.engine.read(self.run.place.folder, self.run.spec.recipe)
        logged = [logged_step.step for logged_step in series.steps if logged_step.ranks == self.run.topology.world_size]
        while self._ahead and logged[: self._ahead[0]] == list(range(1, self._ahead[0] + 1)):
            self._taken.append(self._ahead.pop(0))
            try:
                decided = self._decide(self._taken[-1], series)
            except _RunsWholeError as error:
                self._whole, self._ahead = str(error), []
                return False
            if decided is not None:
                write_model(self.run.place.folder / layout.ENOUGH, decided)
                self.asked, self._ahead = decided, []
                return True
        return False

    def result(self, series: StepSeries, wall_s: float) -> EarlyVerdict:
        """The outcome of the looks at a run that is over and took `wall_s` seconds from launch to end."""
        recipe, topology = self.run.spec.recipe, self.run.topology
        done = max((step.step for step in series.steps), default=0)
        seconds = [step.seconds for step in series.steps[recipe.warm_up.steps :] if step.seconds is not None]
        hours = (topology.gpus or topology.nodes) / 3600
        result = self.asked if self.asked is not None and done < recipe.steps else self._whole_verdict()
        saved = (recipe.steps - done) * sum(seconds) / len(seconds) if result.ended_early and seconds else 0.0
        spent = {"done": done, "hours_spent": wall_s * hours, "hours_saved": saved * hours}
        return result.model_copy(update={**spent, "unit": "GPU-hours" if topology.gpus else "node-hours"})

    def _whole_verdict(self) -> EarlyVerdict:
        steps = self.run.spec.recipe.steps
        if self._whole is not None:
            return EarlyVerdict(planned=steps, look=steps, alpha=ALPHA, whole=self._whole)
        reason = "no look before the last step decided on every threshold"
        if self.asked is not None:
            reason = f"it had done all its steps before its ranks heard of the look at {self.asked.look}"
        taken = (*self._taken, steps)
        return EarlyVerdict(planned=steps, look=steps, looks=taken, alpha=alpha_at(steps, steps), whole=reason)

    def _decide(self, look: int, series: StepSeries) -> EarlyVerdict | None:
        """The verdicts of a look; None where it leaves one open. Raises _RunsWholeError: so will every other look."""
        recipe, topology, system = self.run.spec.recipe, self.run.topology, self.settings.system
        alpha, taken = alpha_at(look, recipe.steps), tuple(self._taken)
        early = EarlyVerdict(planned=recipe.steps, look=look, looks=taken, done=look, alpha=alpha)
        logged = Evidence(recipe=recipe, topology=topology, series=series, hosts=(), wall_s=None, early=early)
        evidence = with_expectations(logged, system)
        measurement = measurement_of(evidence, system)
        machine = machine_of(self.settings, recipe, topology, device_of(evidence) or "unknown")
        asked = (reference for reference in recipe.references if reference.name in self.plan.references)
        here = (on_machine(reference, recipe, machine) for reference in asked)
        references = [reference for reference in here if isinstance(reference, Reference)]
        if not references:
            raise _RunsWholeError("none of its references is for this machine and scale")
        verdicts = [self._verdict(reference, measurement, early) for reference in references]
        if None in verdicts or first_problem(evidence, over=False) is not None:
            return None
        return early.model_copy(update={"decided": tuple(verdicts)})

    def _verdict(self, reference: Reference, measurement: Measurement, early: EarlyVerdict) -> str | None:
        statistic = statistics_of(self.run.engine)[reference.statistic]
        if statistic.needs_all_steps:
            raise _RunsWholeError(_needs_all_steps(reference))
        value = statistic.compute(measurement)
        if value is None or not math.isfinite(value):
            raise _RunsWholeError(f"reference {reference.name} is about {reference.statistic}, which is not measured")
        if statistic.so_far:
            # Later steps may meet what these miss.
            holds = [
                True if _is_met_so_far(statistic, value, op, bound, measurement) else None
                for op, bound in reference.bounds
            ]
        else:
            metric = measure(measurement, {reference.statistic: statistic})[reference.statistic]
            steady, between = [measurement.steady], reference.between
            decisions = (decide(metric, steady, op, bound, between, early.alpha) for op, bound in reference.bounds)
            holds = [decision.holds for decision in decisions]
        if None in holds and False not in holds:
            return None
        verdict = Verdict.PASS if all(holds) else Verdict.FAIL
        return f"{reference.name}: {reference.statistic} {reference.threshold}: {verdict}"


def _is_met_so_far(statistic: Statistic, value: float, op: Op, bound: Quantity, measurement: Measurement) -> bool:
    """True if the steps of a look meet a bound; of a share of a measured ceiling, both ends of its interval have to."""
    ends = [value]
    if statistic.of_ceiling:
        steady = measurement.steady
        if steady is None or not steady.enough or steady.low == 0.0:
            return False
        ends = [value * steady.mean / steady.high / measurement.matmul_doubt, value * steady.mean / steady.low]
    return all(Quantity(end, statistic.unit).meets(op, bound) for end in ends)
