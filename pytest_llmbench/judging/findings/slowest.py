"""Search for the slow node of a run, by the times that its ranks measured alone.

Their steps do not say it: in each of them, all ranks wait for the slowest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from pytest_llmbench.core.record.series import RankInfo
from pytest_llmbench.core.record.telemetry import GpuTelemetry

# Healthy nodes of one model are within this of each other, and what is less says nothing.
_APART = 0.02


def slowest_node(ranks: Sequence[RankInfo], telemetry: Sequence[GpuTelemetry]) -> str | None:
    """Name the nodes that stand out, or say that none does; None where nothing compares: one node, or CPUs.

    Args:
        ranks: all of the run.
        telemetry: of their GPUs in the judged steps.
    """
    hosts = {info.rank: info.node or info.host for info in ranks if info.device != "cpu"}
    if len(set(hosts.values())) < 2:
        return None
    figures = {
        ("matrix products", "TFLOP/s"): {i.rank: i.matmul_flops_per_s / 1e12 for i in ranks if i.matmul_flops_per_s},
        ("SM clock", "MHz"): {each.rank: each.sm_clock_mhz for each in telemetry if each.sm_clock_mhz},
    }
    known = {name: values for name, values in figures.items() if values.keys() == hosts.keys()}
    if not known:
        return None
    told = [text for (what, unit), values in known.items() for text in _apart(what, unit, values, hosts)]
    compared = " and ".join(what for what, _ in known)
    none = f"no node stands out by its GPUs' {compared}; links and storage are not in that"
    return f"slow node: {'; '.join(told)}" if told else none


def _apart(what: str, unit: str, values: Mapping[int, float], hosts: Mapping[int, str]) -> Iterator[str]:
    """Yield a node whose slowest GPU is slower than those of the others usually are."""
    slowest: dict[str, int] = {}
    for rank in sorted(hosts, key=lambda rank: values[rank]):
        slowest.setdefault(hosts[rank], rank)
    worst = min(slowest, key=lambda host: values[slowest[host]])
    rank = slowest[worst]
    usual = median(values[slowest[host]] for host in slowest if host != worst)
    less = 1.0 - values[rank] / usual
    if less >= _APART:
        yield (
            f"{worst}, by its {what}: {values[rank]:.4g} {unit} on rank {rank}, {100 * less:.3g} % less than the "
            f"{usual:.4g} {unit} of the slowest GPU of another node"
        )
