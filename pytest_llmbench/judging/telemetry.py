"""Statistics over the telemetry of all GPUs of a run in its judged steps, and the reasons for unknown values.

Every number covers all GPUs: power, energy and throttling of a run are unknown if one of its GPUs was unwatched.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from pytest_llmbench.core.quantity import Quantity, listed
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.record.telemetry import GpuTelemetry

Better = Literal["higher", "lower"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """The GPUs of a run: values of each rank's GPU, their number (0 on the CPU), and the judged steps' tokens."""

    ranks: Sequence[GpuTelemetry]
    gpus: int
    tokens: float | None

    def every(self, of: Callable[[GpuTelemetry], float | None]) -> list[float] | None:
        """One number of each GPU; None if one is missing, or if ranks shared a GPU."""
        values = [value for gpu in self.ranks if (value := of(gpu)) is not None]
        different = len({gpu.gpu for gpu in self.ranks}) == len(self.ranks)
        return values if values and different and len(values) == len(self.ranks) == self.gpus else None

    @property
    def joules(self) -> float | None:
        """Energy of all GPUs, J."""
        energies = self.every(lambda gpu: gpu.energy_j)
        return None if energies is None else math.fsum(energies)

    def share_of_samples(self, of: Callable[[GpuTelemetry], float | None]) -> float | None:
        """A count of samples as a share of all samples, in percent."""
        counted = self.every(of)
        return None if counted is None else 100.0 * math.fsum(counted) / sum(gpu.samples for gpu in self.ranks)


@dataclass(frozen=True, slots=True)
class TelemetryRule:
    """Rule of one number: its unit, its words for reports, the calculation (None if unknown), the better direction."""

    unit: str
    words: str
    compute: Callable[[Watched], float | None]
    better: Better | None = None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _over(
    reduce: Callable[[list[float]], float], of: Callable[[GpuTelemetry], float | None]
) -> Callable[[Watched], float | None]:
    """Reduce one number of each GPU to one of all."""
    return lambda watched: None if (values := watched.every(of)) is None else reduce(values)


RULES: Mapping[str, TelemetryRule] = {
    #: left out power_mean: as `energy_per_token`
    "power_mean": TelemetryRule(
        "W", "energy of each GPU's own counter / wall clock of the judged steps, mean of all GPUs",
        _over(fmean, lambda gpu: _ratio(gpu.energy_j, gpu.seconds)),
    ),
    #: left out energy_per_token: if [telemetry](#telemetry) has no energy of a GPU
    "energy_per_token": TelemetryRule(
        "J/token", "energy of all GPUs by their own counters / tokens of the judged steps",
        lambda watched: _ratio(watched.joules, watched.tokens), "lower",
    ),
    #: left out tokens_per_joule: as `energy_per_token`
    "tokens_per_joule": TelemetryRule(
        "tokens/J", "tokens of the judged steps / energy of all GPUs by their own counters",
        lambda watched: _ratio(watched.tokens, watched.joules), "higher",
    ),
    #: left out clock_mean: if telemetry has a gap, or a sample lacks it
    "clock_mean": TelemetryRule(
        "MHz", "SM clock, mean of the samples of the judged steps, mean of all GPUs",
        _over(fmean, lambda gpu: gpu.sm_clock_mhz), "higher",
    ),
    #: left out clock_min: as `clock_mean`
    "clock_min": TelemetryRule(
        "MHz", "SM clock, lowest sample of any GPU in the judged steps",
        _over(min, lambda gpu: gpu.sm_clock_min_mhz), "higher",
    ),
    #: left out throttled: as `clock_mean`
    "throttled": TelemetryRule(
        "%", "samples of all GPUs that name a slowdown by hardware, heat or power brake / samples in the judged steps",
        lambda watched: watched.share_of_samples(lambda gpu: gpu.throttled), "lower",
    ),
    #: left out power_capped: as `clock_mean`
    "power_capped": TelemetryRule(
        "%", "samples of all GPUs at their power limit / samples in the judged steps",
        lambda watched: watched.share_of_samples(lambda gpu: gpu.power_capped),
    ),
    #: left out temperature_max: as `clock_mean`
    "temperature_max": TelemetryRule(
        "degC", "highest sample of any GPU in the judged steps",
        _over(max, lambda gpu: gpu.temperature_max_degc), "lower",
    ),
    #: left out memory_used_max: as `clock_mean`
    "memory_used_max": TelemetryRule(
        "GiB", "all memory in use on a GPU, highest sample of any GPU in the judged steps",
        _over(lambda sizes: max(sizes) / 2**30, lambda gpu: gpu.memory_used_max_bytes), "lower",
    ),
}  # fmt: skip


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
        values.append(metric.value)
    return str(Quantity(fmean(values), RULES["energy_per_token"].unit)) if values else None


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
