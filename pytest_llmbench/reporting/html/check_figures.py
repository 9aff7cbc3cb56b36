"""Figures of a check: a collective by message size with its references, and a matrix of pairs of nodes."""

import statistics as stats
from collections.abc import Iterator, Sequence

from pydantic import TypeAdapter, ValidationError

from pytest_llmbench.core.quantity import counted, for_people
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.curves import Curve, size_name
from pytest_llmbench.core.record.health import HealthRecord, Reading
from pytest_llmbench.reporting.html.figures import BAD, LINE, SECOND, Figure, heat_map, label, level, line, sentence

_BUSBW, _PEAK = "busbw_", "busbw_peak"
_BETWEEN = " - "
_REFERENCES: TypeAdapter[list[Reference]] = TypeAdapter(list[Reference])
# A name is a few pixels high: of more nodes than these, every other name is left out by plotly.js.
_PIXELS = 16


def check_figures(check: HealthRecord) -> Iterator[Figure]:
    """Yield the figures of a check that has something to draw."""
    evidence = check.report.evidence
    if "curve" in evidence:
        try:
            curve = Curve.model_validate(evidence["curve"])
            references = _REFERENCES.validate_python(evidence.get("references", []))
        except ValidationError:
            return  # the evidence of a check of another package: its readings are in the table
        if curve.points:
            yield _curve(check.check, curve, references)
    pairs = [reading for reading in check.report.readings if reading.unit == "GB/s" and _BETWEEN in reading.subject]
    if len(pairs) > 1:
        floor = evidence.get("floor_gb_s")
        yield _matrix(pairs, float(floor) if isinstance(floor, int | float) else None)


def _curve(name: str, curve: Curve, references: Sequence[Reference]) -> Figure:
    sizes = [point.size for point in curve.points if point.timing is not None and point.size > 0]
    caption = [f"bus bandwidth at {counted(len(sizes), 'size')}"]
    if (peak := curve.peak) is not None and peak.timing is not None:
        caption[0] += f", highest {for_people(peak.timing.busbw)} GB/s at {size_name(peak.size)}"
    bounds = [*_bounds(references)]
    caption += [words for words, _, _ in bounds] or ["no reference is for this machine"]
    if curve.wrong:
        caption.append(f"wrong values at {', '.join(size_name(point.size) for point in curve.wrong)}")
    data = []
    for words, colour, timings in (
        ("out of place", LINE, {point.size: point.out_of_place for point in curve.points}),
        ("in place", SECOND, {point.size: point.in_place for point in curve.points}),
    ):
        known = {size: timing.busbw for size, timing in timings.items() if timing is not None and size > 0}
        if known:
            data.append(
                line(
                    known, known.values(), name=words, mode="lines+markers", line={"color": colour},
                    text=[size_name(size) for size in known], hovertemplate="%{text}: %{y} GB/s",
                )
            )  # fmt: skip
    if at := {size: value for _, size, value in bounds if size is not None}:
        marker = {"color": BAD, "symbol": "line-ew-open", "size": 18, "line": {"width": 3}}
        data.append(line(at, at.values(), mode="markers", name="reference", marker=marker))
    ticks = sizes[:: max(1, len(sizes) // 8)]
    names = [size_name(size) for size in ticks]
    layout = {
        "shapes": [level(value, "reference of the peak", below=True) for _, size, value in bounds if size is None],
        "showlegend": len(data) > 1,
        "xaxis": {"type": "log", "title": {"text": "message size"}, "tickvals": ticks, "ticktext": names},
        "yaxis": {"title": {"text": "GB/s"}, "rangemode": "tozero"},
    }
    return Figure(title=f"{name} by size", caption=sentence(caption), data=data, layout=layout, height=300)


def _bounds(references: Sequence[Reference]) -> Iterator[tuple[str, int | None, float]]:
    """Yield each bound on a bandwidth in words, with its size, None for the peak, and its value in GB/s."""
    sizes = {size_name(1 << power): 1 << power for power in range(64)}
    for reference in references:
        size = sizes.get(reference.statistic.removeprefix(_BUSBW))
        for operator, bound in reference.bounds:
            if bound.dimension == "bandwidth" and (size is not None or reference.statistic == _PEAK):
                sign = {">=": "≥", "<=": "≤"}[operator]
                words = f"reference {reference.name}: {reference.statistic} {sign} {bound}"
                yield words, size, bound.to("GB/s").value


def _matrix(pairs: Sequence[Reading], floor: float | None) -> Figure:
    rates: dict[tuple[str, str], float] = {}
    for reading in pairs:
        one, _, two = reading.subject.partition(_BETWEEN)
        rates[one, two] = rates[two, one] = reading.value
    nodes = sorted({node for pair in rates for node in pair})
    values = sorted(reading.value for reading in pairs)
    slowest = sorted(pairs, key=lambda reading: reading.value)[:5]
    caption = (
        f"{counted(len(pairs), 'pair')} of {counted(len(nodes), 'node')}, median {for_people(stats.median(values))} "
        f"GB/s; slowest: {', '.join(f'{pair.subject} {for_people(pair.value)} GB/s' for pair in slowest)}"
    )
    if floor is not None:
        caption += f"; {counted(sum(value < floor for value in values), 'pair')} below {for_people(floor)} GB/s"
    axis = {"type": "category", "automargin": True, "showgrid": False}
    z = [[rates.get((row, column)) for column in nodes] for row in nodes]
    return Figure(
        title="Pairs of nodes",
        caption=f"{caption}.",
        data=[heat_map([label(node) for node in nodes], nodes, z, "GB/s", reverse=True)],
        layout={"xaxis": {**axis, "tickangle": -60}, "yaxis": {**axis, "autorange": "reversed"}},
        height=min(max(220, 130 + _PIXELS * len(nodes)), 900),
        wide=True,
    )
