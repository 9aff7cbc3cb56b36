"""Collectives over all nodes: bus bandwidth and correctness."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from pytest_llmbench.checks.answers import describe_damage, read_answers, silent
from pytest_llmbench.checks.base import (
    Answer,
    Check,
    CheckDefaults,
    CheckSettings,
    Fleet,
    Probe,
    Site,
    deadline_of,
    options_of,
)
from pytest_llmbench.checks.collectives.nodes.answer import RankCollectives
from pytest_llmbench.checks.collectives.nodes.nccl_tests import NcclTestsOutputs
from pytest_llmbench.checks.collectives.report import read_nccl_tests, read_nccl_tests_json
from pytest_llmbench.checks.findings import Bounds, FindingMaker, ReadingLaw, SharedKind, make_finding
from pytest_llmbench.checks.machine import Machines
from pytest_llmbench.checks.transport import GLOO, merge_for_cluster, read_look, wire
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.environments import Environment
from pytest_llmbench.core.record.curves import COLLECTIVES, Curve, Point, asked_size, size_name
from pytest_llmbench.core.record.health import Finding, Reading, Report, Severity
from pytest_llmbench.core.schema import Strict, validate
from pytest_llmbench.judging.physics import (
    LEAST_SIZE,
    SMALL,
    NoLaw,
    PhysicsBound,
    PhysicsResult,
    growth_of_doubling,
)
from pytest_llmbench.readers.items import Unreadable

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

_SRUN = ("srun", "--mpi=pmix", "--nodes={nodes}", "--ntasks={ranks}", "--ntasks-per-node={gpus}", "--cpu-bind=none")
_TYPES = {"float32": "float", "bfloat16": "bfloat16"}
# By device: largest size, iterations, warm-up, checked rounds.
_USUAL = {"cuda": (8 << 30, 20, 5, 4), "cpu": (16 << 20, 5, 1, 2)}
_SMOKE_BYTES = 1 << 20
# The step in which NCCL prints its lines: all_reduce by NVLS or trees where it can, broadcast always by rings.
_LOOK = {"collectives": ("all_reduce", "broadcast"), "iterations": 1, "warm_up": 1, "checked": 1}
_LOOK_SIZES = {"full": (64 << 20, 1 << 30), "smoke": (_SMOKE_BYTES,)}


class CollectivesOptions(Strict):
    """How collectives are measured. Checks with the same options share one measurement."""

    backend: Literal["torch", "nccl_tests"] = "torch"
    """Program that measures: our own measurement by torch.distributed, or NVIDIA's nccl-tests."""
    path: str | None = None
    """Folder of NVIDIA's programs; absent, the root of the system's environment `nccl_tests`."""
    launcher: tuple[str, ...] = _SRUN
    """Command that starts NVIDIA's programs, built with MPI, on several nodes; `{nodes}`, `{ranks}`, `{gpus}` (of a
    node) and `{hosts}` are filled in.
    """
    min_bytes: Annotated[int, Field(ge=8)] = 8
    """Smallest message, in bytes."""
    max_bytes: PositiveInt | None = None
    """Largest message, in bytes; absent, 8 GiB on GPUs and 16 MiB on CPUs. At scale `smoke` it is 1 MiB at most."""
    factor: Annotated[int, Field(ge=2)] = 2
    """Factor from one message size to the next."""
    iterations: PositiveInt | None = None
    """Number of operations that are timed together; absent, 20 on GPUs and 5 on CPUs."""
    warm_up: NonNegativeInt | None = None
    """Number of operations before the timed ones; absent, 5 on GPUs and 1 on CPUs."""
    checked: PositiveInt | None = None
    """Number of further operations whose results are checked; absent, 4 on GPUs and 2 on CPUs."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the elements."""

    @model_validator(mode="after")
    def _in_order(self) -> CollectivesOptions:
        if self.max_bytes is not None and self.max_bytes < self.min_bytes:
            raise ValueError(f"max_bytes {self.max_bytes} is less than min_bytes {self.min_bytes}")
        return self

    def filled(self, site: Site) -> CollectivesOptions:
        largest, iterations, warm_up, checked = _USUAL[site.device]
        usual = {"max_bytes": largest, "iterations": iterations, "warm_up": warm_up, "checked": checked}
        own = self.model_dump(exclude_none=True)
        if site.scale == "smoke":  # a system's file is for the full size
            own["max_bytes"] = max(self.min_bytes, min(_SMOKE_BYTES, self.max_bytes or _SMOKE_BYTES))
        return validate(CollectivesOptions, {**usual, **own}, "collectives")

    @property
    def sizes(self) -> tuple[int, ...]:
        sizes = [self.min_bytes]
        while self.max_bytes is not None and sizes[-1] * self.factor <= self.max_bytes:
            sizes.append(sizes[-1] * self.factor)
        return tuple(sizes)


class Collective(CheckDefaults):
    """One collective operation over all GPUs of all nodes."""

    family = "collectives"
    scope: Literal["node", "cluster"] = "cluster"
    options: type[Strict] = CollectivesOptions
    statistics: Mapping[str, str] = STATISTICS
    deadline_s = 900.0

    def __init__(self, name: str) -> None:
        self.name = name
        self.summary = f"{name} over all nodes by message size: bus bandwidth, and whether the results are right"

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        site = fleet.site
        if site.ranks_per_node * len(fleet.hosts) < 2:
            return Report(
                skip="a collective needs two ranks, and this session has one: use more nodes, or set cpu_ranks_per_node"
            )
        options = options_of(self, settings, CollectivesOptions).filled(site)
        # Smaller messages have no law.
        machines = Machines.ask(fleet) if (options.max_bytes or 0) >= LEAST_SIZE else None
        names = [name for name in COLLECTIVES if name == self.name or not site.selected or name in site.selected]
        deadline_s = deadline_of(self, settings)
        if options.backend == "torch":
            counts = options.model_dump(include={"dtype", "iterations", "warm_up", "checked"})
            config = {"collectives": names, "sizes": options.sizes, "timeout_s": deadline_s, **counts}
            how = {"name": _name_probe(options), "together": True}
            answers = fleet.once(self.probe_devices(site, settings, "collectives:measure", config, **how))
            report = self._judge_ours(read_answers(answers, RankCollectives), fleet, settings, machines)
            look = {**config, **_LOOK, "sizes": _LOOK_SIZES[site.scale], "nccl": True}
            probe = self.probe_devices(site, settings, "collectives:measure", look, name="transport", together=True)
            return self._add_transport(report, probe, RankCollectives, fleet, machines)
        if site.device == "cpu":
            return Report(skip="nccl-tests needs GPUs, and the nodes of this system have none")
        config = _configure_nccl_tests(options, fleet, names, deadline_s / len(names))
        how = {"name": _name_probe(options), "hosts": fleet.hosts[:1], "gpus": True}
        answers = fleet.once(self.probe(settings, "nccl_tests:run", config, **how))
        outputs = read_answers(answers, NcclTestsOutputs, asked={"runs": names})
        report = self._judge_theirs(outputs, fleet, settings, machines)
        size = _LOOK_SIZES[site.scale][-1]
        once = options.model_copy(update={"min_bytes": size, "max_bytes": size, "iterations": 1, "warm_up": 1})
        look = {**_configure_nccl_tests(once, fleet, names[:1], deadline_s), "nccl": True}
        probe = self.probe(settings, "nccl_tests:run", look, **{**how, "name": "transport"})
        return self._add_transport(report, probe, NcclTestsOutputs, fleet, machines)

    def _add_transport(
        self, report: Report, probe: Probe, model: type[RankCollectives | NcclTestsOutputs], fleet: Fleet,
        machines: Machines | None,
    ) -> Report:  # fmt: skip
        """A report with findings about the transport that NCCL used."""
        if not report.readings or report.problem is not None:
            return report
        if not probe.gpus:
            return report.model_copy(update={"evidence": {**report.evidence, "transport": GLOO}})
        answers = read_answers(fleet.once(probe), model)
        of_all = len(answers) < fleet.site.ranks_per_node * len(fleet.hosts)
        lines = [(None if of_all else answer.host, answer.data.nccl) for answer in answers if answer.data is not None]
        look = read_look(lines, fleet.hosts, silent(answers))
        wirings = wire(machines, look, fleet.hosts)
        # The peak as a share of what physics expects at 8 GiB.
        peak = next((reading.value for reading in report.readings if reading.statistic == "busbw_peak"), None)
        law = machines.collective(self.name, fleet.hosts, 8 << 30) if machines else None
        shares = {self.name: peak / law.expected if peak is not None and isinstance(law, PhysicsBound) else None}
        return merge_for_cluster(look.add_to(report, wirings, fleet.hosts, shares=shares), fleet.hosts)

    def _judge_ours(
        self,
        answers: Sequence[Answer[RankCollectives]],
        fleet: Fleet,
        settings: CheckSettings,
        machines: Machines | None,
    ) -> Report:
        ranks = [(answer.host, answer.data) for answer in answers if answer.data is not None]
        if len(ranks) < len(answers):
            return Report(unjudged=silent(answers))
        first_host, first = ranks[0]
        measured = first.measured
        if measured is not None and self.name in measured.unsupported:
            return Report(skip=f"torch.distributed here cannot do it: {measured.unsupported[self.name]}")
        if measured is None or self.name not in measured.curves:
            return Report(unjudged={first_host: f"rank 0: {describe_damage(f'measured.curves.{self.name}')}"})
        unchecked = {host: describe_damage(f"wrong.{self.name}") for host, data in ranks if self.name not in data.wrong}
        if unchecked:
            return Report(unjudged=unchecked)
        wrong: Counter[str] = Counter()
        for host, data in ranks:
            wrong[host] += data.wrong[self.name]
        report = judge(measured.curves[self.name], settings, fleet, measured.device, wrong, machines=machines)
        return report.model_copy(update={"notes": (*report.notes, *measured.notes)})

    def _judge_theirs(
        self,
        answers: Sequence[Answer[NcclTestsOutputs]],
        fleet: Fleet,
        settings: CheckSettings,
        machines: Machines | None,
    ) -> Report:
        data = answers[0].data
        if data is None:
            return Report(unjudged=silent(answers))
        output, ranks = data.runs[self.name], fleet.site.ranks_per_node * len(fleet.hosts)
        try:  # the file has all digits
            curves = [read_nccl_tests_json(output.written or "", self.name, ranks)]
        except Unreadable:
            curves = read_nccl_tests(output.text, self.name, ranks)
        end = "took too long" if output.code is None else f"ended with status {output.code}"
        end = f"{end}: {' '.join(output.text.split()[-40:])}"
        if len(curves) != 1:
            fault = f"printed {len(curves)} tables: was it built without MPI?" if curves else "printed no table"
            return Report(problem=f"{output.command} {fault}; it {end}", evidence={"nccl_tests": output})
        doubt = None if output.code == 0 else f"{output.command} {end}"
        if curves[0].collective != self.name:
            doubt = doubt or f"{output.command} measured {curves[0].collective}, and not {self.name}"
        report = judge(curves[0], settings, fleet, data.device, {}, doubt, machines)
        return report.model_copy(update={"evidence": {**report.evidence, "nccl_tests": output}})


def _configure_nccl_tests(
    options: CollectivesOptions, fleet: Fleet, names: Sequence[str], timeout_s: float
) -> dict[str, Any]:
    site, hosts = fleet.site, fleet.hosts
    environment = site.environments.get("nccl_tests", Environment())
    root = options.path or environment.root
    if root is None:
        raise ConfigError(
            "backend nccl_tests: name the folder of its programs: option path, or environments.nccl_tests.root"
        )
    if environment.container is not None:
        raise ConfigError("environments.nccl_tests: container is not supported; name programs on the nodes with root")
    args = {
        "-b": options.min_bytes, "-e": options.max_bytes, "-f": options.factor, "-n": options.iterations,
        "-w": options.warm_up, "-c": options.checked, "-d": _TYPES[options.dtype],
    }  # fmt: skip
    return {
        "root": root, "collectives": names,
        "args": [text for option, value in args.items() for text in (option, str(value))], "hosts": hosts,
        "gpus": site.gpus_per_node, "launcher": options.launcher if len(hosts) > 1 else (), "setup": environment.setup,
        "env": dict(environment.env), "timeout_s": timeout_s,
    }  # fmt: skip


def _name_probe(options: CollectivesOptions) -> str:
    return f"collectives-{hashlib.sha256(options.model_dump_json().encode()).hexdigest()[:8]}"


def judge(
    curve: Curve,
    settings: CheckSettings,
    fleet: Fleet,
    device: str,
    wrong: Mapping[str, int],
    doubt: str | None = None,
    machines: Machines | None = None,
) -> Report:
    """Judge the values of a curve, and its rates if nothing casts doubt on them.

    `wrong` counts elements with a wrong value by the node that received them, where that is known. `doubt` is an
    earlier reason to distrust the curve. Physics judges by the `machines` that measured.
    """
    site, nodes = fleet.site, len(fleet.hosts)
    host, gpus, ranks = fleet.hosts[0] if nodes == 1 else None, site.gpus_per_node * nodes, site.ranks_per_node * nodes
    readings = [
        Reading(host=host, statistic=name, subject=subject, value=value, unit=unit, nodes=nodes, gpus=gpus)
        for name, subject, value, unit in _list_numbers(curve, ranks)
    ]
    bounds = Bounds(site, settings, law=_make_law(curve, fleet, machines))
    unmeasured = (f"{reason}: see max_bytes" for reason in bounds.unmeasured(readings, device, nodes, gpus))
    doubt = doubt or next(chain(_find_doubts(curve, ranks), unmeasured), None)
    findings = [*_find_wrong_values(curve, wrong, host)]
    bounded = bounds.covers(readings, device)
    notes = [] if bounded else ["no reference is for this machine: bandwidths are reported, values were checked"]
    if doubt and findings:
        notes.append(doubt)
    elif not doubt:
        findings += bounds.judge(readings, device=device, action=_SLOW)
    return Report(
        findings=tuple(findings), readings=tuple(readings), problem=None if findings else doubt,
        unbounded=not bounded, bounds=tuple(bounds.lines(readings, device)), notes=tuple(notes),
        evidence={
            "curve": curve.model_dump(mode="json"), "device": device,
            **(machines.evidence if machines else {}),
        },
    )  # fmt: skip


def _make_law(curve: Curve, fleet: Fleet, machines: Machines | None) -> ReadingLaw:
    """The expectation of physics for the largest size of a curve, if the links limit it."""
    sizes = {point.size: point.timing.busbw for point in curve.points if point.timing is not None}
    largest = max(sizes, default=0)
    smaller = max((size for size in sizes if 0 < size < largest and sizes[size] > 0), default=0)
    growth = growth_of_doubling((smaller, sizes[smaller]), (largest, sizes[largest])) if smaller else None
    ranks = fleet.site.ranks_per_node * len(fleet.hosts)
    asked = asked_size(curve.collective, largest, ranks)
    name = f"busbw_{size_name(asked)}"

    def expect(reading: Reading) -> PhysicsResult | None:
        if reading.statistic != (name if name in STATISTICS else "busbw_peak") or not fleet.site.is_full_gpu:
            return None
        size = asked if reading.statistic == name or curve.peak is None else curve.peak.size
        if machines is None:
            return NoLaw(SMALL)
        return machines.collective(str(curve.collective), fleet.hosts, size, growth=growth)

    return expect


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
    """One finding for all wrong values; it names a node if only that node received them."""
    hosts = sorted(name for name, elements in by_host.items() if elements)
    sizes = [f"{point.wrong} at {size_name(point.size)}" for point in curve.wrong]
    parts = [f"{sum(by_host.values())} wrong elements on {', '.join(hosts)}"] if hosts else []
    parts += [f"wrong elements of all ranks: {', '.join(sizes)}"] if sizes else []
    parts += [f"{curve.out_of_bounds} measurements out of bounds"] if curve.out_of_bounds else []
    if parts:  #: finding wrong_values: a collective gave wrong numbers
        message = f"{curve.collective} gives wrong results: {'; '.join(parts)}"
        yield finding(hosts[0] if len(hosts) == 1 else host, "", "wrong_values", Severity.ISOLATE, message, _WRONG)


def _find_doubts(curve: Curve, ranks: int) -> Iterator[str]:
    """Reasons to distrust a curve by itself, the most important first."""
    if not curve.points:
        yield curve.doubt or f"no size of {curve.collective} was measured"
    elif not curve.complete:
        yield curve.doubt or f"the measurement was cut off after {size_name(curve.points[-1].size)}"
    if curve.unreadable:
        yield f"{curve.unreadable} lines of the measurement cannot be read"
    if curve.ranks is not None and curve.ranks != ranks:
        yield f"{curve.ranks} ranks measured, {ranks} were asked for"
    if curve.doubt is not None:
        yield f"the measurement contradicts itself: {curve.doubt}"
    if all(point.wrong is None for point in curve.points):
        yield "no result was checked"


CHECKS: Mapping[str, Check] = {name: Collective(name) for name in COLLECTIVES}
