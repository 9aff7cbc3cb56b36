"""Figures of runs and checks, each with its numbers in a sentence; the template `figures.html.j2` draws them."""

import math
import statistics as stats
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from pytest_llmbench.core.errors import UnitError
from pytest_llmbench.core.quantity import Quantity, counted, for_people, listed
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.curves import Curve, size_name
from pytest_llmbench.core.record.health import HealthRecord, Reading
from pytest_llmbench.core.record.records import Metric, RunRecord, Verdict
from pytest_llmbench.core.record.series import RunTimes, Step
from pytest_llmbench.core.record.telemetry import GpuTelemetry
from pytest_llmbench.core.wire.step_events import PHASES
from pytest_llmbench.judging.statistics import judged_steps

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
    stretches, words = _warm_up(run, steps)
    curves = [_curve(steps, seconds, points, "step time")]
    bands: Sequence[tuple[float, float]] = ()
    levels: Sequence[LevelLine] = ()
    caption = [_range(steps, seconds, "s"), *words]
    if (drawn := len(curves[0].x)) < len(steps):
        caption.append(f"drawn are {drawn} of {len(steps)}: the extremes of each part")
    judged = judged_steps(run.recipe, run.steps)
    if paused := [judged[at] for at in (run.steady.pauses.at if run.steady else ()) if at < len(judged)]:
        numbers = [step.step for step in paused]
        curves.append(
            CurveLine(name="pause", x=numbers, y=[step.seconds for step in paused], style="second", dots=True)
        )
        caption.append(f"{counted(len(paused), 'step')} stand out as pauses: {listed(numbers)}")
    if run.steady is not None and math.isfinite(run.steady.low) and math.isfinite(run.steady.high):
        mean, low, high = run.steady.mean, run.steady.low, run.steady.high
        caption.append(f"steady part: mean {_s(mean)}, between {_s(low)} and {_s(high)} in further steps")
        bands, levels = _interval(low, mean, high, seconds)
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
    return Figure(
        title="Step time", caption=sentence(caption), curves=curves, bands=bands, levels=[*levels, *near.values()],
        stretches=stretches, x_title="step", y_title="s per step", top=top,
    )  # fmt: skip


def _throughput(run: RunRecord, steps: Sequence[Step], points: int) -> Figure:
    rates = [(step.tokens or 0) / (step.seconds or math.inf) for step in steps]
    stretches, _ = _warm_up(run, steps)
    caption = [_range(steps, rates, "words/s")]
    bands: Sequence[tuple[float, float]] = ()
    levels: Sequence[LevelLine] = ()
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
        bands, levels = _interval(low, metric.value, high, rates)
    limits: dict[float, str] = {}
    for statistic, operator, bound, judged in _bounds_of(run):
        if statistic == "throughput" and judged.unit in _RATE_UNITS:
            limits[bound.value] = f"{_SIGNS[operator]} {bound}"
            caption.append(f"threshold {limits[bound.value]}")
    near = _levels(limits, rates)
    return Figure(
        title="Throughput", caption=sentence(caption), curves=[_curve(steps, rates, points, "throughput")], bands=bands,
        levels=[*levels, *near.values()], stretches=stretches, x_title="step", y_title="words/s",
        top=1.15 * max(*rates, *near, 0.0),
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


def _interval(
    low: float, mean: float, high: float, values: Sequence[float]
) -> tuple[list[tuple[float, float]], list[LevelLine]]:
    """A mean and its interval; an unknown one, or one much wider than the values, is left out."""
    is_narrow = high - low < _FAR * (max(values) - min(values) + 1e-12)
    return [(low, high)] if is_narrow else [], [LevelLine(value=mean, style="mean")]


def _levels(limits: Mapping[float, str], values: Sequence[float]) -> dict[float, LevelLine]:
    """Lines at limits, by limit; one far from the values would squeeze the curve, and is left out."""
    lowest, highest = min(values) / _FAR, _FAR * max(values)
    return {limit: LevelLine(value=limit, words=limits[limit]) for limit in limits if lowest <= limit <= highest}


def _warm_up(run: RunRecord, steps: Sequence[Step]) -> tuple[list[tuple[float, float, str]], list[str]]:
    """The stretches of warm-up and slow start, and their words for the caption."""
    judged = judged_steps(run.recipe, steps)
    left = run.steady.left_out if run.steady is not None else 0
    first = judged[0].step if judged else None
    words = [f"judged from step {first} on" if first is not None else "no step is judged: all are warm-up"]
    stretches = []
    if first != steps[0].step:
        stretches.append((steps[0].step - 0.5, (first or steps[-1].step + 1) - 0.5, "warm-up"))
    if left and len(judged) > left:
        words.append(f"the first {counted(left, 'judged step')} were slower, and are left out of the steady part")
        stretches.append((judged[0].step - 0.5, judged[left].step - 0.5, "slow start"))
    return stretches, words


def _range(steps: Sequence[Step], values: Sequence[float], unit: str) -> str:
    low, high = min(values), max(values)
    return (
        f"{counted(len(steps), 'step')}, median {for_people(stats.median(values))} {unit}, lowest {for_people(low)} "
        f"(step {steps[values.index(low)].step}), highest {for_people(high)} (step {steps[values.index(high)].step})"
    )


def _s(seconds: float) -> str:
    return f"{for_people(seconds)} s"


def rank_figures(run: RunRecord) -> Iterator[Figure]:
    """Yield the figures by rank for which the run's record has data."""
    if run.times is not None and any(rank.phases for rank in run.times.ranks):
        yield _phases(run.times)
    if watched := [gpu for gpu in run.telemetry if gpu.samples]:
        yield from _telemetry(watched)


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
    if len(shown) < len(ranks):
        caption += f"; drawn are the {len(shown)} that differ most of {len(ranks)}"
    heat = HeatMap(x=phases, y=shown, z=[[ranks[name].get(phase) for phase in phases] for name in shown], unit="s")
    title = "Time of a step by rank and phase"
    return Figure(title=title, caption=f"{caption}.", heat=heat, height=max(64, 14 * len(shown)))


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
    curves = []
    for style, words, timings in (
        ("line", "out of place", {point.size: point.out_of_place for point in curve.points}),
        ("second", "in place", {point.size: point.in_place for point in curve.points}),
    ):
        if known := {size: timing.busbw for size, timing in timings.items() if timing is not None and size > 0}:
            curves.append(_by_size(words, known, style))
    if at := {size: value for _, size, value in bounds if size is not None}:
        curves.append(_by_size("reference", at, "bad", dots=True))
    ticks = sizes[:: max(1, len(sizes) // 6)]
    return Figure(
        title=f"{name} by size", caption=sentence(caption), curves=curves, x_title="message size", y_title="GB/s",
        levels=[LevelLine(value=value, words="reference of the peak") for _, size, value in bounds if size is None],
        ticks={math.log2(size): size_name(size) for size in ticks}, height=260,
    )  # fmt: skip


def _by_size(name: str, values: Mapping[int, float], style: str, *, dots: bool = False) -> CurveLine:
    return CurveLine(
        name=name, x=[math.log2(size) for size in values], y=[*values.values()], style=style, dots=dots,
        texts=[size_name(size) for size in values],
    )  # fmt: skip


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
    z = [[own[row].get(column) for column in partners] for row in nodes]
    return Figure(
        title="Pairs of nodes", caption=f"{caption}.", wide=True, height=min(max(160, _PIXELS * len(nodes)), 900),
        heat=HeatMap(x=partners, y=nodes, z=z, unit="GB/s", low_is_bad=True),
    )  # fmt: skip
