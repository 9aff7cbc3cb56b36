"""Findings: remarks for the owner of a run that can be judged, and its slow node. They change no verdict."""

import statistics as stats
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from pytest_llmbench.core.quantity import listed
from pytest_llmbench.core.record.series import RankInfo
from pytest_llmbench.core.record.telemetry import SLOWDOWNS, GpuTelemetry
from pytest_llmbench.judging.agreement import pace
from pytest_llmbench.judging.findings import skipped
from pytest_llmbench.judging.findings.window import unsteady
from pytest_llmbench.judging.sanity.evidence import Evidence
from pytest_llmbench.judging.sanity.outside import Outside, outside

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


# Of GPUs of one model in one run: what differs more is no scatter.
_UNLIKE = 0.1
# The least share of the published peak that large matrix products reach on a GPU in good order.
_LEAST_OF_PEAK = 0.5
# By which share the time from step to step may be more than the steps' own.
_BETWEEN = 0.2
# Time outside of steps that is worth a word: this share of the run, and long enough to be no end of a process.
_OUTSIDE_SHARE, _AROUND_S, _START_S = 0.2, 5.0, 60.0


def findings(e: Evidence) -> tuple[str, ...]:
    """Say all of it, a sentence each.

    Args:
        e: the evidence of the sanity rules.
    """
    return (
        *_throttled(e),
        *_slow_clocks(e),
        *_unlike_rates(e),
        *_far_from_peak(e),
        *_time_outside(e),
        *_time_between(e),
        *_bad_ends(e),
        *skipped.some(e.recipe, e.series),
        *unsteady(e),
    )


def _throttled(e: Evidence) -> Iterator[str]:
    hosts = {info.rank: info.host for info in e.series.ranks}
    held = [each for each in e.series.telemetry if each.throttled]
    if held:
        told = [f"rank {each.rank} on {hosts.get(each.rank, 'an unknown host')} ({_why(each)})" for each in held]
        yield f"throttled in the judged steps: {listed(told)}: the speed is that of GPUs that were held back"


def _why(each: GpuTelemetry) -> str:
    reasons = [f"{name} in {each.reasons[name]}" for name in SLOWDOWNS.values() if each.reasons.get(name)]
    return f"{', '.join(reasons)} of {each.samples} samples"


def _slow_clocks(e: Evidence) -> Iterator[str]:
    clocks = {each.rank: each.sm_clock_mhz for each in e.series.telemetry if each.sm_clock_mhz is not None}
    yield from _unlike("clocks", "MHz", clocks, e.series.ranks)


def _unlike_rates(e: Evidence) -> Iterator[str]:
    if e.topology.gpus:  # CPUs that others use as well are too unsteady
        rates = {i.rank: i.matmul_flops_per_s / 1e12 for i in e.series.ranks if i.matmul_flops_per_s is not None}
        yield from _unlike("matrix-product rates", "TFLOP/s", rates, e.series.ranks)


def _unlike(what: str, unit: str, values: dict[int, float], ranks: tuple[RankInfo, ...]) -> Iterator[str]:
    if len(values) < 2:
        return
    usual, hosts = stats.median(values.values()), {info.rank: info.host for info in ranks}
    odd = [
        f"rank {rank} on {hosts.get(rank, 'an unknown host')} {value:.4g} {unit}"
        for rank, value in values.items()
        if abs(value - usual) > _UNLIKE * usual
    ]
    if odd:
        yield f"the ranks' {what} differ: {listed(odd)}; the median is {usual:.4g} {unit}"


def _far_from_peak(e: Evidence) -> Iterator[str]:
    if e.peak_tflops is None:
        return
    peak, _ = e.peak_tflops  # fp32 without TF32: nobody says which of the two a framework's products are
    least = 1e12 * _LEAST_OF_PEAK * peak
    low = [info for info in e.series.ranks if info.matmul_flops_per_s is not None and info.matmul_flops_per_s < least]
    if low:
        told = [f"rank {info.rank} on {info.host} {_tflops(info)} TFLOP/s" for info in low]
        yield (
            f"matrix products reached less than {100 * _LEAST_OF_PEAK:g} % of the published peak of {peak:g} "
            f"TFLOP/s: {listed(told)}: a share of the measured rate flatters"
        )


def _tflops(info: RankInfo) -> str:
    return f"{(info.matmul_flops_per_s or 0.0) / 1e12:.4g}"


def _time_outside(e: Evidence) -> Iterator[str]:
    found = outside(e)
    # At scale smoke, starting and ending take most of the time.
    if (
        found is not None
        and e.recipe.scale == "full"
        and (
            found.around_s > max(_AROUND_S, _OUTSIDE_SHARE * (found.steps_s + found.around_s))
            or found.seconds > max(_START_S, _OUTSIDE_SHARE * (found.steps_s + found.seconds))
        )
    ):
        yield _told(found)


def _time_between(e: Evidence) -> Iterator[str]:
    found = pace(e.series) if e.kind == "command" and e.topology.gpus else None
    if found is not None and found > 1 + _BETWEEN:
        yield (
            f"by the times of its lines or event files a step takes {100 * (found - 1):.3g} % longer than it reports, "
            "in the median: its own rates leave out the time between steps (input, logs)"
        )


def _told(found: Outside) -> str:
    whole = found.steps_s + found.seconds
    before = "" if found.before_s is None else f", {found.before_s:.4g} s of it before the first"
    return (
        f"{100 * found.seconds / whole:.3g} % of the run ({found.seconds:.4g} of {whole:.4g} s) was outside "
        f"of steps{before}"
    )


def _bad_ends(e: Evidence) -> Iterator[str]:
    if e.series.bad_ends and e.series.completed is not None:
        yield (
            f"processes of the run ended with an error, although the work was done: {listed(list(e.series.bad_ends))}: "
            "look at what its ranks do as they end"
        )
