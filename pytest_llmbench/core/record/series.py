"""Logged data of a run, in order: its ranks with their times, its steps, and its unreadable lines."""

from collections.abc import Mapping
from typing import Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from pytest_llmbench.core.record.claims import Claim, Setting
from pytest_llmbench.core.record.telemetry import GpuTelemetry
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.core.wire.labels import Label
from pytest_llmbench.core.wire.step_events import Phase, TrainingEvent


class OwnSteps(Strict):
    """Sums over the steps of one rank; single steps are kept only for all ranks together."""

    count: int
    """Number of steps."""
    began: float
    """Unix time at which the first step began."""
    ended: float
    """Unix time of the end of the last step."""
    seconds: float
    """Sum of the durations of all steps, in seconds."""
    unlike_times: str | None
    """First step whose duration differs from the time since the end of the step before, in words."""
    unlike_clock: str | None
    """Distance of the time stamps from the host's clock that logged them, in words."""
    unlike_host: str | None = None
    """Time that the rank's host counted in its steps beyond their durations, in words."""
    durations: str
    """Digest of all durations, equal for two ranks whose steps all took equally long."""
    losses: str
    """Digest of all losses, equal for two ranks with the same losses."""
    quarters: tuple[float, ...]
    """Mean loss of each quarter of the steps, in order; for fewer than four steps, the loss of each step."""
    still: int
    """Length of the longest row of steps with the very same loss."""
    flat: int
    """Number of steps with a gradient norm of 0."""
    peak_memory_bytes: int | None = None
    """Highest peak memory of all steps, in bytes; null where no step has one."""
    same_norm: int = 1
    """Length of the longest row of steps with the very same gradient norm other than 0."""
    copied: str | None = None
    """Steps that repeat durations and losses of earlier ones, in words."""
    less_memory: str | None = None
    """First step whose peak memory since the start is lower than before, in words."""


class RankTimes(Strict):
    """Times of one rank in its typical judged steps, in seconds per step by its own clocks; null if unknown."""

    rank: int
    """Number of the rank."""
    seconds: float | None = None
    """Mean duration of a step, in seconds."""
    phases: Mapping[Phase, float] = {}
    """Mean seconds of a step in each phase; empty where it is not known."""
    spread: float | None = None
    """Standard deviation of the seconds of a step without waiting for others."""
    last: float | None = None
    """Share of the steps in which this rank was the last to arrive where ranks wait for one another."""
    late: float | None = None
    """Share of the steps in which this rank arrived last by a quarter of a step or more.

    The smaller value of the first half and the second half of the steps counts.
    """
    late_s: float | None = None
    """Mean seconds of a step in which the others waited for this rank alone, in steps where it was late."""
    cpu_s: float | None = None
    """Mean CPU time of the process in a step, in seconds."""
    delayed_s: float | None = None
    """Mean seconds of a step in which the training thread could run and had no CPU."""
    throttled_s: float | None = None
    """Mean seconds of a step in which CPU quotas held the process back."""
    memory_stalled_s: float | None = None
    """Mean seconds of a step in which processes waited for memory."""
    gap: str | None = None
    """Reason for unknown phases; null where they are known."""

    @property
    def own_s(self) -> float | None:
        """Time of a step in which it did not wait for others; None where it is not known, as on a GPU."""
        sync = self.phases.get("sync")
        return None if self.seconds is None or sync is None or "device" in self.phases else self.seconds - sync


class RunTimes(Strict):
    """How the ranks of a run spent their typical judged steps, without pauses and without a slow start."""

    steps: int
    """Number of typical steps."""
    ranks: tuple[RankTimes, ...]
    """Times of each rank, in order."""
    transfer_s: float | None = None
    """Mean seconds of a step from the arrival of the last rank to the end of its wait; null where a rank's wait is
    unknown.
    """


class EarlyVerdict(Strict):
    """The looks at one run of a session with `--llmbench-early-verdict`."""

    planned: PositiveInt
    """Number of steps of the recipe."""
    look: PositiveInt
    """Number of steps by which the run is judged; all of them, if it was not ended early."""
    looks: tuple[PositiveInt, ...] = ()
    """Numbers of steps after which the run was looked at; empty for a run that had to run whole."""
    done: NonNegativeInt = 0
    """Number of steps that the ranks did: a few more than `look`, as they go on during a look."""
    alpha: PositiveFloat
    """Probability, on each side, that the interval at `look` is wrong."""
    decided: tuple[str, ...] = ()
    """Each threshold that was decided at `look`, and how."""
    whole: str | None = None
    """Reason why the run was not ended early; null for one that was."""
    hours_spent: float = 0.0
    """Hours from launch to end, in `unit`."""
    hours_saved: float = 0.0
    """Hours of the steps that were not made, at the speed of the others, in `unit`."""
    unit: Literal["GPU-hours", "node-hours"] = "node-hours"
    """Unit of the hours: `GPU-hours`, or `node-hours` for a run without GPUs."""

    @property
    def ended_early(self) -> bool:
        """True if the session ended the run before its last step."""
        return self.whole is None

    @property
    def statistics(self) -> set[str]:
        """The statistics whose thresholds were decided at `look`."""
        return {threshold.partition(": ")[2].partition(" ")[0] for threshold in self.decided}

    def __str__(self) -> str:
        if self.whole is not None:
            return f"it ran whole: {self.whole}"
        by = f"judged by its first {self.look} of {self.planned} steps, and ended after {self.done}"
        return f"{by}: it is not known what would have come later, such as a node that throttles"


class RankInfo(Strict):
    """One rank, as it introduced itself."""

    rank: int
    """Number of the rank, from 0."""
    host: str
    """Host name as the machine, or the container, gives it."""
    pid: int
    """Process id of the rank."""
    local_rank: int
    """Number of the rank on its node, from 0."""
    device: str
    """Device of the rank: `cpu`, or the GPU's name as the driver gives it."""
    versions: Mapping[str, str]
    """Software versions of the rank, by name."""
    matmul_flops_per_s: float | None = None
    """Highest dense matrix-product rate of the rank's device in FLOP/s, all ranks measuring at once."""
    matmul_rates: tuple[float, ...] = ()
    """Every measured matrix-product rate in FLOP/s, in order; a CPU measures before and after the training."""
    ended: bool = False
    """Whether the rank logged the end of its last step."""
    failure: str | None = None
    """Error that ended the rank, in its own words."""
    failed_at: float | None = None
    """Unix time of the rank's error; the first of several ranks is usually the cause."""
    node: str | None = None
    """Node name in Slurm; null outside of Slurm."""
    pid_namespace: int | None = None
    """Number of the namespace of the process id; containers have their own."""
    gpu: str | None = None
    """UUID of the rank's GPU; null for a CPU."""
    schema_version: Literal[1] = 1
    """Version of the schema of the rank's step log."""
    world_size: int | None = None
    """Number of ranks according to the rank's task."""
    token: str | None = None
    """Token of the run that the rank belongs to."""
    started: float | None = None
    """Unix time at which the rank introduced itself."""
    finished: float | None = None
    """Unix time at which the rank logged its end."""
    end_steps: int | None = None
    """Number of steps that the rank reported at its end."""
    asked_to_end: bool = False
    """Whether the rank was asked to end before its last step."""
    steps: OwnSteps | None = None
    """Sums over the steps of the rank; null without any."""
    training: TrainingEvent | None = None
    """Counts of the rank's model, process group and input tensors."""


class Step(Strict):
    """One optimizer step of the whole run, or the mean of several where the framework logs only every so often.

    A value that was not logged is None.
    """

    step: int
    """Number of the step, from 1; for the mean of several steps, the number of the last one."""
    interval: int = 1
    """Number of steps that the values are the mean of."""
    at: float | None = None
    """Time of the step's line in seconds, by the log's own clock, whose zone may be any."""
    paused: bool = False
    """Whether the log has an evaluation or a checkpoint between the line before and this one."""
    seconds: float | None = None
    """Duration of one step in seconds, from the last rank's end of the step before to the last rank's end of this one.
    """
    tokens: int | None = None
    """Number of tokens of one step over all ranks (a word is a token)."""
    samples: int | None = None
    """Number of sequences of one step over all ranks."""
    loss: float | None = None
    """Mean loss over ranks, in nat per token; may be NaN or infinite."""
    grad_norm: float | None = None
    """L2 norm of the gradient before clipping; may be NaN or infinite."""
    peak_memory_bytes: int | None = None
    """Highest memory use of all ranks since the start, in bytes."""
    ranks: int | None = None
    """Number of ranks that logged the step; null where one rank speaks for all."""
    reported: Mapping[str, float] = {}
    """Further values of the framework, by the framework's own names, such as `wps`."""


class StepSeries(Strict):
    """Everything one run logged."""

    ranks: tuple[RankInfo, ...] = ()
    """Ranks that introduced themselves, by number."""
    steps: tuple[Step, ...] = ()
    """Steps in order; one that some rank did not log has `ranks` below the world size."""
    unreadable: tuple[str, ...] = ()
    """Lines that should have been a step and cannot be read, `file:line: reason`; of very many, the first."""
    unread: int = 0
    """Number of lines that cannot be read."""
    unread_after: Mapping[int, int] = {}
    """Number of unreadable lines after each step, by the step's number; 0 stands for before the first."""
    log_interval: int | None = None
    """Number of steps from one logged step to the next, by the log or by the arguments; None if unknown."""
    first_apart: bool = False
    """Whether the log has a line for step 1 alone, in addition to those of its interval."""
    totals: Mapping[str, float] = {}
    """Values that the framework logged for the whole run, by name."""
    world_size: int | None = None
    """Number of ranks that the framework reports."""
    completed: str | None = None
    """Line with which the framework reports that it did all its work."""
    failure: str | None = None
    """Line nearest to the cause with which the framework reports a failure; None for a completed run.

    For our own ranks: the failure of a rank that had not introduced itself.
    """
    cut_off: str | None = None
    """Line with which Slurm reports that it ended the run at its time limit; None for a completed run."""
    restarted: str | None = None
    """First sign of a second run in the same log, `file:line: reason`."""
    bad_ends: tuple[str, ...] = ()
    """Messages of launchers about processes that ended with an error."""
    short: str | None = None
    """Reason for missing steps, as the framework reports it."""
    telemetry: tuple[GpuTelemetry, ...] = ()
    """Values of each rank's GPU in the judged steps, if the ranks watched their GPUs."""
    times: RunTimes | None = None
    """How the ranks spent their typical steps; None where their logs lack it."""
    unlike_norms: str | None = None
    """First step whose gradient norm differs between ranks, in words."""
    stamped: tuple[float, float] | None = None
    """First and last time of the run's lines, as Unix times if their clock were UTC; None without times."""
    written: tuple[float, float] | None = None
    """First and last Unix time of the run's event files; None without any."""
    timed_twice: bool = False
    """Whether log and event files both have the durations of steps."""
    skipped: tuple[tuple[int, int], ...] = ()
    """Number of skipped steps so far at each step, if the log has it apart from its steps."""
    claims: tuple[Claim, ...] = ()
    """Settings that ranks or the log report, to compare with the recipe."""
    settings: tuple[Setting, ...] = ()
    """Every setting that the log prints, those of `claims` included."""
    labels: tuple[Label, ...] = ()
    """Labels in the log, each once: lines of our own drivers that name the run."""
    nodes: tuple[tuple[str, int], ...] = ()
    """Host names and the number of ranks on each, as the framework's launcher reports them."""
    transport: tuple[str, ...] = ()
    """Faults of the way that NCCL sent data, by its own lines in the logs, in words."""
    contradictions: tuple[str, ...] = ()
    """Contradictions within a log, or between it and other files of the same run, in words."""


class Progress(Strict):
    """The last step that a run has logged so far, for display."""

    step: int
    """Number of the step."""
    seconds: float | None
    """Duration of the step in seconds; None where the framework logs none."""
