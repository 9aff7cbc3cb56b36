"""Energy of a run for messages and reports, and the reasons for unknown values of the telemetry of its GPUs."""

from collections.abc import Sequence
from statistics import fmean

from pytest_llmbench.core.quantity import Quantity, listed
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.record.telemetry import GpuTelemetry


def gaps(ranks: Sequence[GpuTelemetry], gpus: int) -> list[str]:
    """The reasons for unknown values of the `gpus` of a run; empty if its ranks are without telemetry."""
    reasons: dict[str, list[int]] = {}
    shared: dict[str, list[int]] = {}
    for telemetry in ranks:
        for gap in telemetry.gaps:
            reasons.setdefault(gap, []).append(telemetry.rank)
        if telemetry.gpu is not None:
            shared.setdefault(telemetry.gpu, []).append(telemetry.rank)
    return [
        *([f"{len(ranks)} ranks report {gpus} GPUs"] if ranks and len(ranks) != gpus else []),
        *(f"{_named(numbers)} share {gpu}" for gpu, numbers in shared.items() if len(numbers) > 1),
        *(f"{_named(numbers)}: {gap}" for gap, numbers in reasons.items()),
    ]


def energy_of(*records: RunRecord) -> str | None:
    """Energy of all GPUs for each token, the mean of these runs, or `unknown: ` and the reason.

    None for runs without GPUs, and for those without numbers.
    """
    values = []
    for record in records:
        if not record.gpus or record.problem is not None:
            return None
        metric = record.metrics.get("energy_per_token")
        if metric is None:
            which = f"run {record.key}: " if len(records) > 1 else ""
            return f"unknown: {which}{_why_no_energy(record)}"
        values.append(metric.quantity)
    return str(Quantity(fmean(value.value for value in values), values[0].unit)) if values else None


def _why_no_energy(record: RunRecord) -> str:
    if record.early is not None and record.early.ended_early:
        return "the run was ended early"
    if not record.telemetry:
        return "its log has no telemetry of the GPUs"
    if reasons := gaps(record.telemetry, record.gpus):
        return f"telemetry of its GPUs is incomplete: {first_of(reasons)}"
    return "its log has no tokens"


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {listed(ranks)}"


def first_of(reasons: Sequence[str]) -> str:
    """The first reason, and the number of the others."""
    return reasons[0] + (f", and {len(reasons) - 1} more" if len(reasons) > 1 else "")
