"""The lines of a rank's step log: `workloads.steplog` writes them, `readers.step_log` reads them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pytest_llmbench.core.plain import NumberBounds, json_of

if TYPE_CHECKING:
    from pydantic import TypeAdapter

# What a rank does within a step, in the order of time: in `sync` it has its own gradients and waits for those of the
# others, in `device` its host has asked for the step and waits for its GPU.
Phase = Literal["start", "matmul", "data", "forward", "backward", "sync", "optimizer", "device", "done"]
PHASES: tuple[Phase, ...] = get_args(Phase)

# Seconds between two samples of a GPU.
GPU_PERIOD_S = 0.5

_TOO_LARGE = 2**63
_Count = Annotated[int, NumberBounds(ge=0, lt=_TOO_LARGE)]
_PositiveCount = Annotated[int, NumberBounds(ge=1, lt=_TOO_LARGE)]
_NonNegative = Annotated[float, NumberBounds(ge=0)]
_Positive = Annotated[float, NumberBounds(gt=0)]
_AnyNumber = float | Literal["nan", "inf", "-inf"]


class _Event:
    # For readers, who validate by pydantic; to import that takes a rank longer than all else that it needs.
    # Strict, also within a record: a bool must not pass for a number, a float for a count, or a text for a number.
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True, "allow_inf_nan": False}
    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Accept a mapping as an event, wherever it is from: strictness is about its values."""
        return {**handler(source), "strict": False}

    def line(self) -> bytes:
        """Write the event as strict JSON on a line of its own. Raises ValueError: a number is not finite."""
        return f"{json_of(self)}\n".encode()


@dataclass(frozen=True, kw_only=True, slots=True)
class StartEvent(_Event):
    """How a rank introduces itself."""

    event: Literal["start"] = "start"
    schema: Annotated[int, NumberBounds(ge=1, le=1)]  # a literal would take `true`, too
    rank: _Count
    world_size: _PositiveCount
    local_rank: _Count
    host: str  # as the machine, or the container, names itself
    pid: _PositiveCount
    device: str
    versions: dict[str, str]
    node: str | None = None  # as Slurm names it; None outside of Slurm
    pid_namespace: _Count  # number of the namespace that `pid` is of: containers have their own
    gpu: str | None = None  # UUID of the rank's GPU, as CUDA has it; None for a CPU
    token: str | None = None  # of the run, from its task; None where the task has none
    time: float  # Unix time


@dataclass(frozen=True, kw_only=True, slots=True)
class MatmulEvent(_Event):
    """A dense matrix-product rate that a rank measured, FLOP/s; CPUs measure before and after the training."""

    event: Literal["matmul"] = "matmul"
    flops_per_s: _Positive

    def __post_init__(self) -> None:
        _refuse_unless_positive(self.flops_per_s, "flops_per_s")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingEvent(_Event):
    """Counts of a rank from its model, its process group and the tensors it was fed, once it has done its steps."""

    event: Literal["training"] = "training"
    """Kind of the event."""
    world_size: _PositiveCount
    """Number of ranks in the process group that exchanges gradients."""
    tensor: _PositiveCount
    """Number of ranks that share the matrices of one copy of the model."""
    pipeline: _PositiveCount
    """Number of ranks that share the layers of one copy of the model."""
    tensor_rank: _Count
    """Place of the rank among those that share matrices, from 0."""
    pipeline_rank: _Count
    """Place of the rank among those that share layers, from 0."""
    copy_rank: _Count
    """Number of the rank's copy of the model, from 0."""
    layers: _Count
    """Number of layers in the rank's part of the model."""
    parameters: _Count
    """Number of parameters in the rank's part, whole where they are sharded over copies.

    Values that two ranks of a copy share count for one of them.
    """
    precision: str
    """Precision of the matrix products."""
    products: dict[str, _Count] | None = None
    """Number of linear layers in the rank's blocks by the precision of their products, counted on the built model; null
    unless the recipe's precision is `fp8`. The output layer, in bf16, is left out.
    """
    sequence_length: _PositiveCount | None
    """Sequence length of all input tensors; null for a rank without input, or with several lengths."""
    micro_batch_size: _PositiveCount | None
    """Number of sequences in each input tensor; null for a rank without input, or with several sizes."""
    dropout: str | None = None
    """Dropout rate of the modules that were trained, 0 in evaluation mode; several are joined by ` and `."""
    activation_checkpointing: str | None = None
    """`full` or `selective` if all layers, or parts of them, ran again in the backward passes of step 1, `none` if none
    did, `partial` if some layers did.
    """
    optimizer_steps: _Count | None = None
    """Number of steps that the optimizer made."""
    weights: float | None = None
    """Sum of weights of all matrices, each times a fixed factor, as a share of their norm; null for shards."""
    batches: str | None = None
    """Digest of all input tensors, in order; null for a rank without input."""
    repeated: _Count | None = None
    """Number of input tensors that the rank had been fed before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeSpent(_Event):
    """How the host of a rank spent the time of one step, by its own monotonic clocks.

    On a GPU that is the time in which the host asked for the step: the GPU works behind its back.
    """

    phases: dict[Phase, _NonNegative] | None = None  # seconds in each phase; None for a rank without phases
    cpu_s: _NonNegative | None = None  # CPU time of the whole process, seconds
    ran_s: _NonNegative | None = None  # CPU time of the thread that trains
    # The thread that trains could have run, and had no CPU; None if the kernel has no count.
    delayed_s: _NonNegative | None = None
    # CPU quotas of its control groups held processes back; None without a count.
    throttled_s: _NonNegative | None = None
    memory_stalled_s: _NonNegative | None = None  # processes waited for memory; None if the kernel has no count


@dataclass(frozen=True, kw_only=True, slots=True)
class StepEvent(_Event):
    """One optimizer step of one rank.

    If several ranks hold one copy of the model together, one of them counts its tokens and samples, and the
    others count none.
    """

    event: Literal["step"] = "step"
    step: _PositiveCount
    seconds: _Positive  # since the end of the step before
    tokens: _Count
    samples: _Count
    loss: _AnyNumber
    grad_norm: _AnyNumber
    peak_memory_bytes: _Count | None
    time: float  # Unix time of its end: `seconds` after that of the step before
    logged: float  # Unix time by the host's clock when the rank wrote this down
    spent: TimeSpent | None = None  # how its host spent that time; None where the rank measured nothing of it

    def __post_init__(self) -> None:
        _refuse_unless_positive(self.seconds, "seconds")


@dataclass(frozen=True, kw_only=True, slots=True)
class TelemetryEvent(_Event):
    """A rank watches its GPU: written before the first sample, and once more if something comes between."""

    event: Literal["telemetry"] = "telemetry"
    gpu: str  # its UUID, `GPU-...`
    period_s: _Positive  # seconds from one sample to the next
    trouble: str | None  # the reason for missing samples


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuEvent(_Event):
    """One sample of the rank's GPU at Unix time `time`; None for a value that the GPU lacks."""

    event: Literal["gpu"] = "gpu"
    time: float
    energy_mj: _Count | None  # counter of all energy since the driver was loaded, mJ
    power_w: _NonNegative | None  # W; from Ampere on (but for GA100) the mean of the last second
    sm_clock_mhz: _Count | None
    memory_clock_mhz: _Count | None
    temperature_degc: _Count | None
    memory_used_bytes: _Count | None  # of everything on the GPU, the driver's own included
    clocks_event_reasons: _Count | None  # reasons for lower clocks: the bits of `core.telemetry.REASONS`

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, int | float) and not 0 <= value < (_TOO_LARGE if isinstance(value, int) else math.inf):
                raise ValueError(f"{name} must be a number that a GPU may have: {value!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class EndEvent(_Event):
    """A rank finished its last step, at Unix time `time`."""

    event: Literal["end"] = "end"
    steps: _Count
    time: float
    asked: bool = False  # it was asked to make this step its last


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureEvent(_Event):
    """An error ended the rank at Unix time `time`."""

    event: Literal["failure"] = "failure"
    error: str
    time: float


Event = StartEvent | MatmulEvent | TrainingEvent | TelemetryEvent | GpuEvent | StepEvent | EndEvent | FailureEvent


def _refuse_unless_positive(value: float, name: str) -> None:
    """Make a rank fail at a number that readers refuse."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite: {value!r}")


@cache
def _events() -> TypeAdapter[Event]:
    from pydantic import Field, TypeAdapter  # noqa: PLC0415 - see `_Event`

    return TypeAdapter(Annotated[Event, Field(discriminator="event")])


def parse_event(line: bytes) -> Event:
    """Read one line.

    A bool must not pass for a number, a float for a count, or a text for a number but for `nan`, `inf` and `-inf`.
    Raises pydantic.ValidationError for anything but one of the events.
    """
    return _events().validate_json(line, strict=True)


def json_number(value: float) -> _AnyNumber:
    """Write a number that may be not finite as strict JSON can: as itself, or as `nan`, `inf` or `-inf`."""
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value
