"""Figures of a run over its steps: step time, throughput and loss, with everything that the verdict rests on."""

import math
import statistics as stats
from collections.abc import Iterator, Sequence
from itertools import pairwise

from pytest_llmbench.core.errors import UnitError
from pytest_llmbench.core.quantity import Quantity, counted, for_people, listed
from pytest_llmbench.core.record.records import Metric, RunRecord, Verdict
from pytest_llmbench.core.record.series import Step
from pytest_llmbench.judging.statistics import judged_steps
from pytest_llmbench.reporting.html import figures
from pytest_llmbench.reporting.html.figures import Figure
from pytest_llmbench.reporting.html.thinning import rounded, thinned

# A threshold further away than this many times the measured ones would squeeze the curve to a line.
_FAR = 3.0
# How the two kinds of bounds follow from the seconds of a step.
_RATE = {">=": "at most", "<=": "at least"}


def step_figures(run: RunRecord, points: int) -> Iterator[Figure]:
    """Yield the figures of a run that has steps.

    Args:
        run: its record.
        points: the most points of one curve.
    """
    timed = [step for step in run.steps if step.seconds is not None and step.seconds > 0.0]
    if timed:
        yield _step_time(run, timed, points)
        rated = [step for step in timed if step.tokens]
        if rated:
            yield _throughput(run, rated, points)
    if lossy := [step for step in run.steps if step.loss is not None]:
        yield _loss(lossy, points)


def bounds_of(run: RunRecord) -> Iterator[tuple[str, str, Quantity, Metric]]:
    """Yield statistic, comparison, bound and metric of each threshold that a test compared with this run's speed."""
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
            if operator in _RATE and (judged.statistic, part) not in seen:
                seen.add((judged.statistic, part))
                yield judged.statistic or "", operator, bound, metric


def _seconds(bound: Quantity, metric: Metric) -> float | None:
    """The seconds of a step at a bound; None where it says nothing of them."""
    if metric.sense is None or metric.amount is None or metric.amount <= 0.0 or bound.value <= 0.0:
        return None
    return metric.amount / bound.value if metric.sense == "rate" else bound.value / metric.amount


def _step_time(run: RunRecord, steps: Sequence[Step], points: int) -> Figure:
    seconds = [float(step.seconds or 0.0) for step in steps]
    at = thinned(seconds, points)
    x, y = [steps[place].step for place in at], [rounded(seconds[place]) for place in at]
    shapes, words = _warm_up(run, steps)
    told = [_described("step", steps, seconds, "s"), *words, _thin(at, steps)]
    data = [_curve(x, y, "step time")]
    paused = _pauses(run)
    if paused:
        data.append(
            figures.line(
                [step.step for step in paused],
                [rounded(step.seconds) for step in paused],
                mode="markers",
                name="pause",
                marker={"color": figures.SECOND, "size": 9, "symbol": "diamond-open"},
            )
        )
        told.append(f"{counted(len(paused), 'step')} stand out as pauses: {listed([step.step for step in paused])}")
    steady = run.steady
    if steady is not None and math.isfinite(steady.low) and math.isfinite(steady.high):
        low, high = max(steady.low, 0.0), steady.high
        told.append(f"steady part: mean {_s(steady.mean)}, between {_s(low)} and {_s(high)} in further steps")
        # An interval wider than what it is drawn around says so in words only.
        if high - low < _FAR * (max(seconds) - min(seconds) + 1e-12):
            shapes.append(figures.band(low, high))
            shapes.append(figures.level(steady.mean, "", figures.SECOND, dash="dot"))
    drawn: list[float] = []
    for statistic, operator, bound, metric in bounds_of(run):
        limit = _seconds(bound, metric)
        if limit is None:
            continue
        by = _RATE[operator] if metric.sense == "rate" else {">=": "at least", "<=": "at most"}[operator]
        told.append(f"threshold: {by} {_s(limit)}, from {statistic} {operator} {bound}")
        if _near(limit, seconds):
            shapes.append(figures.level(limit, f"{by} {_s(limit)}", below=limit < stats.median(seconds)))
            drawn.append(limit)
    top = _top(run, steps, drawn)
    if top < max(seconds):
        told.append(f"steps of the warm-up above {_s(top)} are cut off at the top")
    axis = {"title": {"text": "s per step"}, "range": [0.0, rounded(top)]}
    layout = {"shapes": shapes, "yaxis": axis, "xaxis": _steps()}
    return Figure(title="Step time", told=figures.sentence(told), data=data, layout=layout)


def _top(run: RunRecord, steps: Sequence[Step], limits: Sequence[float]) -> float:
    """Upper end of the axis: a step of the warm-up, such as one that compiles, does not squeeze all others."""
    judged = [step.seconds for step in judged_steps(run.recipe, steps) if step.seconds is not None]
    whole = 1.15 * max(*(step.seconds or 0.0 for step in steps), *limits, 0.0)
    top = 1.25 * max([*judged, *limits]) if judged else whole
    return top if 1.6 * top < whole else whole


def _throughput(run: RunRecord, steps: Sequence[Step], points: int) -> Figure:
    rates = [(step.tokens or 0) / (step.seconds or math.inf) for step in steps]
    at = thinned(rates, points)
    shapes, _ = _warm_up(run, steps)
    told = [_described("step", steps, rates, "words/s")]
    metric = run.metrics.get("throughput")
    if metric is not None and metric.unit in {"words/s", "tokens/s"}:
        told.append(f"judged throughput {metric.quantity}")
        if metric.low is not None and metric.high is not None and math.isfinite(metric.high - metric.low):
            told.append(
                f"between {for_people(metric.low)} and {for_people(metric.high)} {metric.unit} in further steps"
            )
            if metric.high - metric.low < _FAR * (max(rates) - min(rates) + 1e-12):
                shapes.append(figures.band(metric.low, metric.high))
        shapes.append(figures.level(metric.value, "", figures.SECOND, dash="dot"))
    top = max(rates)
    for statistic, operator, bound, of in bounds_of(run):
        if statistic != "throughput" or of.unit not in {"words/s", "tokens/s"}:
            continue
        sign = {">=": "≥", "<=": "≤"}[operator]
        told.append(f"threshold {sign} {bound}")
        if _near(bound.value, rates):
            shapes.append(figures.level(bound.value, f"{sign} {bound}", below=bound.value < stats.median(rates)))
            top = max(top, bound.value)
    data = [_curve([steps[place].step for place in at], [rounded(rates[place]) for place in at], "throughput")]
    if len({step.tokens for step in steps}) == 1 and len(steps) == sum(bool(step.seconds) for step in run.steps):
        data = [{"is": "curve", "mode": data[0]["mode"], "name": "throughput", "amount": steps[0].tokens}]
    axis = {"title": {"text": "words/s"}, "range": [0.0, rounded(1.15 * top)]}
    layout = {"shapes": shapes, "yaxis": axis, "xaxis": _steps()}
    return Figure(title="Throughput", told=figures.sentence(told), data=data, layout=layout)


def _loss(steps: Sequence[Step], points: int) -> Figure:
    losses = [step.loss for step in steps]
    at = thinned(losses, points)
    finite = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    told = [f"loss over {counted(len(steps), 'logged step')}"]
    if finite:
        told.append(
            f"first {for_people(finite[0])}, last {for_people(finite[-1])}, lowest {for_people(min(finite))} nat"
        )
    if len(finite) < len(losses):
        ill = [step.step for step in steps if step.loss is not None and not math.isfinite(step.loss)]
        told.append(f"not a finite number in {counted(len(ill), 'step')}: {listed(ill)}")
    data = [_curve([steps[place].step for place in at], [rounded(losses[place]) for place in at], "loss")]
    layout = {"yaxis": {"title": {"text": "nat per token"}}, "xaxis": _steps()}
    return Figure(title="Loss", told=figures.sentence(told), data=data, layout=layout)


def _curve(x: Sequence[int], y: Sequence[float | None], name: str) -> dict[str, object]:
    mode = "lines+markers" if len(x) <= 60 else "lines"
    even = len(x) > 2 and all(two - one == 1 for one, two in pairwise(x))
    along: dict[str, object] = {"x0": x[0], "dx": 1} if even else {"x": list(x)}
    return {"is": "curve", "mode": mode, "y": list(y), "name": name, **along}


def _warm_up(run: RunRecord, steps: Sequence[Step]) -> tuple[list[dict[str, object]], list[str]]:
    """The stretch of the steps that are not judged, and the same in words."""
    judged = judged_steps(run.recipe, steps)
    left = run.steady.left_out if run.steady is not None else 0
    first = judged[0].step if judged else None
    words = [f"judged from step {first} on" if first is not None else "no step is judged: all are warm-up"]
    shapes = [figures.stretch(steps[0].step - 0.5, (first or steps[-1].step + 1) - 0.5, "warm-up")]
    if first == steps[0].step:
        shapes = []
    if left and len(judged) > left:
        words.append(f"the first {counted(left, 'judged step')} were slower, and are left out of the steady part")
        shapes.append(figures.stretch(judged[0].step - 0.5, judged[left].step - 0.5, "slow start", "bottom left"))
    return shapes, words


def _pauses(run: RunRecord) -> list[Step]:
    judged = judged_steps(run.recipe, run.steps)
    at = run.steady.pauses.at if run.steady is not None else ()
    return [judged[place] for place in at if place < len(judged)]


def _described(what: str, steps: Sequence[Step], values: Sequence[float], unit: str) -> str:
    low, high = min(values), max(values)
    return (
        f"{counted(len(steps), what)}, median {for_people(stats.median(values))} {unit}, lowest {for_people(low)} "
        f"(step {steps[values.index(low)].step}), highest {for_people(high)} (step {steps[values.index(high)].step})"
    )


def _thin(at: Sequence[int], steps: Sequence[Step]) -> str:
    if len(at) == len(steps):
        return ""
    return f"drawn are {len(at)} of {len(steps)}: the lowest and the highest of each stretch"


def _near(limit: float, values: Sequence[float]) -> bool:
    return min(values) / _FAR <= limit <= _FAR * max(values)


def _steps() -> dict[str, object]:
    return {"title": {"text": "step"}}


def _s(seconds: float) -> str:
    return f"{for_people(seconds)} s"
