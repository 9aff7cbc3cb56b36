"""Network: which node, rail or link is slower than the others?

It measures an all_reduce, with NCCL between GPUs and gloo between CPUs, as in a training, with the same program
everywhere. Pairs of nodes tell which node it is; see `judging.tournament` and `judging.bisection`.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Literal

from pydantic import PositiveInt

from pytest_llmbench.checks.base import CheckSettings, Fleet, NodeCheck, deadline_of, options_of
from pytest_llmbench.checks.network.group_bisection import Whole, measure_whole
from pytest_llmbench.checks.network.groups import MeasuredGroups
from pytest_llmbench.checks.network.options import Bounds, NetworkOptions
from pytest_llmbench.checks.network.tournament_findings import evidence_of, findings_of, readings_of, unjudged_of
from pytest_llmbench.checks.network.tournament_run import Hunt, hunt
from pytest_llmbench.core.record.health import Finding, Reading, Report, Severity
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.judging.outliers import outliers


class TournamentOptions(NetworkOptions):
    """Further options of the checks with pairs of nodes."""

    rounds: PositiveInt | Literal["all"] | None = None
    """Rounds for each node; absent, `all` up to 16 nodes, and 8 beyond."""
    repeats: PositiveInt = 3
    """Re-measurements of each suspect with healthy nodes; the majority decides, and a tie clears it."""


class RailOptions(TournamentOptions):
    """As `TournamentOptions`; two rounds for each rail by default."""

    rounds: PositiveInt | Literal["all"] | None = 2
    """Rounds of each rail; `all` is every pair."""


class PairsOptions(TournamentOptions):
    """Further options of the tournament."""

    bisect: bool = True
    """Measure all nodes together afterwards, and bisect them if that is slow."""


class Rail(NodeCheck):
    """Pairs of nodes over one rail at a time: rank i of either node."""

    name = "rail"
    family = "network"
    summary = "pairs of nodes over one NIC rail at a time"
    options: type[Strict] = RailOptions
    #: statistic rail.rail_busbw: bus bandwidth of a pair of nodes over one rail
    #: statistic rail.rail_busbw_median: median of a node's pairs on that rail
    statistics: Mapping[str, str] = {"rail_busbw": "GB/s", "rail_busbw_median": "GB/s"}
    deadline_s = 900.0

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        """Play the rails one after the other."""
        options = options_of(self, settings, RailOptions)
        if len(fleet.hosts) < 2:
            return Report(skip="one node: there is no other to measure with")
        if fleet.site.ranks_per_node < 2:
            return Report(skip="one rank per node: `pairs` measures the same")
        field = MeasuredGroups(fleet, self.name, options.sizes(fleet.site), deadline_of(self, settings))
        bounds = Bounds(fleet, settings)
        found = _hunt(field, fleet, options, bounds, "rail_busbw", rails=field.local_ranks)
        gpus = min(fleet.site.gpus_per_node, 1)
        readings = readings_of(found, "rail_busbw", "rail_busbw_median", gpus)
        return _report(found, field, bounds, readings, "rail_busbw", options.allowed(fleet.site))


class Pairs(NodeCheck):
    """All ranks of two nodes, each node with many others; then suspects with good nodes; then all together."""

    name = "pairs"
    family = "network"
    summary = "tournament of pairs of nodes that names slow, dead and wrong nodes"
    options: type[Strict] = PairsOptions
    statistics: Mapping[str, str] = {
        "pair_busbw": "GB/s",  #: statistic pairs.pair_busbw: bus bandwidth of a pair of nodes
        "pair_busbw_median": "GB/s",  #: statistic pairs.pair_busbw_median: median of a node's pairs
        #: statistic pairs.pair_latency_median: median time of a small all_reduce of a node's pairs
        "pair_latency_median": "us",
        "group_busbw": "GB/s",  #: statistic pairs.group_busbw: bus bandwidth of all nodes together
    }
    deadline_s = 600.0

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        """Hunt."""
        options = options_of(self, settings, PairsOptions)
        if len(fleet.hosts) < 2:
            return Report(skip="one node: there is no other to measure with")
        field = MeasuredGroups(fleet, self.name, options.sizes(fleet.site), deadline_of(self, settings))
        bounds = Bounds(fleet, settings)
        found = _hunt(field, fleet, options, bounds, "pair_busbw", rails=None)
        pair_runs = field.runs
        gpus = fleet.site.gpus_per_node
        named = {*found.verdict.culprits, *unjudged_of(found), *found.silent}
        fit = [host for host in fleet.hosts if host not in named]
        floor = bounds.floor("group_busbw", found.device, len(fit), gpus * len(fit))
        whole = measure_whole(field, fit, floor, gpus) if options.bisect else Whole()
        only = f"no reference for group_busbw of {len(fit)} nodes: all of them together only have to work"
        readings = readings_of(found, "pair_busbw", "pair_busbw_median", gpus) + _latencies(found, gpus)
        report = _report(found, field, bounds, readings, "pair_busbw", options.allowed(fleet.site))
        group_runs = field.runs - pair_runs
        return report.model_copy(
            update={
                "findings": (*report.findings, *whole.findings),
                "readings": (*report.readings, *whole.readings),
                "unbounded": report.unbounded and floor is None,
                "notes": (*report.notes, only) if whole.readings and floor is None else report.notes,
                "unjudged": {**whole.unjudged, **report.unjudged},
                "evidence": {**report.evidence, **whole.evidence, "pair_runs": pair_runs, "group_runs": group_runs},
            }
        )


def _hunt(
    field: MeasuredGroups,
    fleet: Fleet,
    options: TournamentOptions,
    bounds: Bounds,
    statistic: str,
    rails: Sequence[int] | None,
) -> Hunt:
    gpus = 2 * (min(fleet.site.gpus_per_node, 1) if rails else fleet.site.gpus_per_node)
    return hunt(
        field,
        fleet.hosts,
        rails,
        lambda device: bounds.floor(statistic, device, 2, gpus),
        rounds=len(fleet.hosts) if options.rounds == "all" else options.rounds,
        tolerance=options.allowed(fleet.site),
        repeats=options.repeats,
    )


def _report(
    found: Hunt, field: MeasuredGroups, bounds: Bounds, readings: list[Reading], statistic: str, tolerance: float
) -> Report:
    notes = list(bounds.notes(statistic))
    if found.verdict.floor is None:
        notes.append("two nodes and no reference: the result shows that their pair works, not whether it is slow")
    uneven = () if found.referenced else _uneven(found, statistic, tolerance)
    return Report(
        findings=(*findings_of(found), *bounds.missed(readings, found.device), *uneven),
        readings=tuple(readings),
        unjudged=unjudged_of(found),
        unbounded=bounds.lack(readings, found.device),
        notes=tuple(notes),
        evidence={**evidence_of(found), "rounds": field.rounds},
    )


def _uneven(found: Hunt, statistic: str, tolerance: float) -> Iterator[Finding]:
    """Yield a hint for every node in no fast pair, where a few pairs are far faster than most.

    Then most nodes may be bad, which a comparison of nodes with each other cannot tell.
    """
    bad = {player for player, (host, _) in found.players.items() if host in found.silent} | {*found.verdict.culprits}
    games = {pair: each.busbw for pair, each in found.first.items() if not bad & set(pair)}
    rates = {pair: rate for pair, rate in games.items() if rate is not None}
    fast = outliers({" - ".join(pair): rate for pair, rate in rates.items()}, tolerance=tolerance, side="high")
    if not fast:
        return
    fastest = max(rates, key=lambda pair: rates[pair])
    best = " - ".join(fastest)
    swift = {found.players[player][0] for pair in rates if " - ".join(pair) in fast for player in pair}
    for host in dict.fromkeys(host for player, (host, _) in found.players.items() if player not in bad):
        if host not in swift:
            yield Finding(
                host=host,
                #: finding uneven: a few pairs of nodes are far faster than most, and none of this node is: most nodes
                #:  may be slow
                kind="uneven",
                severity=Severity.MONITOR,
                message=f"{best} {fast[best].text}, and no pair of this node does: if most nodes are slow, comparing "
                "them does not show it",
                action=f"set a reference for {statistic} in the system's file",
                statistic=statistic,
            )


def _latencies(found: Hunt, gpus: int) -> list[Reading]:
    readings = []
    for player, (host, _) in found.players.items():
        told = [result.latency_us for pair, result in found.first.items() if player in pair]
        values = [value for value in told if value is not None]
        if values:
            name, value = "pair_latency_median", median(values)
            readings.append(Reading(host=host, statistic=name, value=value, unit="us", nodes=2, gpus=2 * gpus))
    return readings
