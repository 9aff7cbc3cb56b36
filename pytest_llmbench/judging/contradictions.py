"""Contradictions inside a run record: between its numbers and its steps, or its verdicts and its numbers."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from math import inf, isclose, isfinite

from pytest_llmbench.core.durations import CUT_OFF, parse_minutes
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.records import Judgement, Metric, RunRecord, Verdict
from pytest_llmbench.core.record.series import StepSeries
from pytest_llmbench.core.wire.step_events import GPU_PERIOD_S
from pytest_llmbench.judging.interval.early import looks
from pytest_llmbench.judging.recount import measurement_of_record, same
from pytest_llmbench.judging.sanity import Evidence, problems_of_steps
from pytest_llmbench.judging.sanity.steps import seconds_of
from pytest_llmbench.judging.statistics import Measurement, Statistic, interval_of, judged_steps

_SAME = 1e-6
# Times of one run by several clocks: of its ranks, of the steps of all of them, and of the observer.
_SAME_TIME, _STAMPS_S, _CLOCK_S = 0.01, 0.01, 5.0
# The window of a GPU's samples is that of the judged steps on its own rank. Mean power of samples and of the energy
# counter differed by 0.1 % on an H200; A100s sample a quarter of the time.
_SAME_WINDOW, _SAME_POWER = 0.05, 0.25


def contradictions(record: RunRecord, statistics: Mapping[str, Statistic]) -> Iterator[str]:
    """Yield the contradictions of a record with itself: the key, and both values.

    Only the verdicts of a run with a problem are compared, as such a run has no numbers. Numbers of statistics outside
    `statistics`, those of the recipe's engine, are skipped.
    """
    yield from _check_verdicts(record, statistics)
    if record.problem is not None:
        if record.metrics:
            yield f"problem: {record.problem.kind}, but metrics has {', '.join(record.metrics)}"
        return
    if not (record.steps or record.metrics or record.totals):
        yield "problem: None, but the run has no steps, no metrics and no totals"
    measurement = measurement_of_record(record)
    yield from (*_check_steps(record), *_check_ranks(record), *_check_times(record))
    yield from (*_check_early(record), *_check_telemetry(record))
    for name, metric in record.metrics.items():
        if name in statistics:
            yield from _check_metric(name, metric, statistics[name], measurement)


def _check_steps(record: RunRecord) -> Iterator[str]:
    for one, other in pairwise(record.steps):
        if other.step <= one.step:
            yield f"steps: step {other.step} comes after step {one.step}"
    last = max((step.step for step in record.steps), default=0)
    whole = record.early is None or not record.early.ended_early
    # A framework may log the mean of its steps alone.
    logged = record.steps or (record.metrics and not record.totals)
    if record.recipe.end == "steps" and whole and logged and last != record.recipe.steps:
        yield f"steps: the last one is {last}, but recipe.steps is {record.recipe.steps}"
    times, of_ranks = record.timings, any(info.steps for info in record.rank_info)
    known = times.submitted is not None and times.ended is not None
    evidence = Evidence(
        recipe=record.recipe, topology=Topology(nodes=record.nodes, gpus_per_node=0), hosts=record.hosts,
        series=StepSeries(ranks=record.rank_info, steps=record.steps), kind="ranks" if of_ranks else "command",
        wall_s=abs((times.ended or 0.0) - (times.submitted or 0.0)) if known else None, early=record.early,
    )  # fmt: skip
    for problem in problems_of_steps(evidence):
        yield f"steps: {problem.message}, but the record names no problem"


def _check_ranks(record: RunRecord) -> Iterator[str]:
    ranks = [info.rank for info in record.rank_info]
    if twice := sorted({rank for rank in ranks if ranks.count(rank) > 1}):
        yield f"rank_info: rank {twice[0]} is in it {ranks.count(twice[0])} times"
    devices = {info.device for info in record.rank_info} | ({record.device} if record.device else set())
    if len(devices) > 1 or record.gpus not in {0, record.ranks} or len(ranks) not in {0, record.ranks}:
        yield (
            f"gpus, ranks, rank_info: {record.gpus} × {record.device}, {record.ranks} ranks, of which "
            f"{len(ranks)} introduced themselves: {', '.join(sorted(devices))}"
        )
    submitted, ended = record.timings.submitted, record.timings.ended
    if submitted is not None and ended is not None and ended < submitted:
        yield f"timings.ended: {ended}, but timings.submitted is {submitted}"


def _check_times(record: RunRecord) -> Iterator[str]:
    """Compare the durations of the steps with every other time of the run."""
    seconds = seconds_of(record.steps)
    end, soon = record.recipe.end, record.took_s + _CLOCK_S < _limit_s(record.cut_off or "")
    if record.cut_off is not None and record.replayed is None and (soon or end != "time_limit"):
        yield f"cut_off: {record.cut_off}, but recipe.end is {end}, and it took {record.took_s:.6g} s"
    in_steps = record.outside_steps.get("steps_s")
    if in_steps is not None and not isclose(in_steps, seconds, rel_tol=_SAME):
        yield f"outside_steps.steps_s: {in_steps}, but the steps add up to {seconds}"
    own = {info.rank: info.steps for info in record.rank_info if info.steps is not None}
    for rank, sums in own.items():
        if abs(sums.ended - sums.began - sums.seconds) > _SAME_TIME * sums.seconds + _STAMPS_S:
            took = sums.ended - sums.began
            yield f"rank_info[{rank}].steps.seconds: {sums.seconds}, but by its time stamps it took {took}"
    if own and all(sums.count == len(record.steps) for sums in own.values()):
        longest = max(sums.seconds for sums in own.values())
        if not isclose(longest, seconds, rel_tol=_SAME_TIME):
            yield f"rank_info: the steps of the slowest rank add up to {longest} s, but steps to {seconds} s"


def _limit_s(cut_off: str) -> float:
    """The seconds after which a session ended a run; 0 where Slurm did, and infinity for a damaged text."""
    _, own, limit = cut_off.partition(CUT_OFF)
    with suppress(ConfigError):
        return 60.0 * parse_minutes(limit) if own else 0.0
    return inf


def _check_early(record: RunRecord) -> Iterator[str]:
    """Check that an early verdict was reached at a look that its recipe has."""
    early, recipe = record.early, record.recipe
    if early is None or not early.ended_early:
        return
    due = looks(recipe.steps, recipe.warm_up.steps)[:-1]
    if early.look not in due or early.looks != due[: due.index(early.look) + 1] or early.planned != recipe.steps:
        yield f"early: a look at step {early.look} after {early.looks}, but its recipe has looks at {due}"
    elif early.done < early.look or not early.decided:
        yield f"early: {early.done} steps and {len(early.decided)} decided thresholds, but its look was at {early.look}"


def _check_telemetry(record: RunRecord) -> Iterator[str]:
    """Compare the telemetry of each GPU with the judged steps, and its power with its energy."""
    # A run that was ended early went on for some steps after the last that is judged.
    judged = seconds_of(judged_steps(record.recipe, record.steps))
    for gpu in record.telemetry:
        key, seconds = f"telemetry[{gpu.rank}]", gpu.seconds
        if seconds is None or not seconds > 0.0:
            continue
        if abs(seconds - judged) > _SAME_WINDOW * judged + 2 * _STAMPS_S:  # its ends are two of a rank's stamps
            yield f"{key}.seconds: {seconds}, but the judged steps add up to {judged}"
        if gpu.samples > (1 + _SAME_WINDOW) * seconds / GPU_PERIOD_S + 2:
            yield f"{key}.samples: {gpu.samples}, but in {seconds} s there are {seconds / GPU_PERIOD_S:.0f}"
        if gpu.energy_j is not None and gpu.power_w is not None:
            power = gpu.energy_j / seconds
            if abs(power - gpu.power_w) > _SAME_POWER * max(power, gpu.power_w) + (gpu.energy_error_j or 0) / seconds:
                yield f"{key}.power_w: {gpu.power_w}, but its energy gives {power:.6g}"


def _check_metric(name: str, metric: Metric, statistic: Statistic, measurement: Measurement) -> Iterator[str]:
    """Compare a number and its interval with those computed from the steps."""
    key = f"metrics.{name}"
    if not isfinite(metric.value) or (metric.value <= 0.0 and statistic.steady is not None):
        yield f"{key}.value: {name} is {metric.value} {metric.unit}: the record is damaged"
        return
    if metric.unit != statistic.unit:
        yield f"{key}.unit: {metric.unit!r}, but the rule of {name} gives {statistic.unit!r}"
        return
    value, kept = statistic.compute(measurement), Quantity(metric.value, metric.unit)
    if value is not None and not isclose(metric.value, value, rel_tol=_SAME):
        due = Quantity(value, metric.unit)
        yield f"{key}.value: {name} is {kept}, but its steps give {due}: it was changed, or another version made it"
        return
    if value is None and not statistic.of_ceiling and statistic.speed != "share_of_peak":
        yield f"{key}.value: {name} is {kept}, but its steps do not give it"
    if metric.low is not None and metric.high is not None and metric.low > metric.high:
        yield f"{key}.low: {metric.low}, but {key}.high is {metric.high}"
    if metric.sense is None or metric.amount is None:
        return
    for field, due in interval_of(measurement, statistic, metric.value).items():
        if not same(getattr(metric, field), due, _SAME):
            yield f"{key}.{field}: {getattr(metric, field)}, but its steps give {due}"


def _check_verdicts(record: RunRecord, statistics: Mapping[str, Statistic]) -> Iterator[str]:
    references = {reference.name: reference for reference in record.recipe.references}
    for judgement in record.judgements:
        key = f"judgements[{judgement.test}]"
        if judgement.verdict is Verdict.PASS and record.problem is not None:
            yield f"{key}.verdict: PASS, but the run has the problem {record.problem.kind}"
            continue
        yield from _check_texts(key, judgement)
        reference = references.get(judgement.reference or "")
        if judgement.reference is not None and reference is None:
            yield f"{key}.reference: {judgement.reference}, but recipe.references has no such reference"
            continue
        if reference is None or judgement.verdict not in {Verdict.PASS, Verdict.FAIL}:
            continue
        # As a floor for a better GPU, one bound of two is left.
        bounds = [reference.threshold, *(reference.threshold.split(" and ") if judgement.floor is not None else ())]
        if judgement.threshold not in bounds:
            yield f"{key}.threshold: {judgement.threshold}, but recipe.references has {reference.threshold}"
            continue
        # A test may fail by another assertion, before it has judged the number.
        if judgement.statistic in statistics and judgement.verdict is Verdict.PASS:
            yield from _check_number(key, judgement, record.metrics)
        if reference.xfail is None:
            yield from _check_bounds(key, judgement)


def _check_texts(key: str, judgement: Judgement) -> Iterator[str]:
    """Compare the numbers of a verdict with the texts that people read."""
    if judgement.value is None or judgement.measured is None:
        return
    shown, _, unit = judgement.measured.partition(" ")
    with suppress(ValueError):
        if not isclose(float(shown), judgement.value, rel_tol=_SAME) or unit != judgement.unit:
            yield f"{key}.value: {judgement.value}, but {key}.measured is {judgement.measured}"
    due = {"at_least": None, "at_most": None, **bounds_of(judgement.threshold, judgement.unit)}
    for name, bound in due.items():
        if not same(kept := getattr(judgement, name), bound):
            yield f"{key}.{name}: {kept}, but {key}.threshold is {judgement.threshold}"


def _check_number(key: str, judgement: Judgement, metrics: Mapping[str, Metric]) -> Iterator[str]:
    """Check that the judged number is in the record, and its interval if the statistic is judged by one."""
    name = judgement.statistic or ""
    if name not in metrics:
        yield f"{key}.verdict: {judgement.verdict}, but metrics has no {name}"
        return
    if judgement.value is None:
        yield f"{key}.value: none, but its verdict is {judgement.verdict}"
        return
    if metrics[name].sense is not None and judgement.low is None and judgement.high is None:
        yield f"{key}.low, high: none, but its verdict is {judgement.verdict}, and {name} is judged by its interval"


def _check_bounds(key: str, judgement: Judgement) -> Iterator[str]:
    """Compare a verdict with its bounds: an interval wholly on the other side of a bound contradicts the verdict."""
    known = [number for number in (judgement.low, judgement.high, judgement.value) if number is not None]
    if not known:
        return
    low, high = min(known), max(known)
    span = f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"
    at_least, at_most = judgement.at_least, judgement.at_most
    missed = (at_least is not None and high < at_least) or (at_most is not None and low > at_most)
    met = (at_least is None or low > at_least) and (at_most is None or high < at_most)
    if judgement.verdict is Verdict.PASS and missed:
        yield f"{key}.verdict: PASS, but {span} {judgement.unit} misses {judgement.threshold}"
    if judgement.verdict is Verdict.FAIL and met and (at_least is not None or at_most is not None):
        yield f"{key}.verdict: FAIL, but {span} {judgement.unit} meets {judgement.threshold}"


def bounds_of(threshold: str | None, unit: str | None) -> dict[str, float]:
    """The numbers of a threshold as programs read it, in a unit; empty where it is in other units."""
    numbers: dict[str, float] = {}
    for part in (threshold or "").split(" and "):
        op, _, number = part.strip().partition(" ")
        name = {">": "at_least", "<": "at_most"}.get(op[:1])
        if name is not None and unit:
            try:
                numbers[name] = Quantity(number).to(unit).value
            except ConfigError:
                continue
    return numbers
