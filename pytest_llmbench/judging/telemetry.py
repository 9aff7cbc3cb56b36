"""Telemetry of all GPUs of a run in its judged steps, in one number each; or the reason why it is unknown.

A number covers every GPU, or there is none: power, energy and the absence of throttling are unknown for a run if one of
its GPUs was not watched.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from pytest_llmbench.core.quantity import listed
from pytest_llmbench.core.record.telemetry import GpuTelemetry

Better = Literal["higher", "lower"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """The GPUs of a run.

    Attributes:
        ranks: values of each rank's GPU.
        gpus: how many the run had; 0 on the CPU.
        tokens: of the judged steps, over all ranks; None where it is not known.
    """

    ranks: Sequence[GpuTelemetry]
    gpus: int
    tokens: float | None

    def every(self, of: Callable[[GpuTelemetry], float | None]) -> list[float] | None:
        """One number of each GPU; None where one is missing, or where ranks shared a GPU."""
        values = [value for each in self.ranks if (value := of(each)) is not None]
        different = len({each.gpu for each in self.ranks}) == len(self.ranks)
        return values if values and different and len(values) == len(self.ranks) == self.gpus else None

    @property
    def joules(self) -> float | None:
        """Energy of all GPUs, J."""
        energies = self.every(lambda each: each.energy_j)
        return None if energies is None else math.fsum(energies)

    def share_of_samples(self, of: Callable[[GpuTelemetry], float | None]) -> float | None:
        """How many of all samples, in percent."""
        counted = self.every(of)
        return None if counted is None else 100.0 * math.fsum(counted) / sum(each.samples for each in self.ranks)


@dataclass(frozen=True, kw_only=True, slots=True)
class TelemetryRule:
    """How one number comes about: its unit, what it is in words, and the number, None where it is not known.

    Attributes:
        better: direction of its improvement; None where neither is.
    """

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

    def compute(watched: Watched) -> float | None:
        values = watched.every(of)
        return None if values is None else reduce(values)

    return compute


def _gib(size: float | None) -> float | None:
    return None if size is None else size / 2**30


RULES: Mapping[str, TelemetryRule] = {
    "power_mean": TelemetryRule(  #: left out power_mean: as `energy_per_token`
        unit="W",
        words="energy of each GPU's own counter / wall clock of the judged steps, mean of all GPUs",
        compute=_over(fmean, lambda each: _ratio(each.energy_j, each.seconds)),
    ),
    "energy_per_token": TelemetryRule(  #: left out energy_per_token: if [telemetry](#telemetry) has no energy of a GPU
        unit="J/token",
        words="energy of all GPUs by their own counters / tokens of the judged steps",
        compute=lambda watched: _ratio(watched.joules, watched.tokens),
        better="lower",
    ),
    "tokens_per_joule": TelemetryRule(  #: left out tokens_per_joule: as `energy_per_token`
        unit="tokens/J",
        words="tokens of the judged steps / energy of all GPUs by their own counters",
        compute=lambda watched: _ratio(watched.tokens, watched.joules),
        better="higher",
    ),
    "clock_mean": TelemetryRule(  #: left out clock_mean: if telemetry has a gap, or a sample lacks it
        unit="MHz",
        words="SM clock, mean of the samples of the judged steps, mean of all GPUs",
        compute=_over(fmean, lambda each: each.sm_clock_mhz),
        better="higher",
    ),
    "clock_min": TelemetryRule(  #: left out clock_min: as `clock_mean`
        unit="MHz",
        words="SM clock, lowest sample of any GPU in the judged steps",
        compute=_over(min, lambda each: each.sm_clock_min_mhz),
        better="higher",
    ),
    "throttled": TelemetryRule(  #: left out throttled: as `clock_mean`
        unit="%",
        words="samples of all GPUs that name a slowdown by hardware, heat or power brake / samples in the judged steps",
        compute=lambda watched: watched.share_of_samples(lambda each: each.throttled),
        better="lower",
    ),
    "power_capped": TelemetryRule(  #: left out power_capped: as `clock_mean`
        unit="%",
        words="samples of all GPUs at their power limit / samples in the judged steps",
        compute=lambda watched: watched.share_of_samples(lambda each: each.power_capped),
    ),
    "temperature_max": TelemetryRule(  #: left out temperature_max: as `clock_mean`
        unit="degC",
        words="highest sample of any GPU in the judged steps",
        compute=_over(max, lambda each: each.temperature_max_degc),
        better="lower",
    ),
    "memory_used_max": TelemetryRule(  #: left out memory_used_max: as `clock_mean`
        unit="GiB",
        words="all memory in use on a GPU, highest sample of any GPU in the judged steps",
        compute=_over(max, lambda each: _gib(each.memory_used_max_bytes)),
        better="lower",
    ),
}


def gaps(ranks: Sequence[GpuTelemetry], gpus: int) -> list[str]:
    """Say why something is not known, ranks with the same reason together; nothing where no rank watched a GPU.

    Args:
        ranks: values of each rank's GPU.
        gpus: how many the run had.
    """
    return list(_gaps(ranks, gpus)) if ranks else []


def _gaps(ranks: Sequence[GpuTelemetry], gpus: int) -> Iterator[str]:
    if len(ranks) != gpus:
        yield f"{len(ranks)} ranks tell of {gpus} GPUs"
    shared: dict[str, list[int]] = {}
    reasons: dict[str, list[int]] = {}
    for each in ranks:
        for gap in each.gaps:
            reasons.setdefault(gap, []).append(each.rank)
        if each.gpu is not None:
            shared.setdefault(each.gpu, []).append(each.rank)
    for gpu, of in shared.items():
        if len(of) > 1:
            yield f"{_named(of)} share {gpu}"
    for gap, of in reasons.items():
        yield f"{_named(of)}: {gap}"


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {listed(ranks)}"


def first_of(reasons: Sequence[str]) -> str:
    """The first, and how many more there are."""
    return reasons[0] + (f", and {len(reasons) - 1} more" if len(reasons) > 1 else "")
