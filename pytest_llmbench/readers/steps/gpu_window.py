"""Summarizes the samples of one GPU over a window of time."""

import math
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

from pytest_llmbench.core.record.series import Step
from pytest_llmbench.core.record.telemetry import GAP_PERIODS, POWER_CAP, SLOWDOWNS, GpuTelemetry, reasons_of
from pytest_llmbench.core.wire.step_events import Event, GpuEvent, StepEvent, TelemetryEvent
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


@final
@dataclass(slots=True)
class _Mean:
    """Count, mean and range of one field."""

    count: int = 0
    total: float = 0.0
    lowest: float = math.inf
    highest: float = -math.inf

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.lowest, self.highest = min(self.lowest, value), max(self.highest, value)

    @property
    def mean(self) -> float:
        return self.total / self.count


class GpuWindow:
    """Accumulates samples and steps of the window in the order of the log, and keeps a few numbers of them.

    In addition it holds the samples since the end of the last step, until the next step shows whether they lie in the
    window. `trouble` is the rank's own explanation of a gap, if it has one.
    """

    def __init__(self, watching: TelemetryEvent) -> None:
        self.trouble = watching.trouble
        self._gpu = watching.gpu
        self._longest_s = GAP_PERIODS * watching.period_s
        self._waiting: deque[GpuEvent] = deque()
        self._last: GpuEvent | None = None
        self._start: float | None = None
        self._end = 0.0
        self._first_edge: Edge | None = None
        self._samples = 0
        self._unwatched_s = 0.0
        self._set_back = self._energy_fell = False
        self._numbers = {name: _Mean() for name in _FIELDS}
        self._throttled = self._power_capped = 0
        self._reasons: Counter[str] = Counter()

    def sample(self, sample: GpuEvent) -> None:
        """Take the next sample."""
        self._waiting.append(sample)

    def pass_by(self, start: float) -> None:
        """Drop the samples before a step that starts at Unix time `start`, as the window begins then or later."""
        while self._waiting and self._waiting[0].time < start:
            self._last = self._waiting.popleft()

    def extend(self, start: float, end: float) -> None:
        """Add a step from Unix time `start` to `end` to the window, which begins with its first step."""
        if self._start is None:
            self._start = start
        self._end = end
        self._take_all(self._start)

    def _take_all(self, start: float) -> None:
        while self._waiting and self._waiting[0].time <= self._end:
            sample = self._waiting.popleft()
            if sample.time < start and not self._samples:
                self._last = sample
            else:
                self._take(start, sample)

    def _take(self, start: float, sample: GpuEvent) -> None:
        if not self._samples:
            self._first_edge = edge(start, self._last, sample, self._longest_s)
        self._pass_time(start, sample)
        self._samples += 1
        for name, numbers in self._numbers.items():
            value = getattr(sample, name)
            if value is not None:
                numbers.add(value)
        mask = sample.clocks_event_reasons or 0
        self._reasons.update(reasons_of(mask))
        self._throttled += bool(mask & _SLOWDOWN)
        self._power_capped += bool(mask & POWER_CAP)
        self._last = sample

    def _pass_time(self, start: float, sample: GpuEvent | None) -> None:
        """Check the time from the last sample to this one, or to the window's end."""
        since = start if self._last is None else self._last.time
        until = self._end if sample is None else sample.time
        within = min(until, self._end) - max(since, start)
        if within > self._longest_s:
            self._unwatched_s += within
        self._set_back |= self._last is not None and until < since
        counters = [known.energy_mj for known in (self._last, sample) if known and known.energy_mj is not None]
        self._energy_fell |= len(counters) == 2 and counters[1] < counters[0]  # as when the driver is loaded again

    def close(self, rank: int) -> GpuTelemetry:
        """Return the telemetry of a rank's GPU, after the last step and sample."""
        if self._start is None:
            return GpuTelemetry(rank=rank, gpu=self._gpu, gaps=("no judged step",))
        self._take_all(self._start)  # a sample may be written after the step in which it lies
        after = self._waiting[0] if self._waiting else None
        self._pass_time(self._start, after)
        last_edge = edge(self._end, self._last, after, self._longest_s)
        energy = self._energy(last_edge)
        watched = bool(self._samples) and not self._unwatched_s and not self._set_back
        known = {name: numbers for name, numbers in self._numbers.items() if watched and numbers.count == self._samples}
        _, power, sm, memory_clock, temperature, memory, reasons = map(known.get, _FIELDS)
        return GpuTelemetry(
            rank=rank,
            gpu=self._gpu,
            seconds=self._end - self._start,
            samples=self._samples,
            unwatched_s=self._unwatched_s,
            energy_j=energy.joules,
            energy_error_j=energy.error_j,
            power_w=power and power.mean,
            sm_clock_mhz=sm and sm.mean,
            sm_clock_min_mhz=sm and sm.lowest,
            memory_clock_mhz=memory_clock and memory_clock.mean,
            temperature_max_degc=temperature and temperature.highest,
            memory_used_max_bytes=memory and memory.highest,
            throttled=reasons and self._throttled,
            power_capped=reasons and self._power_capped,
            reasons=dict(self._reasons),
            gaps=tuple(self._gaps(self._end - self._start, energy)),
        )

    def _energy(self, last_edge: Edge | None) -> Energy:
        if self._set_back or not self._samples or self._numbers["energy_mj"].count < self._samples:
            return Energy()  # `_gaps` gives the reason, as it concerns more than the energy
        if self._energy_fell:
            return Energy(reason="its energy counter went backwards")
        return between(self._first_edge, last_edge)

    def _gaps(self, seconds: float, energy: Energy) -> Iterator[str]:
        because = f" ({self.trouble})" if self.trouble else ""
        if not self._samples:
            yield f"no sample in the {seconds:.3g} s of the judged window{because}"
            return
        if self._unwatched_s:
            yield f"no sample for {self._unwatched_s:.3g} s of the judged window{because}"
        if self._set_back:
            yield "its clock was set back"
        for name, words in _FIELDS.items():
            missing = self._samples - self._numbers[name].count
            if missing:
                yield f"{missing} of {self._samples} samples lack the {words}"
        if energy.reason:
            yield energy.reason


def read_telemetry(folder: Path, judged: Sequence[Step]) -> tuple[GpuTelemetry, ...]:
    """Read the telemetry of each rank's GPU from the start of the first judged step to the end of the last.

    Times are by the rank's own clock. The result is empty without judged steps, or if every rank is without a GPU.
    """
    if not judged:
        return ()
    ranks = [_rank_telemetry(rank, path, judged[0].step, judged[-1].step) for rank, path in rank_logs(folder)]
    return tuple(ranks) if any(telemetry.gpu for telemetry in ranks) else ()


def _rank_telemetry(rank: int, path: Path, first: int, last: int) -> GpuTelemetry:
    with suppress(OSError):  # reported by the first reading
        events = (line.event for line in event_lines(path))
        watching = next((event for event in events if isinstance(event, TelemetryEvent | StepEvent)), None)
        if isinstance(watching, TelemetryEvent):
            return _window(watching, events, first, last).close(rank)
    return GpuTelemetry(rank=rank, gaps=("it did not watch its GPU",))


def _window(watching: TelemetryEvent, events: Iterator[Event | None], first: int, last: int) -> GpuWindow:
    window = GpuWindow(watching)
    for event in events:
        match event:
            case GpuEvent():
                window.sample(event)
            case TelemetryEvent(trouble=str(trouble)):
                window.trouble = trouble
            case StepEvent(step=number) if number > last:
                break
            case StepEvent(step=number, time=end, seconds=seconds):
                if number < first:
                    window.pass_by(end - seconds)
                else:
                    window.extend(end - seconds, end)
    return window
