"""The links inside each node."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from pytest_llmbench.checks.base import CheckSettings, Fleet, NodeCheck, deadline_of, options_of
from pytest_llmbench.checks.bounds import Bounds
from pytest_llmbench.checks.network.groups import (
    GroupResult,
    MeasuredGroups,
    NetworkOptions,
    RankGroup,
    finding,
    note_missing_reference,
)
from pytest_llmbench.core.record.health import Finding, Reading, Report, Severity
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.judging.outliers import outliers

_REPEATS = 3


class IntraNode(NodeCheck):
    """All ranks of each node among themselves."""

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
        readings = [reading for host, own in results.items() for reading in _make_readings(host, own, fleet)]
        findings = [finding for host, own in results.items() for finding in _find_failure(host, own)]
        rates = {each.host: each.value for each in readings if each.statistic == "nvlink_busbw" and each.host}
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


def _make_readings(host: str, results: Sequence[GroupResult], fleet: Fleet) -> list[Reading]:
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
