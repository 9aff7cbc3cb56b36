"""Figures of a run over its steps: step time, throughput and loss, with everything that the verdict rests on."""

import math
import statistics as stats
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from pytest_llmbench.core.errors import UnitError
from pytest_llmbench.core.quantity import Quantity, counted, for_people, listed
from pytest_llmbench.core.record.records import Metric, RunRecord, Verdict
from pytest_llmbench.core.record.series import Step
from pytest_llmbench.judging.statistics import judged_steps
from pytest_llmbench.reporting.html.figures import SECOND, Figure, band, level, line, sentence, stretch, thinned

# A threshold further away than this many times the measured ones would squeeze the curve to a line.
_FAR = 3.0
_SIGNS = {">=": "≥", "<=": "≤"}
_WORDS_OF_TIME = {">=": "at least", "<=": "at most"}
# A bound on a rate is a bound of the other kind on the seconds of a step.
_OPPOSITE = {">=": "<=", "<=": ">="}
_RATE_UNITS = {"words/s", "tokens/s"}


def step_figures(run: RunRecord, points: int) -> Iterator[Figure]:
    """Yield the figures of a run that has steps.

    Args:
        run: its record.
        points: the most points of one curve.
    """
    timed = [step for step in run.steps if step.seconds is not None and step.seconds > 0.0]
    if timed:
        yield _step_time(run, timed, points)
    if rated := [step for step in timed if step.tokens]:
        yield _throughput(run, rated, points)
    if lossy := [step for step in run.steps if step.loss is not None]:
        yield _loss(lossy, points)


def _bounds_of(run: RunRecord) -> Iterator[tuple[str, str, Quantity, Metric]]:
    """Yield statistic, operator, bound and metric of each threshold that a test compared with this run's speed."""
    seen = set()
    for judged in run.judgements:
        metric = run.metrics.get(judged.statistic or "")
        if judged.verdict is Verdict.SKIP or judged.threshold is None or metric is None:
            continue
        for part in judged.threshold.split(" and "):
            operator, _, text = part.partition(" ")
            try:
                bound = Quantity(text).to(metric.unit)
            except UnitError:
                continue  # a threshold of a test of the user's own may be any text
            if operator in _SIGNS and (judged.statistic, part) not in seen:
                seen.add((judged.statistic, part))
                yield judged.statistic or "", operator, bound, metric


def _step_time(run: RunRecord, steps: Sequence[Step], points: int) -> Figure:
    seconds = [float(step.seconds or 0.0) for step in steps]
    places = thinned(seconds, points)
    shapes, words = _warm_up(run, steps)
    left_out = (
        "" if len(places) == len(steps) else f"drawn are {len(places)} of {len(steps)}: the extremes of each part"
    )
    caption = [_range(steps, seconds, "s"), *words, left_out]
    data = [_curve(steps, seconds, places, "step time")]
    judged = judged_steps(run.recipe, run.steps)
    if paused := [judged[at] for at in (run.steady.pauses.at if run.steady else ()) if at < len(judged)]:
        marker = {"color": SECOND, "size": 9, "symbol": "diamond-open"}
        numbers = [step.step for step in paused]
        data.append(line(numbers, [step.seconds for step in paused], mode="markers", name="pause", marker=marker))
        caption.append(f"{counted(len(paused), 'step')} stand out as pauses: {listed(numbers)}")
    if run.steady is not None and math.isfinite(run.steady.low) and math.isfinite(run.steady.high):
        mean, low, high = run.steady.mean, max(run.steady.low, 0.0), run.steady.high
        caption.append(f"steady part: mean {_s(mean)}, between {_s(low)} and {_s(high)} in further steps")
        shapes += _interval(low, mean, high, seconds)
    limits: list[float] = []
    for statistic, operator, bound, metric in _bounds_of(run):
        if metric.sense is None or not metric.amount or metric.amount < 0.0 or bound.value <= 0.0:
            continue
        is_rate = metric.sense == "rate"
        limit = metric.amount / bound.value if is_rate else bound.value / metric.amount
        word = _WORDS_OF_TIME[_OPPOSITE[operator] if is_rate else operator]
        caption.append(f"threshold: {word} {_s(limit)}, from {statistic} {operator} {bound}")
        if _is_near(limit, seconds):
            shapes.append(level(limit, f"{word} {_s(limit)}", below=limit < stats.median(seconds)))
            limits.append(limit)
    # A step of the warm-up, such as one that compiles, may not squeeze all others.
    top = whole = 1.15 * max(*seconds, *limits, 0.0)
    if known := [step.seconds for step in judged_steps(run.recipe, steps) if step.seconds is not None]:
        lower = 1.25 * max([*known, *limits])
        top = lower if 1.6 * lower < whole else whole
    if top < max(seconds):
        caption.append(f"steps of the warm-up above {_s(top)} are cut off at the top")
    return _figure("Step time", caption, data, shapes, "s per step", top)


def _throughput(run: RunRecord, steps: Sequence[Step], points: int) -> Figure:
    rates = [(step.tokens or 0) / (step.seconds or math.inf) for step in steps]
    shapes, _ = _warm_up(run, steps)
    caption = [_range(steps, rates, "words/s")]
    metric = run.metrics.get("throughput")
    if metric is not None and metric.unit in _RATE_UNITS:
        caption.append(f"judged throughput {metric.quantity}")
        low, high = metric.low, metric.high
        if low is not None and high is not None and math.isfinite(high - low):
            caption.append(f"between {for_people(low)} and {for_people(high)} {metric.unit} in further steps")
            shapes += _interval(low, metric.value, high, rates)
        else:
            shapes.append(level(metric.value, "", SECOND, dash="dot"))
    top = max(rates)
    for statistic, operator, bound, judged in _bounds_of(run):
        if statistic == "throughput" and judged.unit in _RATE_UNITS:
            caption.append(f"threshold {_SIGNS[operator]} {bound}")
            if _is_near(bound.value, rates):
                below = bound.value < stats.median(rates)
                shapes.append(level(bound.value, f"{_SIGNS[operator]} {bound}", below=below))
                top = max(top, bound.value)
    curve = _curve(steps, rates, thinned(rates, points), "throughput")
    if len({step.tokens for step in steps}) == 1 and len(steps) == sum(bool(step.seconds) for step in run.steps):
        # The page's script computes it from the step times.
        curve = {"is": "curve", "mode": curve["mode"], "name": "throughput", "amount": steps[0].tokens}
    return _figure("Throughput", caption, [curve], shapes, "words/s", 1.15 * top)


def _loss(steps: Sequence[Step], points: int) -> Figure:
    losses = [math.nan if step.loss is None else step.loss for step in steps]
    finite = [loss for loss in losses if math.isfinite(loss)]
    caption = [f"loss over {counted(len(steps), 'logged step')}"]
    if finite:
        first, last, lowest = map(for_people, (finite[0], finite[-1], min(finite)))
        caption.append(f"first {first}, last {last}, lowest {lowest} nat")
    if ill := [step.step for step, loss in zip(steps, losses, strict=True) if not math.isfinite(loss)]:
        caption.append(f"not a finite number in {counted(len(ill), 'step')}: {listed(ill)}")
    data = [_curve(steps, losses, thinned(losses, points), "loss")]
    return _figure("Loss", caption, data, (), "nat per token", None)


def _figure(
    title: str, caption: Sequence[str], data: Sequence[Any], shapes: Sequence[Any], unit: str, top: float | None
) -> Figure:
    vertical = {"title": {"text": unit}, **({} if top is None else {"range": [0.0, top]})}
    layout = {"shapes": shapes, "yaxis": vertical, "xaxis": {"title": {"text": "step"}}}
    return Figure(title=title, caption=sentence(caption), data=data, layout=layout)


def _curve(steps: Sequence[Step], values: Sequence[float], places: Sequence[int], name: str) -> dict[str, Any]:
    x = [steps[place].step for place in places]
    even = len(x) > 2 and all(two - one == 1 for one, two in pairwise(x))
    along = {"x0": x[0], "dx": 1} if even else {"x": x}
    mode = "lines+markers" if len(x) <= 60 else "lines"
    return {"is": "curve", "mode": mode, "y": [values[place] for place in places], "name": name, **along}


def _interval(low: float, mean: float, high: float, values: Sequence[float]) -> list[dict[str, Any]]:
    """A mean and its interval; an interval wider than what it is drawn around is left to the caption."""
    is_narrow = high - low < _FAR * (max(values) - min(values) + 1e-12)
    return [*([band(low, high)] if is_narrow else []), level(mean, "", SECOND, dash="dot")]


def _warm_up(run: RunRecord, steps: Sequence[Step]) -> tuple[list[dict[str, Any]], list[str]]:
    """The stretch of the steps that are not judged, and its words for the caption."""
    judged = judged_steps(run.recipe, steps)
    left = run.steady.left_out if run.steady is not None else 0
    first = judged[0].step if judged else None
    words = [f"judged from step {first} on" if first is not None else "no step is judged: all are warm-up"]
    shapes = []
    if first != steps[0].step:
        shapes.append(stretch(steps[0].step - 0.5, (first or steps[-1].step + 1) - 0.5, "warm-up"))
    if left and len(judged) > left:
        words.append(f"the first {counted(left, 'judged step')} were slower, and are left out of the steady part")
        shapes.append(stretch(judged[0].step - 0.5, judged[left].step - 0.5, "slow start", "bottom left"))
    return shapes, words


def _range(steps: Sequence[Step], values: Sequence[float], unit: str) -> str:
    low, high = min(values), max(values)
    return (
        f"{counted(len(steps), 'step')}, median {for_people(stats.median(values))} {unit}, lowest {for_people(low)} "
        f"(step {steps[values.index(low)].step}), highest {for_people(high)} (step {steps[values.index(high)].step})"
    )


def _is_near(limit: float, values: Sequence[float]) -> bool:
    return min(values) / _FAR <= limit <= _FAR * max(values)


def _s(seconds: float) -> str:
    return f"{for_people(seconds)} s"
