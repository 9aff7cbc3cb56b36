"""The lines of a rank's step log: `workloads.steplog` writes them, `readers.step_log` reads them."""

from __future__ import annotations

import math
from typing import Annotated, Literal, get_args

from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveFloat, TypeAdapter

from pytest_llmbench.core.schema import Strict

# What a rank does within a step, in the order of time.
Phase = Literal["start", "matmul", "data", "forward", "backward", "optimizer", "done"]
PHASES: tuple[Phase, ...] = get_args(Phase)

_Count = Annotated[int, Field(ge=0, lt=2**63)]
_PositiveCount = Annotated[int, Field(ge=1, lt=2**63)]
_AnyNumber = float | Literal["nan", "inf", "-inf"]


class _Event(Strict):
    # Strict: a bool is no number, a float no count, a text no number but for the three not finite ones.
    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    def line(self) -> bytes:
        """Write the event as strict JSON on a line of its own."""
        return self.model_dump_json(by_alias=True).encode() + b"\n"


class StartEvent(_Event):
    """How a rank introduces itself."""

    event: Literal["start"] = "start"
    schema_version: Literal[1] = Field(alias="schema")
    rank: _Count
    world_size: _PositiveCount
    local_rank: _Count
    host: str
    pid: _PositiveCount
    device: str
    versions: dict[str, str]


class MatmulEvent(_Event):
    """The dense matrix-product rate that a rank measured, FLOP/s."""

    event: Literal["matmul"] = "matmul"
    flops_per_s: PositiveFloat


class StepEvent(_Event):
    """One optimizer step of one rank; `time` is the Unix time of its end.

    Where several ranks hold one copy of the model together, one of them counts its tokens and samples, and the
    others count none.
    """

    event: Literal["step"] = "step"
    step: _PositiveCount
    seconds: PositiveFloat
    tokens: _Count
    samples: _Count
    loss: _AnyNumber
    grad_norm: _AnyNumber
    peak_memory_bytes: _Count | None
    time: float


class TelemetryEvent(_Event):
    """A rank watches its GPU: said before the first sample, and once more where something comes between.

    Attributes:
        gpu: its UUID, `GPU-...`.
        period_s: seconds from one sample to the next.
        trouble: why there are no samples, or fewer.
    """

    event: Literal["telemetry"] = "telemetry"
    gpu: str
    period_s: PositiveFloat
    trouble: str | None


class GpuEvent(_Event):
    """One sample of the rank's GPU at Unix time `time`; None is what the GPU does not tell.

    Attributes:
        energy_mj: counter of all energy since the driver was loaded, mJ.
        power_w: W; from Ampere on (but for GA100) the mean of the last second.
        memory_used_bytes: of everything on the GPU, the driver's own included.
        clocks_event_reasons: why clocks are not higher: the bits of `core.telemetry.REASONS`.
    """

    event: Literal["gpu"] = "gpu"
    time: float
    energy_mj: _Count | None
    power_w: NonNegativeFloat | None
    sm_clock_mhz: _Count | None
    memory_clock_mhz: _Count | None
    temperature_degc: _Count | None
    memory_used_bytes: _Count | None
    clocks_event_reasons: _Count | None


class EndEvent(_Event):
    """A rank finished its last step."""

    event: Literal["end"] = "end"
    steps: _Count


class FailureEvent(_Event):
    """An error ended the rank at Unix time `time`."""

    event: Literal["failure"] = "failure"
    error: str
    time: float


Event = StartEvent | MatmulEvent | TelemetryEvent | GpuEvent | StepEvent | EndEvent | FailureEvent
_EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event")])


def parse_event(line: bytes) -> Event:
    """Read one line.

    Raises:
        pydantic.ValidationError: it is not exactly one of the events.
    """
    return _EVENTS.validate_json(line)


def json_number(value: float) -> _AnyNumber:
    """Write a number that may be not finite as strict JSON can: as itself, or as `nan`, `inf` or `-inf`."""
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value
