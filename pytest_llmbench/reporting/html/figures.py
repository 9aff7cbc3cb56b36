"""Figures of runs and checks as data and layout of plotly.js, each with its numbers in a sentence.

They have full precision; `Figure.json` rounds. The page's script adds the template that all figures share, and replaces
named colours by those of the light or the dark page. plotly.js reads texts as HTML, so `label` escapes foreign ones.
"""

import html
import json
import math
import statistics as stats
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pytest_llmbench.core.errors import UnitError
from pytest_llmbench.core.quantity import Quantity, counted, for_people, listed
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.curves import Curve, size_name
from pytest_llmbench.core.record.health import HealthRecord, Reading
from pytest_llmbench.core.record.records import Metric, RunRecord, Verdict
from pytest_llmbench.core.record.series import RunTimes, Step
from pytest_llmbench.core.record.telemetry import GpuTelemetry
from pytest_llmbench.core.text import harmless
from pytest_llmbench.core.wire.layout import STEPS
from pytest_llmbench.core.wire.step_events import PHASES
from pytest_llmbench.judging.statistics import judged_steps

# Named colours of the page, see `report.css`. The curves of a figure are `@line`, `@second` and `@bad`, in their order.
SECOND, BAD = "@second", "@bad"
_LONGEST = 80
_DIGITS = 5
# A threshold further away than this many times the measured ones is only in the caption.
_FAR = 3.0
_SIGNS = {">=": "≥", "<=": "≤"}
_RATE_UNITS = {"words/s", "tokens/s"}
# Of more ranks, and of more nodes than columns, those that stand out most are drawn.
_MOST_RANKS = 64
_MOST_COLUMNS = 120
_BUSBW, _PEAK = "busbw_", "busbw_peak"
_BETWEEN = " - "
_REFERENCES: TypeAdapter[list[Reference]] = TypeAdapter(list[Reference])
# A name is a few pixels high: of more nodes than these, every other name is left out by plotly.js.
_PIXELS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One figure: traces and layout of plotly.js, and a caption that has its numbers in words."""

    title: str
    caption: str
    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any] = field(default_factory=dict)
    height: int = 230  # pixels
    wide: bool = False

    @property
    def json(self) -> Any:
        """The input of the page's script: numbers with few digits, NaN and infinity as null."""
        whole = json.dumps({"data": self.data, "layout": self.layout})
        return json.loads(whole, parse_float=_shorten, parse_constant=lambda _: None)


def _shorten(number: str) -> float:
    short = float(f"{float(number):.{_DIGITS}g}")
    return int(short) if short.is_integer() else short


def thin(values: Sequence[float | None], most: int) -> list[int]:
    """Positions of the values to draw: the lowest and the highest of each stretch, and both ends.

    Args:
        values: in order; of more than `most`, only finite ones are kept.
        most: the number of points, at least 4.
    """
    count = len(values)
    if count <= most:
        return [*range(count)]
    stretches = max(1, (most - 2) // 2)
    kept = {0, count - 1}
    for number in range(stretches):
        first, last = count * number // stretches, count * (number + 1) // stretches
        finite = [
            (value, at) for at in range(first, last) if (value := values[at]) is not None and math.isfinite(value)
        ]
        if finite:
            kept |= {min(finite)[1], max(finite)[1]}
    return sorted(kept)


def label(text: str) -> str:
    """A foreign text, shortened and escaped for a figure."""
    plain = harmless(text)
    return html.escape(plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}…", quote=False)


def line(x: Iterable[Any], y: Iterable[Any], **changes: Any) -> dict[str, Any]:
    """A curve, with markers if it has fewer than 20 points."""
    return {"x": [*x], "y": [*y], **changes}


def level(y: float, words: str, colour: str = BAD, *, dash: str = "dash", below: bool = False) -> dict[str, Any]:
    """A horizontal line across the figure, with words above or below it."""
    anchor = "top" if below else "bottom"
    text = {"label": {"text": label(words), "yanchor": anchor, "font": {"color": colour}}} if words else {}
    return {"type": "line", "y0": y, "y1": y, "line": {"color": colour, "dash": dash}, **text}


def band(y0: float, y1: float) -> dict[str, Any]:
    """A range of values across the figure."""
    return {"y0": y0, "y1": y1, "fillcolor": "@band", "line": {"width": 0}}


def stretch(x0: float, x1: float, words: str, corner: str = "top left") -> dict[str, Any]:
    """A range of steps from the bottom to the top of the figure, with words."""
    text = {"text": label(words), "textposition": corner, "font": {"color": "@muted"}}
    place = {"xref": "x", "x0": x0, "x1": x1, "yref": "paper", "y0": 0, "y1": 1}
    return {**place, "fillcolor": "@edge", "line": {"width": 0}, "label": text}


def heat_map(
    x: Sequence[Any], y: Sequence[str], z: Sequence[Sequence[float | None]], unit: str, *, reverse: bool = False
) -> dict[str, Any]:
    """Values by two names; a missing one is a gap."""
    return {
        "type": "heatmap", "x": x, "y": [label(name) for name in y], "z": z,
        "colorscale": "@reversed" if reverse else "@scale", "colorbar": {"ticksuffix": f" {unit}"},
        "hovertemplate": f"%{{y}}, %{{x}}: %{{z}} {unit}<extra></extra>",
    }  # fmt: skip


def sentence(parts: Iterable[str]) -> str:
    """Parts of a caption as one sentence; empty ones are left out."""
    text = "; ".join(part for part in parts if part)
    return f"{text[:1].upper()}{text[1:]}."


def step_figures(run: RunRecord, points: int) -> Iterator[Figure]:
    """Yield the figures over the steps of a run, with at most this many points in a curve."""
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
    shapes, words = _warm_up(run, steps)
    data = [_curve(steps, seconds, points, "step time")]
    caption = [_range(steps, seconds, "s"), *words]
    if (drawn := len(data[0]["x"])) < len(steps):
        caption.append(f"drawn are {drawn} of {len(steps)}: the extremes of each part")
    judged = judged_steps(run.recipe, run.steps)
    if paused := [judged[at] for at in (run.steady.pauses.at if run.steady else ()) if at < len(judged)]:
        numbers, marker = [step.step for step in paused], {"size": 9, "symbol": "diamond-open"}
        data.append(line(numbers, [step.seconds for step in paused], mode="markers", name="pause", marker=marker))
        caption.append(f"{counted(len(paused), 'step')} stand out as pauses: {listed(numbers)}")
    if run.steady is not None and math.isfinite(run.steady.low) and math.isfinite(run.steady.high):
        mean, low, high = run.steady.mean, run.steady.low, run.steady.high
        caption.append(f"steady part: mean {_s(mean)}, between {_s(low)} and {_s(high)} in further steps")
        shapes += _interval(low, mean, high, seconds)
    limits: dict[float, str] = {}
    for statistic, operator, bound, metric in _bounds_of(run):
        if metric.sense is None or not metric.amount or metric.amount < 0.0 or bound.value <= 0.0:
            continue
        is_rate = metric.sense == "rate"
        limit = metric.amount / bound.value if is_rate else bound.value / metric.amount
        # A bound on a rate is a bound of the other kind on the seconds of a step.
        limits[limit] = f"{'at least' if is_rate == (operator == '<=') else 'at most'} {_s(limit)}"
        caption.append(f"threshold: {limits[limit]}, from {statistic} {operator} {bound}")
    near = _levels(limits, seconds)
    # A slow step of the warm-up, such as one that compiles, would squeeze all others.
    whole = 1.15 * max(*seconds, *near, 0.0)
    after = [step.seconds for step in judged_steps(run.recipe, steps) if step.seconds is not None]
    lower = 1.25 * max(*(after or seconds), *near, 0.0)
    top = lower if 1.6 * lower < whole else whole
    if top < max(seconds):
        caption.append(f"steps of the warm-up above {_s(top)} are cut off at the top")
    return _figure("Step time", caption, data, [*shapes, *near.values()], "s per step", top)


def _throughput(run: RunRecord, steps: Sequence[Step], points: int) -> Figure:
    rates = [(step.tokens or 0) / (step.seconds or math.inf) for step in steps]
    shapes, _ = _warm_up(run, steps)
    caption = [_range(steps, rates, "words/s")]
    metric = run.metrics.get("throughput")
    if metric is not None and metric.unit in _RATE_UNITS:
        caption.append(f"judged throughput {metric.quantity}")
        # The interval of the verdict contains the difference between runs, that of the run alone its further steps.
        own = (each for each in run.judgements if each.statistic == "throughput" and None not in {each.low, each.high})
        judgement = next((each for each in own if each.unit == metric.unit), None)
        source, words = (metric, "in further steps") if judgement is None else (judgement, "by the verdict")
        low, high = (math.nan if end is None else end for end in (source.low, source.high))
        if math.isfinite(high - low):
            caption.append(f"between {for_people(low)} and {for_people(high)} {metric.unit} {words}")
        shapes += _interval(low, metric.value, high, rates)
    limits: dict[float, str] = {}
    for statistic, operator, bound, judged in _bounds_of(run):
        if statistic == "throughput" and judged.unit in _RATE_UNITS:
            limits[bound.value] = f"{_SIGNS[operator]} {bound}"
            caption.append(f"threshold {limits[bound.value]}")
    near = _levels(limits, rates)
    top, data = 1.15 * max(*rates, *near, 0.0), [_curve(steps, rates, points, "throughput")]
    return _figure("Throughput", caption, data, [*shapes, *near.values()], "words/s", top)


def _loss(steps: Sequence[Step], points: int) -> Figure:
    losses = [math.nan if step.loss is None else step.loss for step in steps]
    finite = [loss for loss in losses if math.isfinite(loss)]
    caption = [f"loss over {counted(len(steps), 'logged step')}"]
    if finite:
        first, last, lowest = map(for_people, (finite[0], finite[-1], min(finite)))
        caption.append(f"first {first}, last {last}, lowest {lowest} nat")
    if ill := [step.step for step, loss in zip(steps, losses, strict=True) if not math.isfinite(loss)]:
        caption.append(f"not a finite number in {counted(len(ill), 'step')}: {listed(ill)}")
    return _figure("Loss", caption, [_curve(steps, losses, points, "loss")], (), "nat per token", None)


def _figure(
    title: str, caption: Sequence[str], data: Sequence[Any], shapes: Sequence[Any], unit: str, top: float | None
) -> Figure:
    vertical = {"title": {"text": unit}, **({} if top is None else {"range": [0.0, top]})}
    layout = {"shapes": shapes, "yaxis": vertical, "xaxis": {"title": {"text": "step"}}}
    return Figure(title=title, caption=sentence(caption), data=data, layout=layout)


def _curve(steps: Sequence[Step], values: Sequence[float], points: int, name: str) -> dict[str, Any]:
    places = thin(values, points)
    return line((steps[at].step for at in places), (values[at] for at in places), name=name)


def _interval(low: float, mean: float, high: float, values: Sequence[float]) -> list[dict[str, Any]]:
    """A mean and its interval; an unknown one, or one much wider than the values, is left out."""
    is_narrow = high - low < _FAR * (max(values) - min(values) + 1e-12)
    return [*([band(low, high)] if is_narrow else []), level(mean, "", SECOND, dash="dot")]


def _levels(limits: Mapping[float, str], values: Sequence[float]) -> dict[float, dict[str, Any]]:
    """Lines at limits, by limit; one far from the values would squeeze the curve, and is left out."""
    lowest, middle, highest = min(values) / _FAR, stats.median(values), _FAR * max(values)
    near = (limit for limit in limits if lowest <= limit <= highest)
    return {limit: level(limit, limits[limit], below=limit < middle) for limit in near}


def _warm_up(run: RunRecord, steps: Sequence[Step]) -> tuple[list[dict[str, Any]], list[str]]:
    """The shapes of warm-up and slow start, and their words for the caption."""
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


def _s(seconds: float) -> str:
    return f"{for_people(seconds)} s"


def rank_figures(run: RunRecord, logs: Path | None) -> Iterator[Figure]:
    """Yield the figures by rank for which the run's record, and its step logs in a folder, have data."""
    if run.times is not None and any(rank.phases for rank in run.times.ranks):
        yield _phases(run.times)
    if watched := [gpu for gpu in run.telemetry if gpu.samples]:
        yield _telemetry(watched)
    ranks = {path.stem: own for path in (_logs(logs) if logs else ()) if (own := _own_times(path))}
    if len(ranks) > 1:
        yield _over_steps(ranks)


def size_of_step_logs(folder: Path) -> int:
    """Bytes of all step logs of a run."""
    return sum(path.stat().st_size for path in _logs(folder))


def _over_steps(ranks: Mapping[str, Mapping[int, float]]) -> Figure:
    """Ranks by steps, without the time that a rank waited: a rank that waits takes as long as the slowest one."""
    means = {name: stats.fmean(own.values()) for name, own in ranks.items()}
    shown = _most_different(means)
    steps = sorted({step for name in shown for step in ranks[name]})
    width = -(-len(steps) // _MOST_COLUMNS)
    parts = [steps[at : at + width] for at in range(0, len(steps), width)]
    z = []
    for name in shown:
        cells = ([ranks[name][step] for step in part if step in ranks[name]] for part in parts)
        z.append([stats.fmean(cell) if cell else None for cell in cells])
    slow, fast = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    caption = (
        f"{counted(len(ranks), 'rank')} over {counted(len(steps), 'step')}: own time of a step, without waiting for "
        f"others. Longest on average {slow} with {_s(means[slow])}, shortest {fast} with {_s(means[fast])}"
    )
    # Each of few steps has a mark.
    axis = {"title": {"text": "step"}, **({"dtick": 1} if len(steps) < 13 else {})}
    return _by_rank("Ranks over time", caption, shown, len(ranks), [part[0] for part in parts], z, axis)


def _phases(times: RunTimes) -> Figure:
    """Ranks by phases, in seconds of a typical step."""
    ranks = {f"rank {rank.rank}": rank.phases for rank in times.ranks if rank.phases}
    phases = [phase for phase in PHASES if any(phase in rank for rank in ranks.values())]
    shown = _most_different({name: rank.get("sync", 0.0) for name, rank in ranks.items()})
    means = {phase: stats.fmean(rank.get(phase, 0.0) for rank in ranks.values()) for phase in phases}
    caption = (
        f"Mean of {counted(len(ranks), 'rank')} over {counted(times.steps, 'typical step')}: "
        f"{', '.join(f'{phase} {for_people(mean, 3)} s' for phase, mean in means.items())}"
    )
    z = [[ranks[name].get(phase) for phase in phases] for name in shown]
    return _by_rank("Time of a step by rank and phase", caption, shown, len(ranks), phases, z, {})


def _by_rank(
    title: str, caption: str, shown: Sequence[str], ranks: int, x: Sequence[Any], z: Sequence[Sequence[float | None]],
    axis: Mapping[str, Any],
) -> Figure:  # fmt: skip
    omitted = f"; drawn are the {len(shown)} that differ most of {ranks}" if len(shown) < ranks else ""
    rows = {"automargin": True, "autorange": "reversed", "showgrid": False}
    return Figure(
        title=title,
        caption=f"{caption}{omitted}.",
        data=[heat_map(x, shown, z, "s")],
        layout={"xaxis": {"showgrid": False, **axis}, "yaxis": rows},
        height=max(150, 70 + 14 * len(shown)),
        wide=bool(axis),
    )


def _telemetry(gpus: Sequence[GpuTelemetry]) -> Figure:
    """Power, SM clock and temperature of each GPU in the judged steps, one below the other."""
    series: dict[tuple[str, str], list[float | None]] = {
        ("power", "W"): [gpu.power_w for gpu in gpus],
        ("SM clock", "MHz"): [gpu.sm_clock_mhz for gpu in gpus],
        ("highest temperature", "°C"): [gpu.temperature_max_degc for gpu in gpus],
    }
    words, drawn = [f"{name} unknown" for name, _ in series], {}
    for number, (key, values) in enumerate(series.items()):
        if known := [value for value in values if value is not None]:
            drawn[key] = values
            words[number] = f"{key[0]} {for_people(min(known))} to {for_people(max(known))} {key[1]}"
    data, axes, part = [], {}, 1.0 / max(1, len(drawn))
    for number, ((name, unit), values) in enumerate(drawn.items()):
        axis, top = str(number + 1) if number else "", 1.0 - number * part
        domain = [top - part + 0.04, top - 0.04]
        axes[f"yaxis{axis}"] = {"rangemode": "tozero", "domain": domain, "title": {"text": unit}, "nticks": 4}
        marker = {"size": 7, "symbol": ("circle", "square", "diamond")[number]}
        ranks = (gpu.rank for gpu in gpus)
        data.append(line(ranks, values, mode="markers", name=f"{name}, {unit}", marker=marker, yaxis=f"y{axis}"))
    slowed = [gpu.rank for gpu in gpus if gpu.throttled]
    words.append(f"slowed down by heat or power brake: rank {listed(slowed)}" if slowed else "none was slowed down")
    return Figure(
        title="GPUs in the judged steps: power, SM clock, temperature",
        caption=f"{counted(len(gpus), 'GPU')}: {'; '.join(words)}.",
        data=data,
        layout={"xaxis": {"title": {"text": "rank"}, "anchor": data[-1]["yaxis"] if data else "y"}, **axes},
        height=320,
    )


def _logs(folder: Path) -> list[Path]:
    return sorted((folder / STEPS).glob("*.jsonl"))


def _own_times(path: Path) -> dict[int, float]:
    """The seconds of each step without a rank's wait for others; unreadable lines are left out."""
    own = {}
    with path.open("rb") as file:
        for line_of_log in file:
            if b'"event":"step"' not in line_of_log:
                continue
            try:
                event: Mapping[str, Any] = json.loads(line_of_log)
                phases = (event.get("spent") or {}).get("phases") or {}
                # The host's wait for its own GPU is part of `sync`: with a GPU, the whole step counts.
                wait = 0.0 if "device" in phases else float(phases.get("sync", 0.0))
                own[int(event["step"])] = max(float(event["seconds"]) - wait, 0.0)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
    return own


def _most_different(values: Mapping[str, float]) -> list[str]:
    """The names to draw, in their order: of many, those furthest from the median."""
    middle = stats.median(values.values())
    furthest = {*sorted(values, key=lambda name: -abs(values[name] - middle))[:_MOST_RANKS]}
    return [name for name in values if name in furthest]


def check_figures(check: HealthRecord) -> Iterator[Figure]:
    """Yield the figures of a check that has something to draw."""
    evidence = check.report.evidence
    if "curve" in evidence:
        try:
            curve = Curve.model_validate(evidence["curve"])
            references = _REFERENCES.validate_python(evidence.get("references", []))
        except ValidationError:
            return  # a check of another package; the table has its readings
        if curve.points:
            by_physics = [line for line in check.report.bounds if " physics expects " in line]
            yield _collective(check.check, curve, references, by_physics)
    pairs = [reading for reading in check.report.readings if reading.unit == "GB/s" and _BETWEEN in reading.subject]
    if len(pairs) > 1:
        floor = evidence.get("floor_gb_s")
        yield _matrix(pairs, float(floor) if isinstance(floor, int | float) else None)


def _collective(name: str, curve: Curve, references: Sequence[Reference], by_physics: Sequence[str]) -> Figure:
    sizes = [point.size for point in curve.points if point.timing is not None and point.size > 0]
    caption = [f"bus bandwidth at {counted(len(sizes), 'size')}"]
    if (peak := curve.peak) is not None and peak.timing is not None:
        caption[0] += f", highest {for_people(peak.timing.busbw)} GB/s at {size_name(peak.size)}"
    bounds = [*_bandwidth_bounds(references)]
    caption += [*(words for words, _, _ in bounds), *by_physics] or ["no reference is for this machine"]
    if curve.wrong:
        caption.append(f"wrong values at {', '.join(size_name(point.size) for point in curve.wrong)}")
    data = []
    for words, timings in (
        ("out of place", {point.size: point.out_of_place for point in curve.points}),
        ("in place", {point.size: point.in_place for point in curve.points}),
    ):
        if known := {size: timing.busbw for size, timing in timings.items() if timing is not None and size > 0}:
            names, over = [size_name(size) for size in known], "%{text}: %{y} GB/s"
            data.append(line(known, known.values(), mode="lines+markers", name=words, text=names, hovertemplate=over))
    if at := {size: value for _, size, value in bounds if size is not None}:
        marker = {"color": BAD, "symbol": "line-ew-open", "size": 18, "line": {"width": 3}}
        data.append(line(at, at.values(), mode="markers", name="reference", marker=marker))
    ticks = sizes[:: max(1, len(sizes) // 8)]
    layout = {
        "shapes": [level(value, "reference of the peak", below=True) for _, size, value in bounds if size is None],
        "showlegend": len(data) > 1,
        "xaxis": {
            "type": "log",
            "title": {"text": "message size"},
            "tickvals": ticks,
            "ticktext": [size_name(size) for size in ticks],
        },
        "yaxis": {"title": {"text": "GB/s"}, "rangemode": "tozero"},
    }
    return Figure(title=f"{name} by size", caption=sentence(caption), data=data, layout=layout, height=300)


def _bandwidth_bounds(references: Sequence[Reference]) -> Iterator[tuple[str, int | None, float]]:
    """Yield each bound on a bandwidth in words, with its size, None for the peak, and its value in GB/s."""
    sizes = {size_name(1 << power): 1 << power for power in range(64)}
    for reference in references:
        size = sizes.get(reference.statistic.removeprefix(_BUSBW))
        for operator, bound in reference.bounds:
            if bound.dimension == "bandwidth" and (size is not None or reference.statistic == _PEAK):
                words = f"reference {reference.name}: {reference.statistic} {_SIGNS[operator]} {bound}"
                yield words, size, bound.to("GB/s").value


def _matrix(pairs: Sequence[Reading], floor: float | None) -> Figure:
    own: dict[str, dict[str, float]] = defaultdict(dict)
    for reading in pairs:
        one, _, two = reading.subject.partition(_BETWEEN)
        own[one][two] = own[two][one] = reading.value
    nodes, partners = sorted(own), sorted(own)
    if len(own) > _MOST_COLUMNS:
        nodes = sorted(sorted(own, key=lambda node: stats.median(own[node].values()))[:_MOST_RANKS])
        partners = sorted({other for node in nodes for other in own[node]})
    values = sorted(reading.value for reading in pairs)
    slowest = sorted(pairs, key=lambda reading: reading.value)[:5]
    caption = (
        f"{counted(len(pairs), 'pair')} of {counted(len(own), 'node')}, median {for_people(stats.median(values))} "
        f"GB/s; slowest: {', '.join(f'{pair.subject} {for_people(pair.value)} GB/s' for pair in slowest)}"
    )
    if floor is not None:
        caption += f"; {counted(sum(value < floor for value in values), 'pair')} below {for_people(floor)} GB/s"
    caption += f"; the {len(nodes)} nodes with the slowest medians are drawn" if len(nodes) < len(own) else ""
    axis = {"type": "category", "automargin": True, "showgrid": False}
    z = [[own[row].get(column) for column in partners] for row in nodes]
    return Figure(
        title="Pairs of nodes",
        caption=f"{caption}.",
        data=[heat_map([label(node) for node in partners], nodes, z, "GB/s", reverse=True)],
        layout={"xaxis": {**axis, "tickangle": -60}, "yaxis": {**axis, "autorange": "reversed"}},
        height=min(max(220, 130 + _PIXELS * len(nodes)), 900),
        wide=True,
    )
