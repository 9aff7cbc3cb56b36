"""Network: which node, rail or link is slower than the others?

Pairs of nodes measure an all_reduce as in a training: with NCCL between GPUs and gloo between CPUs, and with the same
program everywhere. See `tournament` and `group_bisection`.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Literal

from pydantic import PositiveInt

from pytest_llmbench.checks.base import Check, CheckSettings, Fleet, NodeCheck, deadline_of, options_of
from pytest_llmbench.checks.bounds import Bounds
from pytest_llmbench.checks.network.group_bisection import Whole, measure_whole
from pytest_llmbench.checks.network.groups import (
    GroupResult,
    MeasuredGroups,
    NetworkOptions,
    RankGroup,
    finding,
    note_missing_reference,
)
from pytest_llmbench.checks.network.hunt import Hunt, hunt, list_unjudged, make_evidence, make_findings, make_readings
from pytest_llmbench.core.record.health import Finding, Reading, Report, Severity
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.judging.outliers import outliers

_REPEATS = 3  # of the measurement inside each node


class TournamentOptions(NetworkOptions):
    """Further options of the checks with pairs of nodes."""

    rounds: PositiveInt | Literal["all"] | None = None
    """Number of rounds for each node; absent, `all` up to 16 nodes, and 8 beyond."""
    repeats: PositiveInt = 3
    """Number of re-measurements of each suspect with healthy nodes; the majority decides, and a tie clears the suspect.
    """


class RailOptions(TournamentOptions):
    """As `TournamentOptions`; two rounds for each rail by default."""

    rounds: PositiveInt | Literal["all"] | None = 2
    """Number of rounds for each rail; `all` is every pair."""


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
        tournament = _Tournament(self, fleet, settings, options, "rail_busbw", min(fleet.site.gpus_per_node, 1))
        tournament.play(rails=tournament.field.local_ranks)
        return tournament.report()


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
        """Play the tournament, and measure the good nodes together."""
        options = options_of(self, settings, PairsOptions)
        if len(fleet.hosts) < 2:
            return Report(skip="one node: there is no other to measure with")
        gpus = fleet.site.gpus_per_node
        tournament = _Tournament(self, fleet, settings, options, "pair_busbw", gpus)
        hunt = tournament.play(rails=None)
        field, pair_runs = tournament.field, tournament.field.runs
        named = {*hunt.verdict.culprits, *list_unjudged(hunt), *hunt.silent}
        fit = [host for host in fleet.hosts if host not in named]
        floor = tournament.bounds.floor("group_busbw", hunt.device, len(fit), gpus * len(fit))
        whole = measure_whole(field, fit, floor, gpus) if options.bisect else Whole()
        report = tournament.report(further=_make_latencies(hunt, gpus))
        note = f"no reference for group_busbw of {len(fit)} nodes: all of them together only have to work"
        counts = {"pair_runs": pair_runs, "group_runs": field.runs - pair_runs}
        return report.model_copy(
            update={
                "findings": (*report.findings, *whole.findings),
                "readings": (*report.readings, *whole.readings),
                "unbounded": report.unbounded and floor is None,
                "notes": (*report.notes, note) if whole.readings and floor is None else report.notes,
                "unjudged": {**whole.unjudged, **report.unjudged},
                "evidence": {**report.evidence, **whole.evidence, **counts},
            }
        )


class _Tournament:
    """One tournament: `statistic` is the rate of a pair, and `gpus` counts those of one node that take part."""

    def __init__(
        self, check: Check, fleet: Fleet, settings: CheckSettings, options: TournamentOptions, statistic: str, gpus: int
    ) -> None:
        self.field = MeasuredGroups(fleet, check.name, options.sizes(fleet.site), deadline_of(check, settings))
        self.bounds = Bounds(fleet.site, settings)
        self._fleet, self._options, self._statistic, self._gpus = fleet, options, statistic, gpus
        self._hunt: Hunt | None = None

    def play(self, rails: Sequence[int] | None) -> Hunt:
        """Play it, and name the bad nodes."""
        options, hosts = self._options, self._fleet.hosts
        self._hunt = hunt(
            self.field,
            hosts,
            rails,
            lambda device: self.bounds.floor(self._statistic, device, 2, 2 * self._gpus),
            rounds=len(hosts) if options.rounds == "all" else options.rounds,
            tolerance=options.allowed(self._fleet.site),
            repeats=options.repeats,
        )
        return self._hunt

    def report(self, further: Sequence[Reading] = ()) -> Report:
        """The report on the tournament, with `further` readings."""
        assert self._hunt is not None
        hunt, bounds, statistic = self._hunt, self.bounds, self._statistic
        readings = [*make_readings(hunt, statistic, f"{statistic}_median", self._gpus), *further]
        of_nodes = [reading for reading in readings if reading.host is not None]
        notes = list(note_missing_reference(bounds, statistic))
        if hunt.verdict.floor is None:
            notes.append("two nodes and no reference: the result shows that their pair works, not whether it is slow")
        tolerance = self._options.allowed(self._fleet.site)
        uneven = () if hunt.referenced else _find_uneven(hunt, statistic, tolerance)
        return Report(
            findings=(*make_findings(hunt), *bounds.judge(of_nodes, device=hunt.device), *uneven),
            readings=tuple(readings),
            unjudged=list_unjudged(hunt),
            unbounded=not bounds.covers(readings, hunt.device),
            notes=tuple(notes),
            evidence={**make_evidence(hunt), "rounds": self.field.rounds},
        )


def _find_uneven(hunt: Hunt, statistic: str, tolerance: float) -> Iterator[Finding]:
    """Yield a hint for every node outside the fast pairs, where a few pairs are far faster than most.

    Then most nodes may be bad, which is hidden from a comparison of nodes with each other.
    """
    silent = {player for player, (host, _) in hunt.players.items() if host in hunt.silent}
    bad = silent | {*hunt.verdict.culprits}
    rates = {
        " - ".join(pair): (pair, result.busbw)
        for pair, result in hunt.first.items()
        if result.busbw is not None and not bad & set(pair)
    }
    fast = outliers({name: rate for name, (_, rate) in rates.items()}, tolerance=tolerance, side="high")
    if not fast:
        return
    fastest = max(rates, key=lambda name: rates[name][1])
    swift = {hunt.players[player][0] for name in fast for player in rates[name][0]}
    for host in dict.fromkeys(host for player, (host, _) in hunt.players.items() if player not in bad):
        if host not in swift:
            message = f"{fastest} {fast[fastest].text}, and no pair of this node does: if most nodes are slow, "
            message += "comparing them does not show it"
            action = f"set a reference for {statistic} in the system's file"
            #: finding uneven: a few pairs of nodes are far faster than most, and none of this node is: most nodes
            #:  may be slow
            hint = finding(host, "", "uneven", Severity.MONITOR, message, action)
            yield hint.model_copy(update={"statistic": statistic})


def _make_latencies(hunt: Hunt, gpus: int) -> list[Reading]:
    readings = []
    for player, (host, _) in hunt.players.items():
        values = [result.latency_us for _, result in hunt.pairs_of(player) if result.latency_us is not None]
        if values:
            name, value = "pair_latency_median", median(values)
            readings.append(Reading(host=host, statistic=name, value=value, unit="us", nodes=2, gpus=2 * gpus))
    return readings


class IntraNode(NodeCheck):
    """All ranks of each node among themselves, over the links inside it."""

    name = "nvlink"
    family = "network"
    summary = "all_reduce inside each node: NVLink or NVSwitch"
    options: type[Strict] = NetworkOptions
    #: statistic nvlink.nvlink_busbw: bus bandwidth of all_reduce inside a node, median of three
    #: statistic nvlink.nvlink_latency: time of a small all_reduce inside a node
    statistics: Mapping[str, str] = {"nvlink_busbw": "GB/s", "nvlink_latency": "us"}

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        """Measure every node by itself, all at once."""
        options = options_of(self, settings, NetworkOptions)
        if fleet.site.ranks_per_node < 2:
            return Report(skip="one rank per node: nothing inside a node to measure")
        if fleet.site.device == "cpu":
            return Report(skip="the nodes of this system have no GPUs: there is no NVLink between them")
        field = MeasuredGroups(fleet, self.name, options.sizes(fleet.site), deadline_of(self, settings))
        alone = [RankGroup(hosts=(host,), local_ranks=field.local_ranks) for host in fleet.hosts]
        played = field.play([alone] * _REPEATS)
        if played.nvlink is False:
            return Report(skip="these GPUs have no NVLink: host_device_bandwidth and all_reduce measure their links")
        results: dict[str, list[GroupResult]] = {host: [] for host in fleet.hosts if host not in played.silent}
        absent = {}
        for result in played.results:
            (host,) = result.group.hosts
            results.get(host, []).append(result)
            if result.fault == "no_answer":
                absent[host] = result.reason
        readings = [reading for host, own in results.items() for reading in _make_inner_readings(host, own, fleet)]
        findings = [finding for host, own in results.items() for finding in _find_failure(host, own)]
        busbw = (reading for reading in readings if reading.statistic == "nvlink_busbw")
        rates = {reading.host: reading.value for reading in busbw if reading.host is not None}
        action = "check its NVLinks and NVSwitches (nvidia-smi nvlink -s), and which path NCCL takes"
        for host, outlier in outliers(rates, tolerance=options.allowed(fleet.site)).items():
            message = f"{rates[host]:.4g} GB/s inside the node: {outlier.text}"
            #: finding slow_node: a node is slow with good partners, or inside itself
            findings.append(finding(host, "", "slow_node", Severity.ISOLATE, message, action))
        bounds = Bounds(fleet.site, settings)
        return Report(
            findings=(*findings, *bounds.judge(readings, device=played.device)),
            readings=tuple(readings),
            unjudged={**absent, **played.silent},
            unbounded=not bounds.covers(readings, played.device),
            notes=note_missing_reference(bounds, "nvlink_busbw"),
        )


def _make_inner_readings(host: str, results: Sequence[GroupResult], fleet: Fleet) -> list[Reading]:
    """Medians of a node; none where one of its measurements failed."""
    rates = [result.busbw for result in results if result.busbw is not None]
    times = [result.latency_us for result in results if result.latency_us is not None]
    if len(rates) < len(results) or len(times) < len(results) or not results:
        return []
    gpus = fleet.site.gpus_per_node
    return [
        Reading(host=host, statistic="nvlink_busbw", value=median(rates), unit="GB/s", gpus=gpus),
        Reading(host=host, statistic="nvlink_latency", value=median(times), unit="us", gpus=gpus),
    ]


def _find_failure(host: str, results: Sequence[GroupResult]) -> Iterator[Finding]:
    bad = [result for result in results if result.fault in {"error", "wrong_values"}]
    if bad:
        message = f"its ranks among themselves: {bad[0].reason}"  #: finding failing_node: measurements with a node fail
        action = "run dcgmi diag on it, and take it out if the fault stays"
        wrong = any(result.fault == "wrong_values" for result in bad)
        yield finding(host, "", "wrong_values" if wrong else "failing_node", Severity.ISOLATE, message, action)
