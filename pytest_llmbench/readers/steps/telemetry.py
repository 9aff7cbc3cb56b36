"""Reads what the ranks' GPUs did in the judged steps out of the step logs, once it is known which these are.

That is a second reading, as the warm-up rule needs all steps first. A log without samples is left at its first step.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from pytest_llmbench.core.record.series import Step
from pytest_llmbench.core.record.telemetry import GpuTelemetry
from pytest_llmbench.core.wire.step_events import Event, GpuEvent, StepEvent, TelemetryEvent
from pytest_llmbench.readers.steps.gpu_window import GpuWindow
from pytest_llmbench.readers.steps.progress import event_lines, rank_logs


def read_telemetry(folder: Path, judged: Sequence[Step]) -> tuple[GpuTelemetry, ...]:
    """Read what each rank's GPU did from the start of the first judged step to the end of the last, by its own clock.

    Empty where nothing is judged, or no rank watches a GPU.
    """
    if not judged:
        return ()
    ranks = [_of_rank(rank, path, judged[0].step, judged[-1].step) for rank, path in rank_logs(folder)]
    return tuple(ranks) if any(telemetry.gpu for telemetry in ranks) else ()


def _of_rank(rank: int, path: Path, first: int, last: int) -> GpuTelemetry:
    with suppress(OSError):  # the first reading said so
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
