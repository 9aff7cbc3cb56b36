"""Summarizes the samples of one GPU over a window of time."""

import statistics as stats
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pytest_llmbench.core.record.series import Step
from pytest_llmbench.core.record.telemetry import GAP_PERIODS, POWER_CAP, SLOWDOWNS, GpuTelemetry, reasons_of
from pytest_llmbench.core.wire.step_events import GpuEvent, StepEvent, TelemetryEvent
from pytest_llmbench.readers.steps.progress import event_lines, rank_logs

# Largest error of an energy, as a share of it; with a larger one it is unknown.
MOST_ERROR = 0.1


class Edge(NamedTuple):
    """The energy counter at an end of the window, interpolated between two samples as with constant power.

    The counter only rises, so it was between the values of the two samples, which gives the largest `error` in mJ.
    """

    millijoules: float
    error: float


class Energy(NamedTuple):
    """Energy of a window, with its largest error; None with a reason if it is unknown."""

    joules: float | None = None
    error_j: float | None = None
    reason: str = ""


def edge(at: float, before: GpuEvent | None, after: GpuEvent | None, longest_s: float) -> Edge | None:
    """Interpolate the counter at a Unix time between two samples, or read it if one has this very time.

    None if a sample or its counter is missing, or if more than `longest_s` seconds lie between the samples.
    """
    for sample in (before, after):
        if sample is not None and sample.time == at:
            return None if sample.energy_mj is None else Edge(sample.energy_mj, 0.0)
    if before is None or after is None or not 0.0 < after.time - before.time <= longest_s:
        return None
    if before.energy_mj is None or after.energy_mj is None:
        return None
    share, spent = (at - before.time) / (after.time - before.time), after.energy_mj - before.energy_mj
    return Edge(before.energy_mj + share * spent, max(share, 1.0 - share) * spent)


def between(first: Edge | None, last: Edge | None) -> Energy:
    """Return the energy between two ends of the window, or the reason why it is unknown."""
    if first is None or last is None:
        return Energy(reason="no samples close enough around both ends of the judged window to know its energy")
    joules, error = (last.millijoules - first.millijoules) / 1e3, (first.error + last.error) / 1e3
    if joules <= 0.0:
        return Energy(reason="its energy counter stood still")
    if error > MOST_ERROR * joules:
        wrong = f"{100.0 * error / joules:.0f} %"
        return Energy(reason=f"the judged window is too short for its samples: its energy could be wrong by {wrong}")
    return Energy(joules, error)


_SLOWDOWN = sum(SLOWDOWNS)
_FIELDS = {
    "energy_mj": "energy",
    "power_w": "power",
    "sm_clock_mhz": "SM clock",
    "memory_clock_mhz": "memory clock",
    "temperature_degc": "temperature",
    "memory_used_bytes": "memory in use",
    "clocks_event_reasons": "reasons for lower clocks",
}


def summarize(
    watching: TelemetryEvent, samples: Sequence[GpuEvent], start: float, end: float, rank: int
) -> GpuTelemetry:
    """Return the telemetry of a rank's GPU from a Unix time to another, by all samples in the order of the log.

    The trouble of `watching` is the rank's own explanation of a gap, if it has one.
    """
    longest_s = GAP_PERIODS * watching.period_s
    first = next((at for at, sample in enumerate(samples) if sample.time >= start), len(samples))
    last = next((at for at in range(first, len(samples)) if samples[at].time > end), len(samples))
    before, within, after = samples[first - 1] if first else None, samples[first:last], next(iter(samples[last:]), None)
    times = [before.time if before else start, *(sample.time for sample in within), after.time if after else end]
    spans = [min(until, end) - max(since, start) for since, until in pairwise(times)]
    unwatched_s = sum(span for span in spans if span > longest_s)
    set_back = any(until < since for since, until in pairwise(times))
    values = {name: [value for sample in within if (value := getattr(sample, name)) is not None] for name in _FIELDS}
    energy = Energy()  # in these cases a gap concerns more than the energy
    if within and not set_back and len(values["energy_mj"]) == len(within):
        seen = [sample.energy_mj for sample in (before, *within, after) if sample and sample.energy_mj is not None]
        energy = between(edge(start, before, within[0], longest_s), edge(end, within[-1], after, longest_s))
        if any(later < earlier for earlier, later in pairwise(seen)):  # as when the driver is loaded again
            energy = Energy(reason="its energy counter went backwards")
    watched = bool(within) and not unwatched_s and not set_back
    because = f" ({watching.trouble})" if watching.trouble else ""
    gaps = [f"no sample in the {end - start:.3g} s of the judged window{because}"]
    if within:
        lacking = {words: len(within) - len(values[name]) for name, words in _FIELDS.items()}
        gaps = [
            *[f"no sample for {unwatched_s:.3g} s of the judged window{because}"] * bool(unwatched_s),
            *["its clock was set back"] * set_back,
            *(f"{number} of {len(within)} samples lack the {words}" for words, number in lacking.items() if number),
            *[energy.reason] * bool(energy.reason),
        ]

    def known(name: str, summary: Callable[[Sequence[Any]], Any]) -> Any:
        return summary(values[name]) if watched and len(values[name]) == len(within) else None

    return GpuTelemetry(
        rank=rank, gpu=watching.gpu, seconds=end - start, samples=len(within), unwatched_s=unwatched_s,
        energy_j=energy.joules, energy_error_j=energy.error_j, power_w=known("power_w", stats.fmean),
        sm_clock_mhz=known("sm_clock_mhz", stats.fmean), sm_clock_min_mhz=known("sm_clock_mhz", min),
        memory_clock_mhz=known("memory_clock_mhz", stats.fmean),
        temperature_max_degc=known("temperature_degc", max),
        memory_used_max_bytes=known("memory_used_bytes", max),
        throttled=known("clocks_event_reasons", lambda masks: sum(bool(mask & _SLOWDOWN) for mask in masks)),
        power_capped=known("clocks_event_reasons", lambda masks: sum(bool(mask & POWER_CAP) for mask in masks)),
        reasons=dict(Counter(reason for mask in values["clocks_event_reasons"] for reason in reasons_of(mask))),
        gaps=tuple(gaps),
    )  # fmt: skip


def read_telemetry(folder: Path, judged: Sequence[Step]) -> tuple[GpuTelemetry, ...]:
    """Read the telemetry of each rank's GPU from the start of the first judged step to the end of the last.

    Times are by the rank's own clock. The result is empty without judged steps, or if every rank is without a GPU.
    """
    if not judged:
        return ()
    ranks = [_rank_telemetry(rank, path, judged[0].step, judged[-1].step) for rank, path in rank_logs(folder)]
    return tuple(ranks) if any(telemetry.gpu for telemetry in ranks) else ()


def _rank_telemetry(rank: int, path: Path, first: int, last: int) -> GpuTelemetry:
    watching: TelemetryEvent | None = None
    samples: list[GpuEvent] = []
    steps: list[StepEvent] = []  # the first and the last of the judged ones
    try:
        for _, event in event_lines(path):  # a sample may be written after the step in which it lies
            match event:
                case TelemetryEvent() if watching is None:
                    watching = event
                case TelemetryEvent(trouble=str()) if watching is not None:
                    watching = replace(watching, trouble=event.trouble)
                case GpuEvent():
                    samples.append(event)
                case StepEvent(step=number) if number > last or watching is None:
                    break
                case StepEvent(step=number) if number >= first:
                    steps = [*steps[:1], event]
    except OSError:  # reported by the first reading
        watching = None
    if watching is None:
        return GpuTelemetry(rank=rank, gaps=("it did not watch its GPU",))
    if not steps:
        return GpuTelemetry(rank=rank, gpu=watching.gpu, gaps=("no judged step",))
    return summarize(watching, samples, steps[0].time - steps[0].seconds, steps[-1].time, rank)
