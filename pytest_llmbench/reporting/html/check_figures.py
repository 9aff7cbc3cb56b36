"""Figures of a check: a collective by message size with its references, and a matrix of pairs of nodes."""

import statistics as stats
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pytest_llmbench.core.quantity import counted, for_people
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.curves import Curve, Point, size_name
from pytest_llmbench.core.record.health import HealthRecord, Reading
from pytest_llmbench.reporting.html import figures
from pytest_llmbench.reporting.html.figures import Figure
from pytest_llmbench.reporting.html.thinning import rounded

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
            return  # the evidence of another version, or of a check of somebody else: its readings are in the table
        if curve.points:
            yield _curve(check.check, curve, references)
    pairs = [reading for reading in check.report.readings if reading.unit == "GB/s" and _BETWEEN in reading.subject]
    if len(pairs) > 1:
        floor = evidence.get("floor_gb_s")
        yield _matrix(pairs, float(floor) if isinstance(floor, int | float) else None)


def _curve(name: str, curve: Curve, references: Sequence[Reference]) -> Figure:
    points = [point for point in curve.points if point.timing is not None and point.size > 0]
    told = [f"bus bandwidth at {counted(len(points), 'size')}"]
    if (peak := curve.peak) is not None and peak.timing is not None:
        told[0] += f", highest {for_people(peak.timing.busbw)} GB/s at {size_name(peak.size)}"
    bounds = list(_bounds(references))
    told += [words for words, _, _ in bounds] or ["no reference is for this machine"]
    if curve.wrong:
        told.append(f"wrong values at {', '.join(size_name(point.size) for point in curve.wrong)}")
    data = list(_measured(curve.points))
    if at := [(size, rounded(value)) for _, size, value in bounds if size is not None]:
        mark = {"color": figures.BAD, "symbol": "line-ew-open", "size": 18, "line": {"width": 3}}
        data.append(figures.line([x for x, _ in at], [y for _, y in at], mode="markers", name="reference", marker=mark))
    kept = [point.size for point in points][:: max(1, len(points) // 8)]
    names = [size_name(size) for size in kept]
    layout = {
        "shapes": [
            figures.level(value, "reference of the peak", below=True) for _, size, value in bounds if size is None
        ],
        "showlegend": len(data) > 1,
        "xaxis": {"type": "log", "title": {"text": "message size"}, "tickvals": kept, "ticktext": names},
        "yaxis": {"title": {"text": "GB/s"}, "rangemode": "tozero"},
    }
    return Figure(title=f"{name} by size", told=figures.sentence(told), data=data, layout=layout, height=300)


def _measured(points: Sequence[Point]) -> Iterator[dict[str, Any]]:
    """Yield the curve out of place and the one in place, as far as they were measured."""
    ways = (
        ("out of place", figures.LINE, [(point.size, point.out_of_place) for point in points]),
        ("in place", figures.SECOND, [(point.size, point.in_place) for point in points]),
    )
    for words, colour, found in ways:
        of = [(size, timing.busbw) for size, timing in found if timing is not None and size > 0]
        if of:
            yield figures.line(
                [size for size, _ in of],
                [rounded(busbw) for _, busbw in of],
                name=words,
                mode="lines+markers",
                line={"color": colour},
                text=[size_name(size) for size, _ in of],
                hovertemplate="%{text}: %{y} GB/s",
            )


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
    z = [[rounded(rates.get((row, column)), 4) for column in nodes] for row in nodes]
    values = [reading.value for reading in pairs]
    slowest = sorted(pairs, key=lambda reading: reading.value)[:5]
    told = (
        f"{counted(len(pairs), 'pair')} of {counted(len(nodes), 'node')}, median {for_people(stats.median(values))} "
        f"GB/s; slowest: {', '.join(f'{each.subject} {for_people(each.value)} GB/s' for each in slowest)}"
    )
    if floor is not None:
        below = sum(value < floor for value in values)
        told += f"; {counted(below, 'pair')} below {for_people(floor)} GB/s"
    side = max(220, 130 + _PIXELS * len(nodes))
    layout = {
        "xaxis": {"type": "category", "automargin": True, "tickangle": -60, "showgrid": False},
        "yaxis": {"type": "category", "automargin": True, "autorange": "reversed", "showgrid": False},
    }
    data = [figures.heat_map([figures.label(node) for node in nodes], nodes, z, "GB/s", reverse=True)]
    return Figure(title="Pairs of nodes", told=f"{told}.", data=data, layout=layout, height=min(side, 900), wide=True)
