"""Logged data of a run, in order: its ranks, its steps, and its unreadable lines."""

from collections.abc import Mapping

from pytest_llmbench.core.record.claims import Claim
from pytest_llmbench.core.record.telemetry import GpuTelemetry
from pytest_llmbench.core.record.times import RunTimes
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.core.wire.labels import Label
from pytest_llmbench.core.wire.step_events import TrainingEvent


class OwnSteps(Strict):
    """Sums over the steps of one rank; single steps are kept only for all ranks together."""

    count: int
    """How many there are."""
    began: float
    """Unix time when the first one did."""
    ended: float
    """Unix time of the end of the last."""
    seconds: float
    """Sum of their durations."""
    unlike_times: str | None
    """The first step whose duration is not the time since the end of the one before, in words."""
    unlike_clock: str | None
    """Distance of their time stamps from the clock by which they were written down, in words."""
    durations: str
    """A digest, the same for two ranks whose steps all took equally long."""
    losses: str
    """The same of their losses."""
    quarters: tuple[float, ...]
    """Mean loss of each quarter of the steps, in order; of fewer than four, of each step."""
    still: int
    """The longest row of steps with the very same loss."""
    flat: int
    """How many have a gradient norm of 0."""
    peak_memory_bytes: int | None = None
    """The highest that any of them says; None where none does."""
    same_norm: int = 1
    """The longest row of steps with the very same gradient norm, if it is not 0."""
    copied: str | None = None
    """The steps that repeat durations and losses of earlier ones, in words."""
    less_memory: str | None = None
    """The first step whose highest memory so far is lower than before, in words."""


class RankInfo(Strict):
    """One rank, as it introduced itself.

    Fields of schema version 2 of the step log are None in logs of version 1.
    """

    rank: int
    host: str
    """As the machine, or the container, names itself."""
    pid: int
    local_rank: int
    device: str
    """`cpu`, or the GPU's name as the driver gives it."""
    versions: Mapping[str, str]
    """Software versions the rank runs with."""
    matmul_flops_per_s: float | None = None
    """The highest dense matrix-product rate that this rank's device showed, FLOP/s, all ranks of the run measuring at
    once.
    """
    matmul_rates: tuple[float, ...] = ()
    """Every measurement of it, in order; a CPU measures before and after the training."""
    ended: bool = False
    """Whether the rank said that it finished its last step."""
    failure: str | None = None
    """The error that ended the rank, in its own words."""
    failed_at: float | None = None
    """Unix time of that error: the first of several ranks is usually the cause."""
    node: str | None = None
    """As Slurm names it; None outside of Slurm."""
    pid_namespace: int | None = None
    """Number of the namespace that `pid` is of."""
    gpu: str | None = None
    """UUID of its GPU; None for a CPU."""
    schema_version: int = 1
    """Of its step log."""
    world_size: int | None = None
    """Number of ranks according to its task."""
    token: str | None = None
    """Of the run that it belongs to."""
    started: float | None = None
    """Unix time when it introduced itself."""
    finished: float | None = None
    """Unix time when it said that it finished."""
    end_steps: int | None = None
    """Number of steps that it reported then."""
    asked_to_end: bool = False
    """Whether it said that it was asked to end before its last step."""
    steps: OwnSteps | None = None
    """The sums over its steps; None without any."""
    training: TrainingEvent | None = None
    """Its counts of its training."""


class Step(Strict):
    """One optimizer step of the whole run, or the mean of several where the framework logs only every so often.

    A value that was not logged is None.
    """

    step: int
    """1-based number; the last one's, of several."""
    interval: int = 1
    """How many steps it is the mean of."""
    at: float | None = None
    """When its line was printed, in seconds by the log's own clock, which may be that of any zone."""
    paused: bool = False
    """Whether the log tells of an evaluation or a checkpoint between the line before and this one."""
    seconds: float | None = None
    """Duration of one step, from the last rank's end of the one before to the last rank's end of it."""
    tokens: int | None = None
    """Tokens of one step over all ranks (a word is a token)."""
    samples: int | None = None
    """Sequences of one step over all ranks."""
    loss: float | None = None
    """Mean over ranks, nat per token; may be NaN or infinite."""
    grad_norm: float | None = None
    """L2 norm of the gradient before clipping; may be NaN or infinite."""
    peak_memory_bytes: int | None = None
    """Highest of all ranks since the start."""
    ranks: int | None = None
    """How many ranks logged it; None where one rank speaks for all."""
    reported: Mapping[str, float] = {}
    """Further values of the framework, by the framework's own names, such as `wps`."""


class StepSeries(Strict):
    """Everything one run logged."""

    ranks: tuple[RankInfo, ...] = ()
    """By rank, those that introduced themselves."""
    steps: tuple[Step, ...] = ()
    """In order; a step some rank did not log is here with `ranks` below the world size."""
    unreadable: tuple[str, ...] = ()
    """`file:line: why` for the lines that should have been a step and could not be read; of very many, the first."""
    unread: int = 0
    """How many lines could not be read."""
    unread_after: Mapping[int, int] = {}
    """How many of them came after which step, 0 before the first."""
    log_interval: int | None = None
    """Interval of steps that the framework logs, by its own log or by its arguments; None if unknown."""
    first_apart: bool = False
    """Whether its log has a line for step 1 alone, in addition to those of its interval."""
    totals: Mapping[str, float] = {}
    """Values that the framework logged for the whole run, by name."""
    world_size: int | None = None
    """How many ranks the framework says it has."""
    completed: str | None = None
    """The line with which the framework says that it did all its work."""
    failure: str | None = None
    """The line with which it says that it failed: the first of those that are nearest to the cause; None for a
    completed run. For ranks of our own: how the first failed that had not introduced itself.
    """
    cut_off: str | None = None
    """The line with which Slurm says that it ended the run at its time limit; None for a completed run."""
    restarted: str | None = None
    """`file:line: why` of the first sign of a second run in the same log."""
    bad_ends: tuple[str, ...] = ()
    """Texts of launchers about processes that ended with an error."""
    short: str | None = None
    """The reason for missing steps, as the framework reports it."""
    telemetry: tuple[GpuTelemetry, ...] = ()
    """Values of each rank's GPU in the judged steps, if the ranks watched their GPUs."""
    times: RunTimes | None = None
    """How the ranks spent their typical steps; None where their logs do not tell."""
    unlike_norms: str | None = None
    """The first step whose gradient norm is not the same on all ranks, in words."""
    stamped: tuple[float, float] | None = None
    """The first and the last time of the lines that say something of the run, in order of time, as Unix times if it
    were UTC; None where no such line has one.
    """
    written: tuple[float, float] | None = None
    """The first and the last Unix time of its event files; None without any."""
    skipped: tuple[tuple[int, int], ...] = ()
    """How many steps had been skipped so far at which step, if the log has it apart from its steps."""
    claims: tuple[Claim, ...] = ()
    """Claims of the ranks or the log about the training itself, to be compared with the recipe."""
    labels: tuple[Label, ...] = ()
    """The runs that the log names, in the lines that our own drivers print; each once."""
    nodes: tuple[tuple[str, int], ...] = ()
    """Hosts and how many ranks each was to have, as a framework's launcher says itself."""
    contradictions: tuple[str, ...] = ()
    """Contradictions between a log and other files of the same run, in words."""


class Progress(Strict):
    """The last step that a run has logged so far, as quickly as it can be had: to look on, not to judge."""

    step: int
    """Its number."""
    seconds: float | None
    """How long it took; None where the framework does not say."""
