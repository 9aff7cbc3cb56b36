"""Samples and step logs of GPUs, as ranks write them, at times of the test's choice."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_llmbench.core.wire.step_events import (
    GPU_PERIOD_S,
    EndEvent,
    Event,
    GpuEvent,
    MatmulEvent,
    StartEvent,
    StepEvent,
    TelemetryEvent,
    TrainingEvent,
)

BEGIN = 1_764_000_000.0
DEVICE = "NVIDIA H200"
POWER_W = 690.0


def told(rank: int = 0, trouble: str | None = None) -> TelemetryEvent:
    """What a rank says of its watching."""
    return TelemetryEvent(gpu=f"GPU-{rank}", period_s=GPU_PERIOD_S, trouble=trouble)


def sample(at_s: float, **changes: Any) -> GpuEvent:
    """A sample `at_s` seconds after `BEGIN`, of an H200 under full load at its power limit."""
    values: dict[str, Any] = {
        "time": BEGIN + at_s, "energy_mj": 5_000_000 + round(1e3 * POWER_W * at_s), "power_w": POWER_W,
        "sm_clock_mhz": 1455, "memory_clock_mhz": 3201, "temperature_degc": 58, "memory_used_bytes": 40 * 2**30,
        "clocks_event_reasons": 0x4,
    }  # fmt: skip
    return GpuEvent(**(values | changes))


def samples(until_s: float, changes: Mapping[float, Mapping[str, Any]] | None = None) -> list[GpuEvent]:
    """Samples every period from 0 on; `changes` by time."""
    times = [GPU_PERIOD_S * number for number in range(int(until_s / GPU_PERIOD_S) + 1)]
    return [sample(at_s, **(changes or {}).get(at_s, {})) for at_s in times]


def step(number: int, seconds: float = 1.0) -> StepEvent:
    """A step of a run whose steps take so long each, one after the other from `BEGIN` on."""
    return StepEvent(
        step=number, seconds=seconds, tokens=128, samples=4, loss=5.0 - 0.01 * number, grad_norm=1.0 + 0.01 * number,
        peak_memory_bytes=2**30, time=BEGIN + number * seconds, logged=BEGIN + number * seconds,
    )  # fmt: skip


def of_rank(step: StepEvent, rank: int) -> StepEvent:
    """The same step as another rank would have it: a little longer, and on other data."""
    seconds = step.seconds * (1 + 1e-9 * rank)
    return replace(step, seconds=seconds, loss=float(step.loss) + 0.01 * rank)


def training(rank: int, ranks: int, parameters: int) -> TrainingEvent:
    """Counts of a rank with a whole copy of a model of one layer, fed micro batches of 2 sequences of 32 tokens."""
    return TrainingEvent(
        world_size=ranks, tensor=1, pipeline=1, tensor_rank=0, pipeline_rank=0, copy_rank=rank, layers=1,
        parameters=parameters, precision="fp32", sequence_length=32, micro_batch_size=2,
    )  # fmt: skip


def write_rank(
    folder: Path, rank: int, steps: int, watched: Sequence[Event], ranks: int = 2, parameters: int = 1
) -> None:
    """Write the log of a rank: `watched`, what is known of its GPU, in order between its steps of a second each."""
    events: list[StepEvent | GpuEvent] = [of_rank(step(number), rank) for number in range(1, steps + 1)]
    said = [event for event in watched if not isinstance(event, GpuEvent)]
    seen = [event for event in watched if isinstance(event, GpuEvent)]
    timed = sorted([*events, *seen], key=lambda event: event.time)
    start = StartEvent(
        schema=1, rank=rank, world_size=ranks, local_rank=rank, host="n0", pid=7 + rank, device=DEVICE, versions={},
        pid_namespace=1, time=BEGIN,
    )  # fmt: skip
    (folder / "steps").mkdir(parents=True, exist_ok=True)
    counts = training(rank, ranks, parameters)
    lines = [start, MatmulEvent(flops_per_s=4e14), *said, *timed, counts, EndEvent(steps=steps, time=timed[-1].time)]
    (folder / f"steps/rank-{rank:05d}.jsonl").write_bytes(b"".join(event.line() for event in lines))
