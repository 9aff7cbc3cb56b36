"""Good runs, from which a threshold is calculated: checks of their records, and the speed of each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.quantity import counted, listed
from pytest_llmbench.core.recipe.reference import AppliesTo
from pytest_llmbench.core.record.records import Judgement, Metric, RunRecord, Verdict
from pytest_llmbench.judging.contradictions import contradictions
from pytest_llmbench.judging.recount import measurement_of_record
from pytest_llmbench.judging.statistics import Measurement, Statistic, interval_of

# The least number of runs among which a sick one stands out.
LEAST_RUNS = 3
# Keys of a recipe that leave the training itself as it is.
_NOTES = {"references", "description", "source", "prepare", "deadlines", "time_limit"}


@dataclass(frozen=True)
class GoodRun:
    """One run from which a threshold is calculated, with the path of its record."""

    path: Path
    record: RunRecord

    @cached_property
    def measurement(self) -> Measurement:
        """Its steps, judged again by the current rule."""
        return measurement_of_record(self.record)

    @property
    def id(self) -> str:
        """Session and key of the run, independent of its record's file name."""
        return f"{self.record.session}/{self.record.key}"

    @cached_property
    def durations(self) -> list[float | None]:
        """Seconds of each step."""
        return [step.seconds for step in self.record.steps]

    def metric(self, name: str, statistic: Statistic) -> Metric:
        """One of its numbers, with the interval of the current rule."""
        value = self.record.metrics[name].value
        known = interval_of(self.measurement, statistic, value)
        return Metric(value=value, unit=statistic.unit, rule=statistic.rule, **known)

    def value(self, name: str, statistic: Statistic) -> float:
        """The number to compare with a threshold: that of the steady part, or with its pauses if this is slower."""
        metric, steady = self.metric(name, statistic), self.measurement.steady
        if statistic.steady is None or metric.amount is None or steady is None:
            return metric.value
        seconds = max(steady.mean, steady.mean_with_pauses)
        return metric.amount / seconds if metric.sense == "rate" else metric.amount * seconds


def refuse_unfit(runs: Sequence[GoodRun], statistics: Mapping[str, Statistic], wanted: Sequence[str]) -> None:
    """Require enough good runs of one recipe on one machine, with the `wanted` ones of the statistics of its engine.

    Raises ConfigError with a line for each reason.
    """
    reasons = [f"{run.path}: {reason}" for run in runs for reason in _unfit(run, statistics, wanted)]
    reasons += [*_repeated(runs), *_different(runs)]
    distinct = len({run.id for run in runs})
    if distinct < LEAST_RUNS:
        reasons.append(f"{counted(distinct, 'run')} given: a threshold needs at least {LEAST_RUNS}, better 5 or more")
    if reasons:
        raise ConfigError("\n".join(reasons))


def refuse_unlike(runs: Sequence[GoodRun]) -> None:
    """Require sane runs of one training, each of them once. Raises ConfigError with a line for each reason."""
    broken = [f"{run.path}: {reason}" for run in runs if (reason := _unusable(run.record)) is not None]
    if reasons := [*broken, *_repeated(runs), *_different(runs)]:
        raise ConfigError("\n".join(reasons))


def doubts(runs: Sequence[GoodRun], statistics: Mapping[str, Statistic]) -> Iterator[str]:
    """Yield warnings about runs that are accepted."""
    for run in runs:
        missed = [judgement.reference or judgement.test for judgement in _failed(run, statistics, of_speed=True)]
        if missed:
            yield f"{run.id} missed {', '.join(missed)}: see that it ran as it should"
        yield from (f"{run.id}: {finding}" for finding in run.record.findings)
    for name in sorted({name for run in runs for name in run.record.versions}):
        versions = {run.record.versions.get(name, "none") for run in runs}
        if len(versions) > 1:
            yield f"versions of {name} differ: {', '.join(sorted(versions))}"


def machine_of(record: RunRecord, nameless: set[str]) -> AppliesTo:
    """The machine that a threshold of this run is for; names of systems in `nameless` stand for any machine.

    Raises ConfigError for CPUs on such a system.
    """
    system = None if record.system in nameless else record.system
    gpu = record.device.removeprefix("NVIDIA ") if record.device and record.gpus else None
    if gpu is None and system is None:
        raise ConfigError(
            f"system {record.system} is any machine, and these runs used no GPU that would name it: describe the "
            "machine in a system file, and train with --system"
        )
    return AppliesTo(gpu=gpu, gpus=record.gpus or None, nodes=record.nodes, system=system)


def _unusable(record: RunRecord) -> str | None:
    if record.simulated is not None:
        return f"it was made with --llmbench-simulate {record.simulated}: a fault was caused in it on purpose"
    problem = record.problem
    return None if problem is None else f"the run is broken ({problem.kind}): {problem.message.splitlines()[0]}"


def _unfit(run: GoodRun, statistics: Mapping[str, Statistic], wanted: Sequence[str]) -> Iterator[str]:
    record = run.record
    if record.early is not None and record.early.ended_early:
        yield f"it was ended early, after {record.early.done} of {record.early.planned} steps"
    elif (reason := _unusable(record)) is not None:
        yield reason
    else:
        yield from [*contradictions(record, statistics)] or _unsuitable(run, statistics, wanted)


def _unconfirmed(record: RunRecord) -> list[str]:
    """Unconfirmed facts of a program's log; ranks of other packages may leave some out."""
    of_ranks = any(info.training for info in record.rank_info)
    return [] if of_ranks else [f"its numbers are unconfirmed: {reason}" for reason in record.unconfirmed]


def _unsuitable(run: GoodRun, statistics: Mapping[str, Statistic], wanted: Sequence[str]) -> Iterator[str]:
    """Yield the reasons why a sane and complete run is unfit for a threshold."""
    record = run.record
    if record.recipe.scale != "full":
        yield f"scale {record.recipe.scale}: a threshold for a machine applies at scale full only"
    if record.device is None:
        yield "its ranks did not report their device"
    yield from _unconfirmed(record)
    for failed in _failed(run, statistics, of_speed=False):
        yield f"{failed.test} ended in {failed.verdict}: {failed.reason}"
    for name in wanted:
        if name not in record.metrics:
            yield f"it has no {name}; it has {', '.join(record.metrics) or 'no numbers'}"
        elif statistics[name].compute(run.measurement) is None:
            yield f"{name} cannot be computed again from its steps: bound another statistic, such as throughput"
    steady = run.measurement.steady
    if all(statistics[name].steady is None for name in wanted):
        return
    if steady is None or not steady.enough:
        few, least = (0, 20) if steady is None else (steady.judged + steady.left_out, steady.least)
        yield (
            f"{counted(few, 'judged step')} with a duration are too few to know how fast it is: train at least {least} "
            "steps after the warm-up"
        )
    elif not steady.settled:
        yield "its steps still became faster at the end: train longer, or leave out more as warm-up"


def _failed(run: GoodRun, statistics: Mapping[str, Statistic], *, of_speed: bool) -> Iterator[Judgement]:
    for judgement in run.record.judgements:
        statistic = statistics.get(judgement.statistic or "")
        about_speed = statistic is not None and statistic.of_speed
        if judgement.verdict in {Verdict.FAIL, Verdict.ERROR} and about_speed == of_speed:
            yield judgement


def _repeated(runs: Sequence[GoodRun]) -> Iterator[str]:
    """Yield every pair of records that belong to one run by its id or by its step times."""
    for one, other in combinations(runs, 2):
        if one.id == other.id:
            yield f"{one.path} and {other.path} are the same run, {one.id}: give each run once"
        elif one.durations == other.durations and any(one.durations):
            yield f"{one.path} and {other.path} have the very same step times: one is a copy of the other"


def _different(runs: Sequence[GoodRun]) -> Iterator[str]:
    """Yield every fact of recipe and machine in which the runs differ."""
    facts = [facts_of(run.record) for run in runs]
    for key in dict.fromkeys(key for of_run in facts for key in of_run):
        values: dict[str, Path] = {}
        for run, of_run in zip(runs, facts, strict=True):
            values.setdefault(str(of_run.get(key)), run.path)
        if len(values) > 1:
            shown = listed((f"{value} ({path})" for value, path in values.items()), most=4)
            yield f"the runs differ in {key}: {shown}"


def facts_of(record: RunRecord) -> dict[str, object]:
    """Facts that runs have to share for their speeds and losses to be comparable."""
    recipe = {
        key if key == "name" else f"recipe.{key}": value
        for key, value in record.recipe.model_dump().items()
        if key not in _NOTES
    }
    recipe["recipe"] = recipe.pop("name")
    machine = {key: getattr(record, key) for key in ("system", "device", "nodes", "ranks", "gpus")}
    return {**dict(sorted(recipe.items())), **machine}
