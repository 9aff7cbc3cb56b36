"""Checks that find the slow node, rail or link.

Pairs of nodes measure an all_gather, with NCCL between GPUs and gloo between CPUs, and with the same program
everywhere: it goes over the wire as between many nodes. An all_reduce of two nodes may go by trees, which is up to
twice as fast. See `tournament` and `group_bisection`.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Literal

from pydantic import PositiveInt

from pytest_llmbench.checks.base import CheckDefaults, CheckSettings, Fleet, options_of
from pytest_llmbench.checks.findings import Bounds
from pytest_llmbench.checks.machine import Machines, ask_machines
from pytest_llmbench.checks.network.group_bisection import measure_whole
from pytest_llmbench.checks.network.groups import (
    GroupResult,
    MeasuredGroups,
    NetworkOptions,
    RankGroup,
    TournamentOptions,
    finding,
    note_missing_reference,
)
from pytest_llmbench.checks.network.hunt import Hunt
from pytest_llmbench.checks.network.ports import add_ports
from pytest_llmbench.checks.transport import wire
from pytest_llmbench.core.record.health import Finding, Reading, Report, Severity
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.judging.outliers import outliers
from pytest_llmbench.judging.physics import PhysicsBound, PhysicsResult

_REPEATS = 3  # of the measurement inside each node


class RailOptions(TournamentOptions):
    """As `TournamentOptions`; two rounds for each rail by default."""

    rounds: PositiveInt | Literal["all"] | None = 2
    """Number of rounds for each rail; `all` is every pair."""


class PairsOptions(TournamentOptions):
    """Further options of the tournament."""

    bisect: bool = True
    """Measure all nodes together afterwards, and bisect them if that is slow."""


class Rail(CheckDefaults):
    """Pairs of nodes over one rail at a time: rank i of either node."""

    name = "rail"
    family = "network"
    summary = "pairs of nodes over one NIC rail at a time"
    options: type[Strict] = RailOptions
    #: statistic rail.rail_busbw: bus bandwidth of a pair of nodes over one rail
    #: statistic rail.rail_busbw_median: median of a node's pairs on that rail
    #: statistic rail.across_busbw: upper quartile of the pairs across a boundary between racks or switches
    statistics: Mapping[str, str] = {
        "rail_busbw": "GB/s", "rail_busbw_median": "GB/s", "across_busbw": "GB/s",
        #: statistic rail.port_write_bw: a port by perftest's `ib_write_bw`, where that is installed; best of two pairs
        "port_write_bw": "Gb/s",
    }  # fmt: skip
    deadline_s = 900.0

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        options = options_of(self, settings, RailOptions)
        if len(fleet.hosts) < 2:
            return Report(skip="one node: there is no other to measure with")
        if fleet.site.ranks_per_node < 2:
            return Report(skip="one rank per node: `pairs` measures the same")
        hunt = Hunt(self, fleet, settings, options, rails=True)
        hunt.play()
        # `pairs` looks at the same way.
        report = hunt.report() if "pairs" in fleet.site.selected else hunt.add_transport(hunt.report())
        left = [host for host in fleet.hosts if host not in hunt.silent]
        return add_ports(self, report, fleet, settings, hunt.machines, left)


class Pairs(CheckDefaults):
    """All ranks of two nodes, each node with many others; then suspects with good nodes; then all together."""

    name = "pairs"
    family = "network"
    summary = "tournament of pairs of nodes that names slow, dead and wrong nodes"
    options: type[Strict] = PairsOptions
    statistics: Mapping[str, str] = {
        "pair_busbw": "GB/s",  #: statistic pairs.pair_busbw: bus bandwidth of a pair of nodes
        #: statistic pairs.across_busbw: upper quartile of the pairs across a boundary between racks or switches
        "across_busbw": "GB/s",
        "pair_busbw_median": "GB/s",  #: statistic pairs.pair_busbw_median: median of a node's pairs
        #: statistic pairs.pair_latency_median: median time of a small all_reduce of a node's pairs
        "pair_latency_median": "us",
        "group_busbw": "GB/s",  #: statistic pairs.group_busbw: bus bandwidth of all nodes together
    }
    deadline_s = 600.0

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        options = options_of(self, settings, PairsOptions)
        if len(fleet.hosts) < 2:
            return Report(skip="one node: there is no other to measure with")
        gpus = fleet.site.gpus_per_node
        hunt = Hunt(self, fleet, settings, options)
        hunt.play()
        named = {*hunt.verdict.culprits, *hunt.unjudged, *hunt.silent}
        fit = [host for host in fleet.hosts if host not in named]
        asked = hunt.bounds.floor("group_busbw", hunt.device, len(fit), gpus * len(fit))
        expected = hunt.expect_group(fit) if len(fit) > 1 else []
        floor = max((rate for rate in (asked, *(law.fail for law in expected)) if rate is not None), default=None)
        whole = measure_whole(hunt.field, fit, floor, gpus, hunt.places) if options.bisect else Report()
        unmeasured = asked is not None and not whole.readings and not whole.findings
        lacking = dict.fromkeys(fit if unmeasured else (), "a reference asks for group_busbw, which was not measured")
        lines = [f"group_busbw: physics expects {law}" for law in expected] if whole.readings else []
        latencies = []
        for player, (host, _) in hunt.players.items():
            times = [match.result.latency_us for match in hunt.matches[player]]
            if known := [time for time in times if time is not None]:
                name, value = "pair_latency_median", median(known)
                latencies.append(Reading(host=host, statistic=name, value=value, unit="us", nodes=2, gpus=2 * gpus))
        report = hunt.report(further=latencies)
        note = f"no reference for group_busbw of {len(fit)} nodes: all of them together only have to work"
        report = report.model_copy(
            update={
                "findings": (*report.findings, *whole.findings),
                "readings": (*report.readings, *whole.readings),
                "unbounded": report.unbounded and (floor is None or not whole.readings),
                "notes": (*report.notes, note) if whole.readings and floor is None else report.notes,
                "bounds": (*report.bounds, *lines),
                "unjudged": {**lacking, **whole.unjudged, **report.unjudged},
                "evidence": {**report.evidence, **whole.evidence},
            }
        )
        return hunt.add_transport(report)


class IntraNode(CheckDefaults):
    """All ranks of each node among themselves, over the links inside it."""

    name = "nvlink"
    family = "network"
    summary = "all_reduce inside each node: NVLink or NVSwitch"
    options: type[Strict] = NetworkOptions
    #: statistic nvlink.nvlink_busbw: bus bandwidth of all_reduce inside a node, median of three
    #: statistic nvlink.nvlink_latency: time of a small all_reduce inside a node
    statistics: Mapping[str, str] = {"nvlink_busbw": "GB/s", "nvlink_latency": "us"}

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        options = options_of(self, settings, NetworkOptions)
        if fleet.site.ranks_per_node < 2:
            return Report(skip="one rank per node: nothing inside a node to measure")
        if fleet.site.device == "cpu":
            return Report(skip="the nodes of this system have no GPUs: there is no NVLink between them")
        gpus = [gpu for node in ask_machines(fleet)[0].values() for gpu in node.gpus]
        if gpus and not any(gpu.nvlinks for gpu in gpus):
            return Report(skip="these GPUs have no NVLink: host_device_bandwidth and all_reduce measure their links")
        field = MeasuredGroups(fleet, self, settings, options)
        alone = [RankGroup(hosts=(host,), local_ranks=field.local_ranks) for host in fleet.hosts]
        played = field.play([alone] * _REPEATS, "all_reduce")
        results: dict[str, list[GroupResult]] = {host: [] for host in fleet.hosts if host not in played.silent}
        absent = {}
        for result in played.results:
            (host,) = result.group.hosts
            results.get(host, []).append(result)
            if result.fault == "no_answer":
                absent[host] = result.reason
        per_node = fleet.site.gpus_per_node
        readings = [reading for host, own in results.items() for reading in _make_inner_readings(host, own, per_node)]
        findings = list(_find_inner_faults(results, readings, options.allowed(fleet.site)))
        machines = Machines.ask(fleet)
        size = min((result.bytes for result in played.results if result.bytes is not None), default=0)

        def expect(reading: Reading) -> PhysicsResult | None:
            if machines is None or reading.host is None or reading.statistic != "nvlink_busbw":
                return None
            return machines.collective("all_reduce", [reading.host], size)

        bounds = Bounds(fleet.site, settings, law=expect)
        report = Report(
            findings=(*findings, *bounds.judge(readings, device=played.device)),
            readings=tuple(readings),
            unjudged={**absent, **played.silent},
            unbounded=not bounds.covers(readings, played.device),
            bounds=tuple(bounds.lines(readings, played.device)),
            notes=() if bounds.covers(readings, played.device) else note_missing_reference(bounds, "nvlink_busbw"),
            evidence=machines.evidence if machines else {},
        )
        left = [group for group in alone if not {*played.silent, *absent} & set(group.hosts)]
        if not readings or not left:
            return report
        hosts = [host for group in left for host in group.hosts]
        look = field.look([left], "all_reduce")
        shares = [
            reading.value / law.expected for reading in readings if isinstance(law := expect(reading), PhysicsBound)
        ]
        share = min(shares, default=None)
        return look.add_to(report, wire(machines, look, hosts), hosts, shares={"all_reduce": share})


def _find_inner_faults(
    results: Mapping[str, Sequence[GroupResult]], readings: Sequence[Reading], tolerance: float
) -> Iterator[Finding]:
    """Yield nodes whose measurements fail, and those that are slower than the others."""
    for host, own in results.items():
        if bad := [result for result in own if result.fault in {"error", "wrong_values"}]:
            message = f"its ranks among themselves: {bad[0].reason}"
            action = "run dcgmi diag on it, and take it out if the fault stays"
            wrong = any(result.fault == "wrong_values" for result in bad)
            kind: Literal["wrong_values", "failing_node"] = "wrong_values" if wrong else "failing_node"
            #: finding failing_node: measurements with a node fail
            yield finding(host, "", kind, Severity.ISOLATE, message, action)
    busbw = (reading for reading in readings if reading.statistic == "nvlink_busbw")
    rates = {reading.host: reading.value for reading in busbw if reading.host is not None}
    action = "check its NVLinks and NVSwitches (nvidia-smi nvlink -s), and which path NCCL takes"
    for host, outlier in outliers(rates, tolerance=tolerance).items():
        message = f"{rates[host]:.4g} GB/s inside the node: {outlier.text}"
        #: finding slow_node: a node is slow with good partners, or inside itself
        yield finding(host, "", "slow_node", Severity.ISOLATE, message, action)


def _make_inner_readings(host: str, results: Sequence[GroupResult], gpus: int) -> list[Reading]:
    """Medians of a node whose measurements all succeeded."""
    rates = [result.busbw for result in results if result.busbw is not None]
    times = [result.latency_us for result in results if result.latency_us is not None]
    if len(rates) < len(results) or len(times) < len(results) or not results:
        return []
    return [
        Reading(host=host, statistic="nvlink_busbw", value=median(rates), unit="GB/s", gpus=gpus),
        Reading(host=host, statistic="nvlink_latency", value=median(times), unit="us", gpus=gpus),
    ]
