"""Figures of runs and checks, each with its numbers in a sentence; the template `figures.html.j2` draws them."""

import math
import statistics as stats
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from pytest_llmbench.core.quantity import Quantity, counted, for_people, listed
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.curves import Curve, size_name
from pytest_llmbench.core.record.health import HealthRecord, Reading
from pytest_llmbench.core.record.records import Metric, RunRecord, Verdict
from pytest_llmbench.core.record.series import RunTimes, Step
from pytest_llmbench.core.record.telemetry import GpuTelemetry
from pytest_llmbench.core.wire.step_events import PHASES
from pytest_llmbench.judging.contradictions import bounds_of
from pytest_llmbench.judging.statistics import judged_steps

# A threshold further away than this many times the measured ones is only in the caption.
_FAR = 3.0
_UNKNOWN = (math.nan, math.nan, math.nan)  # an interval
_RATE_UNITS = {"words/s", "tokens/s"}
# Of more ranks, and of more nodes than columns, those that stand out most are drawn.
_MOST_RANKS = 64
_MOST_COLUMNS = 120
_BUSBW, _PEAK = "busbw_", "busbw_peak"
_BETWEEN = " - "
_REFERENCES: TypeAdapter[list[Reference]] = TypeAdapter(list[Reference])
_PIXELS = 16  # height of a row with a name


@dataclass(frozen=True, kw_only=True, slots=True)
class CurveLine:
    """Values over x, as a line or as dots; a gap where a value is missing or not finite."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    style: str = "line"  # a class of the page's style: `line`, `second` or `bad`
    dots: bool = False
    texts: Sequence[str] = ()  # names of x; empty for the numbers themselves


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelLine:
    """A value across the figure, with its words: a bound, or a mean."""

    value: float
    words: str = ""
    style: str = "bad"


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatMap:
    """Values by two names; None is a gap. `low_is_bad` gives low values the colour of high ones."""

    x: Sequence[str]
    y: Sequence[str]
    z: Sequence[Sequence[float | None]]
    unit: str
    low_is_bad: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One figure, of curves or a heat map, and a caption that has its numbers in words."""

    title: str
    caption: str
    curves: Sequence[CurveLine] = ()
    heat: HeatMap | None = None
    levels: Sequence[LevelLine] = ()
    bands: Sequence[tuple[float, float]] = ()  # ranges of values
    stretches: Sequence[tuple[float, float, str]] = ()  # ranges of x, with words
    x_title: str = ""
    y_title: str = ""
    bottom: float | None = 0.0  # of the vertical axis; None for that of the values
    top: float | None = None
    ticks: Mapping[float, str] | None = None  # names of places on the horizontal axis; None for numbers
    ends: tuple[float, float] | None = None  # of the horizontal axis; None for those of the curves
    height: int = 200  # pixels
    wide: bool = False


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
    """Yield statistic, sign, bound and metric of each threshold that a test compared with this run's speed."""
    for judged in run.judgements:
        metric = run.metrics.get(judged.statistic or "")
        if judged.verdict is Verdict.SKIP or metric is None:
            continue
        # A threshold of a test of the user's own may be any text.
        for name, bound in bounds_of(judged.threshold, metric.unit).items():
            yield judged.statistic or "", "≥" if name == "at_least" else "≤", Quantity(bound, metric.unit), metric


def _step_time(run: RunRecord, steps: Sequence[Step], points: int) -> Figure:
    caption, interval, limits = [""][:0], _UNKNOWN, {}
    seconds = [float(step.seconds or 0.0) for step in steps]
    curves = [_curve(steps, seconds, points, "step time")]
    judged, steady = judged_steps(run.recipe, run.steps), run.steady
    if paused := [judged[at] for at in (steady.pauses.at if steady else ()) if at < len(judged)]:
        x, y = [step.step for step in paused], [step.seconds for step in paused]
        curves.append(CurveLine(name="pause", x=x, y=y, style="second", dots=True))
        caption.append(f"{counted(len(paused), 'step')} stand out as pauses: {listed(x)}")
    if steady is not None and math.isfinite(steady.low) and math.isfinite(steady.high):
        interval = (steady.low, steady.mean, steady.high)
        low, mean, high = map(for_people, interval)
        caption.append(f"steady part: mean {mean} s, between {low} s and {high} s in further steps")
    for statistic, sign, bound, metric in _bounds_of(run):
        if metric.sense is None or not metric.amount or metric.amount < 0.0 or bound.value <= 0.0:
            continue
        is_rate = metric.sense == "rate"
        limit = metric.amount / bound.value if is_rate else bound.value / metric.amount
        # A bound on a rate is a bound of the other kind on the seconds of a step.
        limits[limit] = f"{'at least' if is_rate == (sign == '≤') else 'at most'} {for_people(limit)} s"
        caption.append(f"threshold: {limits[limit]}, from {statistic} {sign} {bound}")
    return _over_steps(run, steps, seconds, "s", curves, caption, interval, limits)


def _throughput(run: RunRecord, steps: Sequence[Step], points: int) -> Figure:
    caption, interval, limits = [""][:0], _UNKNOWN, {}
    metric = run.metrics.get("throughput")
    if metric is not None and metric.unit in _RATE_UNITS:
        caption.append(f"judged throughput {metric.quantity}")
        # The interval of the verdict contains the difference between runs, that of the run alone its further steps.
        own = (each for each in run.judgements if each.statistic == "throughput" and None not in {each.low, each.high})
        judgement = next((each for each in own if each.unit == metric.unit), None)
        source, words = (metric, "in further steps") if judgement is None else (judgement, "by the verdict")
        low, high = (math.nan if end is None else end for end in (source.low, source.high))
        interval = (low, metric.value, high)
        if math.isfinite(high - low):
            caption.append(f"between {for_people(low)} and {for_people(high)} {metric.unit} {words}")
        bounds = (each for each in _bounds_of(run) if each[0] == "throughput")
        limits = {bound.value: f"{sign} {bound}" for _, sign, bound, _ in bounds}
        caption += [f"threshold {limit}" for limit in limits.values()]
    rates = [(step.tokens or 0) / (step.seconds or math.inf) for step in steps]
    curves = [_curve(steps, rates, points, "throughput")]
    return _over_steps(run, steps, rates, "words/s", curves, caption, interval, limits)


def _over_steps(
    run: RunRecord,
    steps: Sequence[Step],
    values: Sequence[float],
    unit: str,
    curves: Sequence[CurveLine],
    caption: Iterable[str],
    interval: tuple[float, float, float],
    limits: Mapping[float, str],
) -> Figure:
    """Values by step, with the warm-up, an interval as low end, mean and high end, and limits in words, by limit.

    An interval or a limit that is unknown or far from the values would squeeze the curve, and is only in the caption.
    """
    judged, (low, mean, high) = judged_steps(run.recipe, steps), interval
    first, left = judged[0].step if judged else None, run.steady.left_out if run.steady is not None else 0
    lowest, highest = min(values), max(values)
    where = [f"{for_people(value)} (step {steps[values.index(value)].step})" for value in (lowest, highest)]
    parts = [
        f"{counted(len(steps), 'step')}, median {for_people(stats.median(values))} {unit}",
        f"lowest {where[0]}, highest {where[1]}",
        f"judged from step {first} on" if first is not None else "no step is judged: all are warm-up",
    ]
    stretches = []
    if first != steps[0].step:
        stretches.append((steps[0].step - 0.5, (first or steps[-1].step + 1) - 0.5, "warm-up"))
    if left and len(judged) > left:
        parts.append(f"the first {counted(left, 'judged step')} were slower, and are left out of the steady part")
        stretches.append((judged[0].step - 0.5, judged[left].step - 0.5, "slow start"))
    if (drawn := len(curves[0].x)) < len(steps):
        parts.append(f"drawn are {drawn} of {len(steps)}: the extremes of each part")
    near = [limit for limit in limits if lowest / _FAR <= limit <= _FAR * highest]
    # A slow step of the warm-up, such as one that compiles, would squeeze all others.
    kept = [value for value, step in zip(values, steps, strict=True) if first is None or step.step >= first]
    whole, lower = 1.15 * max(highest, *near, 0.0), 1.25 * max(*kept, *near, 0.0)
    top = lower if 1.6 * lower < whole else whole
    last = [f"steps of the warm-up above {for_people(top)} {unit} are cut off at the top"] if top < highest else []
    return Figure(
        title=curves[0].name.capitalize(), caption=sentence(dict.fromkeys([*parts, *caption, *last])), curves=curves,
        bands=[(low, high)] if high - low < _FAR * (highest - lowest + 1e-12) else [],
        levels=[
            *([LevelLine(value=mean, style="mean")] if math.isfinite(mean) else []),
            *(LevelLine(value=limit, words=limits[limit]) for limit in near),
        ],
        stretches=stretches, x_title="step", y_title=unit, top=top,
    )  # fmt: skip


def _loss(steps: Sequence[Step], points: int) -> Figure:
    losses = [math.nan if step.loss is None else step.loss for step in steps]
    finite = [loss for loss in losses if math.isfinite(loss)]
    caption = [f"loss over {counted(len(steps), 'logged step')}"]
    if finite:
        first, last, lowest = map(for_people, (finite[0], finite[-1], min(finite)))
        caption.append(f"first {first}, last {last}, lowest {lowest} nat")
    if ill := [step.step for step, loss in zip(steps, losses, strict=True) if not math.isfinite(loss)]:
        caption.append(f"not a finite number in {counted(len(ill), 'step')}: {listed(ill)}")
    return Figure(
        title="Loss", caption=sentence(caption), curves=[_curve(steps, losses, points, "loss")], bottom=None,
        x_title="step", y_title="nat per token",
    )  # fmt: skip


def _curve(steps: Sequence[Step], values: Sequence[float], most: int, name: str) -> CurveLine:
    """Values of steps; of more than `most`, the lowest and the highest of each stretch, and both ends."""
    count, places = len(values), range(len(values))
    kept = set(places)
    if count > most:
        stretches, kept = max(1, (most - 2) // 2), {0, count - 1}
        for number in range(stretches):
            part = places[count * number // stretches : count * (number + 1) // stretches]
            if finite := [(values[at], at) for at in part if math.isfinite(values[at])]:
                kept |= {min(finite)[1], max(finite)[1]}
    return CurveLine(name=name, x=[steps[at].step for at in sorted(kept)], y=[values[at] for at in sorted(kept)])


def rank_figures(run: RunRecord) -> Iterator[Figure]:
    """Yield the figures by rank for which the run's record has data."""
    if run.times is not None and any(rank.phases for rank in run.times.ranks):
        yield _phases(run.times)
    if watched := [gpu for gpu in run.telemetry if gpu.samples]:
        yield from _telemetry(watched)


def _phases(times: RunTimes) -> Figure:
    """Ranks by phases, in seconds of a typical step; of many ranks, those whose wait for the others differs most."""
    ranks = {f"rank {rank.rank}": rank.phases for rank in times.ranks if rank.phases}
    phases = [phase for phase in PHASES if any(phase in rank for rank in ranks.values())]
    middle = stats.median(rank.get("sync", 0.0) for rank in ranks.values())
    furthest = {*sorted(ranks, key=lambda name: -abs(ranks[name].get("sync", 0.0) - middle))[:_MOST_RANKS]}
    shown = [name for name in ranks if name in furthest]
    means = {phase: stats.fmean(rank.get(phase, 0.0) for rank in ranks.values()) for phase in phases}
    caption = [
        f"{counted(len(ranks), 'rank')} over {counted(times.steps, 'typical step')}",
        f"means: {', '.join(f'{phase} {for_people(mean, 3)} s' for phase, mean in means.items())}",
        f"drawn are the {len(shown)} that differ most of {len(ranks)}" if len(shown) < len(ranks) else "",
    ]
    heat = HeatMap(x=phases, y=shown, z=[[ranks[name].get(phase) for phase in phases] for name in shown], unit="s")
    return Figure(
        title="Time of a step by rank and phase", caption=sentence(caption), heat=heat, height=max(64, 14 * len(shown))
    )


def _telemetry(gpus: Sequence[GpuTelemetry]) -> Iterator[Figure]:
    """Yield a figure of power, of SM clock, and of temperature of the GPUs in the judged steps."""
    series: dict[tuple[str, str], list[float | None]] = {
        ("power", "W"): [gpu.power_w for gpu in gpus],
        ("SM clock", "MHz"): [gpu.sm_clock_mhz for gpu in gpus],
        ("highest temperature", "°C"): [gpu.temperature_max_degc for gpu in gpus],
    }
    slowed = [gpu.rank for gpu in gpus if gpu.throttled]
    words = f"slowed down by heat or power brake: rank {listed(slowed)}" if slowed else "none was slowed down"
    ranks = [gpu.rank for gpu in gpus]
    for (name, unit), values in series.items():
        known = [value for value in values if value is not None]
        caption = f"{for_people(min(known))} to {for_people(max(known))} {unit}" if known else f"{name} unknown"
        yield Figure(
            title=f"GPUs in the judged steps: {name}",
            caption=f"{counted(len(gpus), 'GPU')}: {caption}; {words}.",
            curves=[CurveLine(name=name, x=ranks, y=values, dots=True)] if known else [],
            x_title="rank", y_title=unit, top=1.15 * max(known, default=1.0), height=150,
        )  # fmt: skip


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
    points = [point for point in curve.points if point.size > 0]
    lines = (
        ("out of place", "line", {each.size: timing.busbw for each in points if (timing := each.out_of_place)}),
        ("in place", "second", {each.size: timing.busbw for each in points if (timing := each.in_place)}),
        ("reference", "bad", {size: value for _, size, value in bounds if size is not None}),
    )
    ticks = sizes[:: max(1, len(sizes) // 6)]
    return Figure(
        title=f"{name} by size", caption=sentence(caption), x_title="message size", y_title="GB/s", height=260,
        curves=[
            CurveLine(
                name=words, x=[math.log2(size) for size in values], y=[*values.values()], style=style,
                dots=style == "bad", texts=[size_name(size) for size in values],
            ) for words, style, values in lines if values
        ],
        levels=[LevelLine(value=value, words="reference of the peak") for _, size, value in bounds if size is None],
        ticks={math.log2(size): size_name(size) for size in ticks},
    )  # fmt: skip


def _bandwidth_bounds(references: Sequence[Reference]) -> Iterator[tuple[str, int | None, float]]:
    """Yield each bound on a bandwidth in words, with its size, None for the peak, and its value in GB/s."""
    sizes = {size_name(1 << power): 1 << power for power in range(64)}
    for reference in references:
        size = sizes.get(reference.statistic.removeprefix(_BUSBW))
        for operator, bound in reference.bounds:
            if bound.dimension == "bandwidth" and (size is not None or reference.statistic == _PEAK):
                words = f"reference {reference.name}: {reference.statistic} {'≥' if operator == '>=' else '≤'} {bound}"
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
    slowest = sorted(pairs, key=lambda reading: reading.value)
    middle = for_people(stats.median(pair.value for pair in pairs))
    slow = [f"{pair.subject} {for_people(pair.value)} GB/s" for pair in slowest[:5]]
    caption = [
        f"{counted(len(pairs), 'pair')} of {counted(len(own), 'node')}, median {middle} GB/s",
        f"slowest: {', '.join(slow)}",
        f"the {len(nodes)} nodes with the slowest medians are drawn" if len(nodes) < len(own) else "",
    ]
    if floor is not None:
        caption.append(f"{counted(sum(pair.value < floor for pair in pairs), 'pair')} below {for_people(floor)} GB/s")
    z = [[own[row].get(column) for column in partners] for row in nodes]
    return Figure(
        title="Pairs of nodes", caption=sentence(caption), wide=True, height=min(max(160, _PIXELS * len(nodes)), 900),
        heat=HeatMap(x=partners, y=nodes, z=z, unit="GB/s", low_is_bad=True),
    )  # fmt: skip
