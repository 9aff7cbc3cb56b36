"""The verdict on a curve: bus bandwidth and latency by message size, and wrong values."""

from collections.abc import Iterator, Mapping, Sequence

from pytest_llmbench.checks.base import CheckSettings, Fleet
from pytest_llmbench.checks.bounds import Bounds
from pytest_llmbench.checks.kinds import FindingMaker, SharedKind, make_finding
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.curves import Curve, Point, asked_size, size_name
from pytest_llmbench.core.record.health import Finding, Reading, Report, Severity

finding: FindingMaker[SharedKind] = make_finding

_LEAST, _MOST = 3, 34  # powers of two: 8 B to 16 GiB
_LATENCY = 8
STATISTICS: Mapping[str, str] = {
    #: statistic collectives.busbw_<size>: bus bandwidth at a message size
    **{f"busbw_{size_name(1 << power)}": "GB/s" for power in range(_LEAST, _MOST + 1)},
    "busbw_peak": "GB/s",  #: statistic collectives.busbw_peak: highest bus bandwidth of all sizes
    f"latency_{size_name(_LATENCY)}": "us",  #: statistic collectives.latency_8B: time of a message of 8 B
}
_WRONG = "do not train here: look for link errors (NVLink, network), XIDs and ECC errors, and swap nodes to find whose"
_SLOW = "a collective does not show which node or link is slow: run the check `pairs` on the same nodes, which names it"


def judge(
    curve: Curve, settings: CheckSettings, fleet: Fleet, device: str, wrong: Mapping[str, int], doubt: str | None = None
) -> Report:
    """Judge a curve: by its values always, and by bounds if it is free of doubt.

    `wrong` counts elements with a wrong value by the node that received them, where that is known. `doubt` is an
    earlier reason to distrust the curve.
    """
    site, nodes = fleet.site, len(fleet.hosts)
    host, gpus, ranks = fleet.hosts[0] if nodes == 1 else None, site.gpus_per_node * nodes, site.ranks_per_node * nodes
    readings = [
        Reading(host=host, statistic=name, subject=subject, value=value, unit=unit, nodes=nodes, gpus=gpus)
        for name, subject, value, unit in _list_numbers(curve, ranks)
    ]
    bounds = Bounds(site, settings)
    references = bounds.applicable(device, nodes, gpus)
    doubt = doubt or next(_find_doubts(curve, ranks), None) or _find_unmeasured(readings, references)
    findings = [*_find_wrong_values(curve, wrong, host)]
    notes = [] if references else ["no reference is for this machine: bandwidths are reported, values were checked"]
    if doubt and findings:
        notes.append(doubt)
    elif not doubt:
        findings += bounds.judge(readings, device=device, action=_SLOW)
    return Report(
        findings=tuple(findings),
        readings=tuple(readings),
        problem=None if findings else doubt,
        unbounded=not bounds.covers(readings, device),
        notes=tuple(notes),
        evidence={
            "curve": curve.model_dump(mode="json"),
            "device": device,
            "references": [reference.model_dump(mode="json") for reference in references],
        },
    )


def _list_numbers(curve: Curve, ranks: int) -> Iterator[tuple[str, str, float, str]]:
    """Statistic, subject, value and unit of the measured sizes, the most important first."""
    peak, small = curve.peak, curve.at(_LATENCY)
    if peak is not None and peak.timing is not None:
        yield "busbw_peak", f"{size_name(peak.size)} {_name_place(peak)}", peak.timing.busbw, "GB/s"
    if small is not None and small.timing is not None:
        yield f"latency_{size_name(_LATENCY)}", _name_place(small), small.timing.time_us, "us"
    for size in sorted({point.size for point in curve.points}, reverse=True):
        point, name = curve.at(size), f"busbw_{size_name(asked_size(curve.collective, size, ranks))}"
        if point is not None and point.timing is not None and name in STATISTICS:
            yield name, _name_place(point), point.timing.busbw, "GB/s"


def _name_place(point: Point) -> str:
    return "out of place" if point.out_of_place is not None else "in place"


def _find_wrong_values(curve: Curve, by_host: Mapping[str, int], host: str | None) -> Iterator[Finding]:
    """One finding for all wrong values; about a node, if it alone received them."""
    hosts = sorted(name for name, elements in by_host.items() if elements)
    sizes = [f"{point.wrong} at {size_name(point.size)}" for point in curve.wrong]
    parts = [f"{sum(by_host.values())} wrong elements on {', '.join(hosts)}"] if hosts else []
    parts += [f"wrong elements of all ranks: {', '.join(sizes)}"] if sizes else []
    parts += [f"{curve.out_of_bounds} measurements out of bounds"] if curve.out_of_bounds else []
    if parts:  #: finding wrong_values: a collective or an all_reduce gave wrong numbers
        message = f"{curve.collective} gives wrong results: {'; '.join(parts)}"
        yield finding(hosts[0] if len(hosts) == 1 else host, "", "wrong_values", Severity.ISOLATE, message, _WRONG)


def _find_doubts(curve: Curve, ranks: int) -> Iterator[str]:
    """Reasons to distrust a curve by itself, the most important first."""
    if not curve.points:
        yield curve.doubt or f"no size of {curve.collective} was measured"
    elif not curve.complete:
        yield curve.doubt or f"the measurement ended before its end, after {size_name(curve.points[-1].size)}"
    if curve.unreadable:
        yield f"{curve.unreadable} lines of the measurement cannot be read"
    if curve.ranks is not None and curve.ranks != ranks:
        yield f"{curve.ranks} ranks measured, {ranks} were asked for"
    if curve.doubt is not None:
        yield f"the measurement contradicts itself: {curve.doubt}"
    if all(point.wrong is None for point in curve.points):
        yield "no result was checked"


def _find_unmeasured(readings: Sequence[Reading], references: Sequence[Reference]) -> str | None:
    measured = {reading.statistic for reading in readings}
    for reference in references:
        if reference.statistic not in measured:
            return f"reference {reference.name} asks for {reference.statistic}, which was not measured: see max_bytes"
    return None
