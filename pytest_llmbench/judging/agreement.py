"""Agreement between the lines of a framework's log: numbers that follow from each other, to the digits printed."""

import math
import statistics as stats
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.series import Step, StepSeries

# A line is stamped later than its step ends, as ranks wait for each other in between: up to 0.06 s in our logs, and
# longer on shared CPUs.
_SHARE, _LATE_S, _LATE_ON_CPUS_S = 0.02, 0.25, 2.0
# In 290 public logs of runs on GPUs the median step takes at most 1.32 times as long as the fastest, on busy CPUs 1.63.
_FASTER, _FASTER_ON_CPUS, _FEWEST = 1.9, 4.0, 3
# No run becomes this much faster after so many lines.
_SLOW_LINES, _OTHER_UNIT = 5, 50.0
# Logging may take time that a rate leaves out, but less than half of it.
_BUSY = 1.5
# Spans of time stamps in whole seconds are compared from this length on.
_LEAST_S = 10.0
# Daylight saving time moves a clock by this.
_CLOCK_CHANGE_S = 3600.0

# Lowest and highest value that a printed number can have had before it was rounded.
_Range = tuple[float, float]


def late_s(topology: Topology) -> float:
    """Seconds by which the time of a line may be later than the end of its step."""
    return _LATE_S if topology.gpus else _LATE_ON_CPUS_S


def _differ(one: float, other: float, slack: float) -> bool:
    """True if two spans of time are further apart than the slack, also if a clock was changed in between."""
    apart = abs(one - other)
    return apart > slack and abs(apart - _CLOCK_CHANGE_S) > slack


def check_work(steps: Sequence[Step], rates: Mapping[str, str]) -> Iterator[str]:
    """Yield the two lines whose work per sample (rate × duration / samples) differs most, if by more than rounding.

    `rates` maps the reported name of each rate to its unit.
    """
    for name, unit in rates.items():
        lines = [step for step in steps if step.seconds and step.samples and name in step.reported]
        if not lines:
            continue
        durations, logged = _rounded([s.seconds or 0.0 for s in lines]), _rounded([s.reported[name] for s in lines])
        works = [
            (step, _times(_times(duration, rate), (1 / (step.samples or 1),) * 2))
            for step, duration, rate in zip(lines, durations, logged, strict=True)
        ]
        most, (least_work, _) = max(works, key=lambda work: work[1][0])
        least, (_, most_work) = min(works, key=lambda work: work[1][1])
        if not _meet((least_work, math.inf), (0.0, most_work)):
            yield (
                f"{_at(most, name)} {unit}, but {_at(least, name)} {unit}: that is more work for each sample, where "
                "all steps do the same"
            )


def _at(step: Step, name: str) -> str:
    return f"step {step.step} took {step.seconds:.6g} s at {step.reported[name]:g}"


def check_steady(steps: Sequence[Step], topology: Topology) -> Iterator[str]:
    """Yield the fastest step, if it is too fast to have done the same work as the median step.

    All steps do the same work: other work may make a step slower, and only less work makes it much faster.
    """
    timed = [step for step in steps if step.seconds]
    usual = stats.median(step.seconds or 0.0 for step in timed) if len(timed) >= _FEWEST else 0.0
    fastest = min(timed, key=lambda step: step.seconds or 0.0, default=None)
    if fastest is not None and usual > (fastest.seconds or 0.0) * (_FASTER if topology.gpus else _FASTER_ON_CPUS):
        yield (
            f"step {fastest.step} took {fastest.seconds:.4g} s, where the median of all steps is {usual:.4g} s: none "
            "can be so much faster with the same work"
        )
    yield from _check_unit(steps)


def _check_unit(steps: Sequence[Step]) -> Iterator[str]:
    """Yield the line from which on all steps are so much faster than lines before it that the unit must be another."""
    timed = [(step.step, step.seconds) for step in steps if step.seconds]
    slowest = 0.0  # of the lines from here on
    for at in range(len(timed) - 1, _SLOW_LINES - 1, -1):
        slowest = max(slowest, timed[at][1])
        before = min(seconds for _, seconds in timed[at - _SLOW_LINES : at])
        if len(timed) - at >= _FEWEST and before > _OTHER_UNIT * slowest:
            yield f"steps before {timed[at][0]} take {before:.4g} s, and later ones {slowest:.4g} s: in another unit?"
            return


def check_counts(steps: Sequence[Step], name: str, samples: int) -> Iterator[str]:
    """Yield the lines whose count of consumed samples differs from the samples of the steps up to there.

    `name` is the reported name of the count, `samples` those of a step by the recipe. The count of a run that begins
    with step 1 is 0 before it.
    """
    counts = [(step.step, step.reported[name], step.samples) for step in steps if name in step.reported]
    for (first, had, usual), (last, has, each) in pairwise([(0, 0.0, samples), *counts]):
        if each is not None and each == usual and has - had != (due := each * (last - first)):
            yield (
                f"from step {first} to step {last} the samples consumed went from {had:.15g} to {has:.15g}, where "
                f"{each} in each step are {due}"
            )


def check_times(series: StepSeries, topology: Topology) -> Iterator[str]:
    """Yield the lines whose time stamps are further apart, or closer, than the steps between them took.

    Pairs of lines with an evaluation or a checkpoint between them are left out.
    """
    stamps = [step.at for step in series.steps if step.at is not None]
    resolution = 1.0 if all(stamp.is_integer() for stamp in stamps) else 0.0
    late = late_s(topology)
    for before, step in pairwise(series.steps):
        if before.at is None or step.at is None or step.paused or series.unread_after.get(before.step):
            continue
        logged, passed = _logged_s(before, step), step.at - before.at
        slack = resolution + late + _SHARE * max(logged, passed)
        if _differ(passed, logged, slack):
            yield (
                f"up to step {step.step}, {step.step - before.step} steps took {logged:.6g} s by the line about them, "
                f"and {passed:.6g} s by its time and that of the line before"
            )


def _logged_s(before: Step, step: Step) -> float:
    """Duration of the steps between two lines by the second one, whose mean may include the step of the first."""
    twice = step.step - step.interval < before.step
    return (step.seconds or 0.0) * step.interval - (before.seconds or 0.0) * before.interval * twice


def check_product(
    steps: Sequence[Step],
    product: str | float,
    factors: tuple[str, str | float],
    slack: Callable[[Step], float] = lambda _: 0.0,
) -> Iterator[str]:
    """Yield the first line in which a number differs from the product of two others, by more than rounding.

    Each of the three is a reported name, `seconds` for the duration of the line, or a number of the recipe. `slack` is
    the allowed difference as a share, in addition to rounding.
    """

    def value(step: Step, name: str | float) -> float:
        if isinstance(name, str):
            return (step.seconds if name == "seconds" else step.reported.get(name)) or 0.0
        return name

    names = (product, *factors)
    lines = [step for step in steps if all(value(step, name) for name in names)]
    values = [[value(step, name) for step in lines] for name in names]
    columns = [
        _rounded(column) if isinstance(name, str) else [(name, name)] * len(lines)
        for name, column in zip(names, values, strict=True)
    ]
    for step, row, ranges in zip(lines, zip(*values, strict=True), zip(*columns, strict=True), strict=True):
        share = slack(step)
        if not _meet(ranges[0], _times(_times(ranges[1], ranges[2]), (1 - share, 1 + share))):
            due, *others = (
                f"{name} {number:g}" if isinstance(name, str) else f"the recipe's {number:g}"
                for name, number in zip(names, row, strict=True)
            )
            yield f"step {step.step} has {due}, where {' × '.join(others)} are {row[1] * row[2]:.6g}"
            return


def check_pace(series: StepSeries, topology: Topology) -> Iterator[str]:
    """Yield a contradiction if by the time stamps of the lines the median step takes about twice its logged duration.

    Durations leave out the time between steps (input, logs); a small share of such time is a finding instead.
    """
    ratio = pace(series)
    if ratio is not None and ratio > (_FASTER if topology.gpus else _FASTER_ON_CPUS):
        yield (
            f"by the times of its lines or event files the steps take {ratio:.3g} times "
            "their logged duration, in the median: the timing does not cover the training, or most of the time goes by "
            "outside of it"
        )


def pace(series: StepSeries) -> float | None:
    """Return the median ratio of the steps' durations by their lines' times to the logged ones; None without times."""
    stamped = [step for step in series.steps if step.at is not None and step.seconds]
    least = _LEAST_S if all((step.at or 0.0).is_integer() for step in stamped) else 0.0
    ratios = []
    for before, step in pairwise(stamped):
        passed, logged = (step.at or 0.0) - (before.at or 0.0), (step.seconds or 0.0) * (step.step - before.step)
        whole = not step.paused and not series.unread_after.get(before.step)
        if whole and logged > 0.0 and max(logged, passed) >= least:
            ratios.append(passed / logged)
    return stats.median(ratios) if len(ratios) >= _FEWEST else None


def check_wall(series: StepSeries, topology: Topology) -> Iterator[str]:
    """Yield the lines whose clock `wall` contradicts their time stamps, or in which steps take longer than `wall`.

    Steps may take less than the time between two lines, as evaluations and checkpoints lie there too, but at least
    their busy time `train_wall`. All three clocks are in whole seconds.
    """
    late = late_s(topology)
    for before, step in pairwise(series.steps):
        walls = [line.reported.get("wall") for line in (before, step)]
        if before.at is None or step.at is None or walls[0] is None or walls[1] is None:
            continue
        logged, passed, wall = _logged_s(before, step), step.at - before.at, walls[1] - walls[0]
        slack = 2.0 + late + _SHARE * max(passed, wall, logged)
        if _differ(passed, wall, slack):
            yield f"from step {before.step} to {step.step} `wall` goes on by {wall:g} s, and the time by {passed:g} s"
        elif logged > wall + slack:
            yield (
                f"up to step {step.step}, {step.step - before.step} steps took {logged:.6g} s by the line about them, "
                f"and {wall:g} s by `wall`"
            )
    for step in series.steps[1:]:  # the rate of the first line leaves out its first step
        busy, logged = step.reported.get("train_wall"), (step.seconds or 0.0) * step.interval
        if busy is not None and logged and busy > _BUSY * logged + 1.0 + late:
            yield f"step {step.step} was busy for {busy:g} s by `train_wall`, where its rate is of {logged:.4g} s"


def check_span(steps: Sequence[Step], topology: Topology, seconds: float) -> Iterator[str]:
    """Yield a contradiction if the lines span more time than the `seconds` that all timed steps took."""
    stamped = [(step.at, step.step) for step in steps if step.at is not None]
    if len(stamped) < 2:
        return
    (began, first), (ended, last) = stamped[0], stamped[-1]
    passed, slack = ended - began, _SHARE * seconds + late_s(topology)
    if passed > seconds and _differ(passed, seconds, slack):
        yield (
            f"from step {first} to step {last} {passed:.6g} s passed by the lines' times, and {seconds:g} s are "
            f"logged for all of the timed steps"
        )


def _times(one: _Range, other: _Range) -> _Range:
    return one[0] * other[0], one[1] * other[1]


def _meet(one: _Range, other: _Range) -> bool:
    """True if both ranges can be of the same number."""
    return one[0] <= other[1] * (1 + 1e-9) and other[0] <= one[1] * (1 + 1e-9)


def _rounded(values: Sequence[float]) -> list[_Range]:
    """Range of each value before it was printed, with as many decimals as the value that shows most.

    Values of a million and more may have been printed with six digits.
    """
    places = max((decimals(value) for value in values), default=0)
    halves = [max(0.5 * 10.0**-places, 0.5e-5 * abs(value) if abs(value) >= 1e6 else 0.0) for value in values]
    return [(max(0.0, value - half), value + half) for value, half in zip(values, halves, strict=True)]


def decimals(value: float) -> int:
    """Count a number's decimals, up to nine, as it may have been divided by a thousand after it was read."""
    return len(f"{value:.9f}".rstrip("0").partition(".")[2]) if math.isfinite(value) else 0
