"""Good runs that a threshold is made of: which records may count, and how fast each run was."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.quantity import counted, listed
from pytest_llmbench.core.recipe.reference import AppliesTo
from pytest_llmbench.core.record.records import Metric, Problem, RunRecord, Verdict
from pytest_llmbench.core.record.steady import Steady
from pytest_llmbench.judging.contradictions import contradictions
from pytest_llmbench.judging.recount import measurement_of_record
from pytest_llmbench.judging.statistics import Measurement, Statistic, interval_of

# Of fewer, nobody can tell which one is sick.
LEAST_RUNS = 3
# Keys of a recipe that change nothing in what is trained, or how.
_WORDS = {"references", "description", "source", "prepare", "deadlines", "time_limit"}


@dataclass(frozen=True, kw_only=True)
class GoodRun:
    """One run, as far as a threshold needs it.

    Attributes:
        path: of its record.
        record: the run.
        measurement: its steps, judged again by today's rule: older records have no interval.
    """

    path: Path
    record: RunRecord
    measurement: Measurement

    @property
    def id(self) -> str:
        """The run's own name, whatever its record's file is called."""
        return f"{self.record.session}/{self.record.key}"

    @cached_property
    def durations(self) -> list[float | None]:
        """Seconds of each step."""
        return [step.seconds for step in self.record.steps]

    def metric(self, name: str, statistic: Statistic) -> Metric:
        """One of its numbers, with the interval of today's rule."""
        value = self.record.metrics[name].value
        known = interval_of(self.measurement, statistic, value)
        return Metric(value=value, unit=statistic.unit, rule=statistic.rule, **known)

    def value(self, name: str, statistic: Statistic) -> float:
        """The number that meets a threshold: of the steady part, or with its pauses where that is slower."""
        metric, steady = self.metric(name, statistic), self.measurement.steady
        if metric.amount is None or steady is None:
            return metric.value
        seconds = max(steady.mean, steady.mean_with_pauses)
        return metric.amount / seconds if metric.sense == "rate" else metric.amount * seconds


def good_run(path: Path, record: RunRecord) -> GoodRun:
    """Take a record as it is."""
    return GoodRun(path=path, record=record, measurement=measurement_of_record(record))


def refuse_unfit(runs: Sequence[GoodRun], statistics: Mapping[str, Statistic], wanted: Sequence[str]) -> None:
    """See that these are enough good runs of one recipe on one machine.

    Args:
        runs: as they were given.
        statistics: those of the recipe's engine.
        wanted: the statistics that a threshold is wanted for.

    Raises:
        ConfigError: they are not; a line for each reason.
    """
    reasons = [f"{run.path}: {why}" for run in runs for why in _unfit(run, statistics, wanted)]
    reasons += [*_repeated(runs), *_different(runs)]
    distinct = len({run.id for run in runs})
    if distinct < LEAST_RUNS:
        reasons.append(f"{counted(distinct, 'run')} given: a threshold needs at least {LEAST_RUNS}, better 5 or more")
    if reasons:
        raise ConfigError("\n".join(reasons))


def refuse_unlike(runs: Sequence[GoodRun]) -> None:
    """See that these are sane runs of one training, each given once.

    Raises:
        ConfigError: they are not; a line for each reason.
    """
    broken = [f"{run.path}: {why}" for run in runs if (why := _unusable(run.record)) is not None]
    if reasons := [*broken, *_repeated(runs), *_different(runs)]:
        raise ConfigError("\n".join(reasons))


def doubts(runs: Sequence[GoodRun], statistics: Mapping[str, Statistic]) -> Iterator[str]:
    """Yield warnings about runs that count all the same."""
    for run in runs:
        missed = [f"{each.reference or each.test}" for each in _failed(run, statistics, of_speed=True)]
        if missed:
            yield f"{run.id} missed {', '.join(missed)}: see that it ran as it should"
        yield from (f"{run.id}: {finding}" for finding in run.record.findings)
    names = {name for run in runs for name in run.record.versions}
    for name in sorted(names):
        found = {run.record.versions.get(name, "none") for run in runs}
        if len(found) > 1:
            yield f"versions of {name} differ: {', '.join(sorted(found))}"


def machine_of(record: RunRecord, nameless: set[str]) -> AppliesTo:
    """The machine that a threshold of this run is for.

    Args:
        record: one of the runs, which are alike.
        nameless: systems whose name stands for any machine.

    Raises:
        ConfigError: neither its GPUs nor its system name one.
    """
    system = None if record.system in nameless else record.system
    gpu = record.device.removeprefix("NVIDIA ") if record.device and record.gpus else None
    if gpu is None and system is None:
        raise ConfigError(
            f"system {record.system} is any machine, and these runs used no GPU that would name it: describe the "
            "machine in a system file, and train with --system"
        )
    return AppliesTo(gpu=gpu, gpus=record.gpus or None, nodes=record.nodes, system=system)


def _not_whole(record: RunRecord) -> str | None:
    """Say why a run does not have all its steps."""
    if record.early is not None and record.early.ended_early:
        return f"it was ended early, after {record.early.done} of {record.early.planned} steps"
    return _unusable(record)


def _unusable(record: RunRecord) -> str | None:
    """Say why a run measured nothing."""
    if record.simulated is not None:
        return f"it was made with --llmbench-simulate {record.simulated}: a fault was caused in it on purpose"
    return None if record.problem is None else _broken(record.problem)


def _unfit(run: GoodRun, statistics: Mapping[str, Statistic], wanted: Sequence[str]) -> Iterator[str]:
    """Yield why one run cannot count."""
    record = run.record
    if (why := _not_whole(record)) is not None:
        yield why
        return
    if against := [*contradictions(record, statistics)]:
        yield from against
        return
    if record.recipe.scale != "full":
        yield f"scale {record.recipe.scale}: a threshold for a machine applies at scale full only"
    if record.device is None:
        yield "its ranks did not report their device"
    for failed in _failed(run, statistics, of_speed=False):
        yield f"{failed.test} ended in {failed.verdict}: {failed.reason}"
    for name in wanted:
        yield from _unknown(run, name, statistics[name])
    if any(statistics[name].steady is not None for name in wanted):
        yield from _unsteady(run.measurement.steady)


def _broken(problem: Problem) -> str:
    return f"the run is broken ({problem.kind}): {problem.message.partition(chr(10))[0]}"


def _unknown(run: GoodRun, name: str, statistic: Statistic) -> Iterator[str]:
    """Yield why a threshold on one number cannot be made of a run."""
    if name not in run.record.metrics:
        yield f"it has no {name}; it has {', '.join(run.record.metrics) or 'no numbers'}"
        return
    if statistic.compute(run.measurement) is None:
        yield f"{name} cannot be computed again from its steps: bound another statistic, such as throughput"


def _unsteady(steady: Steady | None) -> Iterator[str]:
    if steady is None or not steady.enough:
        few = counted(0 if steady is None else steady.judged + steady.left_out, "judged step")
        least = f"at least {steady.least}" if steady is not None else "at least 20"
        yield f"{few} with a duration are too few to know how fast it is: train {least} steps after the warm-up"
    elif not steady.settled:
        yield "its steps still became faster at the end: train longer, or leave out more as warm-up"


def _failed(run: GoodRun, statistics: Mapping[str, Statistic], *, of_speed: bool) -> Iterator[Any]:
    for judgement in run.record.judgements:
        known = statistics.get(judgement.statistic or "")
        if judgement.verdict in {Verdict.FAIL, Verdict.ERROR} and (known is not None and known.of_speed) == of_speed:
            yield judgement


def _repeated(runs: Sequence[GoodRun]) -> Iterator[str]:
    """Yield every pair of records that are of one run, by its name or by its steps."""
    for one, other in combinations(runs, 2):
        if one.id == other.id:
            yield f"{one.path} and {other.path} are the same run, {one.id}: give each run once"
        elif one.durations == other.durations and any(one.durations):
            yield f"{one.path} and {other.path} have the very same step times: one is a copy of the other"


def _different(runs: Sequence[GoodRun]) -> Iterator[str]:
    """Yield in what the runs are not runs of one recipe on one machine."""
    facts = [facts_of(run.record) for run in runs]
    for key in dict.fromkeys(key for each in facts for key in each):
        found: dict[str, Path] = {}
        for run, each in zip(runs, facts, strict=True):
            found.setdefault(str(each.get(key)), run.path)
        if len(found) > 1:
            told = listed((f"{value} ({path})" for value, path in found.items()), most=4)
            yield f"the runs differ in {key}: {told}"


def facts_of(record: RunRecord) -> dict[str, object]:
    """Facts that runs have to share for their speeds and losses to be comparable."""
    recipe = {
        key if key == "name" else f"recipe.{key}": value
        for key, value in record.recipe.model_dump().items()
        if key not in _WORDS
    }
    recipe["recipe"] = recipe.pop("name")
    machine = {key: getattr(record, key) for key in ("system", "device", "nodes", "ranks", "gpus")}
    return {**dict(sorted(recipe.items())), **machine}
