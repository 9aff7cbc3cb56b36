"""Figures of a check: a collective by message size beside its references, and a matrix of pairs of nodes."""

import statistics as stats
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pytest_llmbench.core.quantity import counted, for_people
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.curves import Curve, size_name
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
    data: list[dict[str, Any]] = []
    for attribute, words, colour in (
        ("out_of_place", "out of place", figures.LINE),
        ("in_place", "in place", figures.SECOND),
    ):
        of = [(point.size, getattr(point, attribute)) for point in points if getattr(point, attribute) is not None]
        if of:
            data.append(
                figures.line(
                    [size for size, _ in of], [rounded(timing.busbw) for _, timing in of], name=words,
                    mode="lines+markers", line={"color": colour}, text=[size_name(size) for size, _ in of],
                    hovertemplate="%{text}: %{y} GB/s",
                )  # fmt: skip
            )
    told = [f"bus bandwidth at {counted(len(points), 'size')}"]
    if (peak := curve.peak) is not None and peak.timing is not None:
        told[0] += f", highest {for_people(peak.timing.busbw)} GB/s at {size_name(peak.size)}"
    shapes = []
    bounded_x, bounded_y = [], []
    sizes = {size_name(1 << power): 1 << power for power in range(64)}
    for reference in references:
        for operator, bound in reference.bounds:
            if bound.dimension != "bandwidth":
                continue
            value = bound.to("GB/s").value
            sign = {">=": "≥", "<=": "≤"}[operator]
            told.append(f"reference {reference.name}: {reference.statistic} {sign} {bound}")
            if reference.statistic == _PEAK:
                shapes.append(figures.level(value, f"peak {sign} {bound}"))
            elif (size := sizes.get(reference.statistic.removeprefix(_BUSBW))) is not None:
                bounded_x.append(size)
                bounded_y.append(rounded(value))
    if bounded_x:
        data.append(
            figures.line(
                bounded_x, bounded_y, mode="markers", name="reference",
                marker={"color": figures.BAD, "symbol": "line-ew-open", "size": 18, "line": {"width": 3}},
            )  # fmt: skip
        )
    if not references:
        told.append("no reference is for this machine")
    if curve.wrong:
        told.append(f"wrong values at {', '.join(size_name(point.size) for point in curve.wrong)}")
    ticks = [point.size for point in points]
    kept = ticks[:: max(1, len(ticks) // 8)]
    layout = {
        "shapes": shapes, "showlegend": len(data) > 1,
        "xaxis": {"type": "log", "title": {"text": "message size"}, "tickvals": kept,
                  "ticktext": [size_name(size) for size in kept]},
        "yaxis": {"title": {"text": "GB/s"}, "rangemode": "tozero"},
    }  # fmt: skip
    return Figure(title=f"{name} by size", told=figures.sentence(told), data=data, layout=layout, height=300)


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
        f"{counted(len(pairs), 'pair')} of {counted(len(nodes), 'node')}, median {for_people(stats.median(values))} GB/s; "
        f"slowest: {', '.join(f'{each.subject} {for_people(each.value)} GB/s' for each in slowest)}"
    )
    if floor is not None:
        below = sum(value < floor for value in values)
        told += f"; {counted(below, 'pair')} below {for_people(floor)} GB/s"
    side = max(220, 130 + _PIXELS * len(nodes))
    layout = {
        "xaxis": {"type": "category", "automargin": True, "tickangle": -60},
        "yaxis": {"type": "category", "automargin": True, "autorange": "reversed"},
    }
    data = [figures.heat_map([figures.label(node) for node in nodes], nodes, z, "GB/s", reverse=True)]
    return Figure(title="Pairs of nodes", told=f"{told}.", data=data, layout=layout, height=min(side, 900), wide=True)
