"""Logged data of a run, in order: its ranks, its steps, and its unreadable lines."""

from collections.abc import Mapping

from pytest_llmbench.core.record.claims import Claim
from pytest_llmbench.core.record.telemetry import GpuTelemetry
from pytest_llmbench.core.record.times import RunTimes
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.core.wire.labels import Label
from pytest_llmbench.core.wire.step_events import TrainingEvent


class OwnSteps(Strict):
    """Sums over the steps of one rank; single steps are kept only for all ranks together.

    Attributes:
        count: how many there are.
        began: Unix time when the first one did.
        ended: Unix time of the end of the last.
        seconds: sum of their durations.
        unlike_times: the first step whose duration is not the time since the end of the one before, in words.
        unlike_clock: distance of their time stamps from the clock by which they were written down, in words.
        durations: a digest, the same for two ranks whose steps all took equally long.
        losses: the same of their losses.
        quarters: mean loss of each quarter of the steps, in order; of fewer than four, of each step.
        still: the longest row of steps with the very same loss.
        flat: how many have a gradient norm of 0.
        peak_memory_bytes: the highest that any of them says; None where none does.
        same_norm: the longest row of steps with the very same gradient norm, if it is not 0.
        copied: the steps that repeat durations and losses of earlier ones, in words.
        less_memory: the first step whose highest memory so far is lower than before, in words.
    """

    count: int
    began: float
    ended: float
    seconds: float
    unlike_times: str | None
    unlike_clock: str | None
    durations: str
    losses: str
    quarters: tuple[float, ...]
    still: int
    flat: int
    peak_memory_bytes: int | None = None
    same_norm: int = 1
    copied: str | None = None
    less_memory: str | None = None


class RankInfo(Strict):
    """One rank, as it introduced itself.

    Fields of schema version 2 of the step log are None in logs of version 1.

    Attributes:
        host: as the machine, or the container, names itself.
        node: as Slurm names it; None outside of Slurm.
        pid_namespace: number of the namespace that `pid` is of.
        gpu: UUID of its GPU; None for a CPU.
        schema_version: of its step log.
        world_size: number of ranks according to its task.
        token: of the run that it belongs to.
        started: Unix time when it introduced itself.
        finished: Unix time when it said that it finished.
        end_steps: number of steps that it reported then.
        asked_to_end: whether it said that it was asked to end before its last step.
        steps: the sums over its steps; None without any.
        training: its counts of its training.
        device: `cpu`, or the GPU's name as the driver gives it.
        matmul_flops_per_s: the highest dense matrix-product rate that this rank's device showed, FLOP/s, all
            ranks of the run measuring at once.
        matmul_rates: every measurement of it, in order; a CPU measures before and after the training.
        ended: whether the rank said that it finished its last step.
        versions: software versions the rank runs with.
        failure: the error that ended the rank, in its own words.
        failed_at: Unix time of that error: the first of several ranks is usually the cause.
    """

    rank: int
    host: str
    pid: int
    local_rank: int
    device: str
    versions: Mapping[str, str]
    matmul_flops_per_s: float | None = None
    matmul_rates: tuple[float, ...] = ()
    ended: bool = False
    failure: str | None = None
    failed_at: float | None = None
    node: str | None = None
    pid_namespace: int | None = None
    gpu: str | None = None
    schema_version: int = 1
    world_size: int | None = None
    token: str | None = None
    started: float | None = None
    finished: float | None = None
    end_steps: int | None = None
    asked_to_end: bool = False
    steps: OwnSteps | None = None
    training: TrainingEvent | None = None


class Step(Strict):
    """One optimizer step of the whole run, or the mean of several where the framework logs only every so often.

    Attributes:
        step: 1-based number; the last one's, of several.
        interval: how many steps it is the mean of.
        at: when its line was printed, in seconds by the log's own clock, which may be that of any zone.
        paused: whether the log tells of an evaluation or a checkpoint between the line before and this one.
        seconds: duration of one step, from the last rank's end of the one before to the last rank's end of it.
        tokens: tokens of one step over all ranks (a word is a token).
        samples: sequences of one step over all ranks.
        loss: mean over ranks, nat per token; may be NaN or infinite.
        grad_norm: L2 norm of the gradient before clipping; may be NaN or infinite.
        peak_memory_bytes: highest of all ranks since the start.
        ranks: how many ranks logged it; None where one rank speaks for all.
        reported: further values of the framework, by the framework's own names, such as `wps`.

    A value that was not logged is None.
    """

    step: int
    interval: int = 1
    at: float | None = None
    paused: bool = False
    seconds: float | None = None
    tokens: int | None = None
    samples: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    peak_memory_bytes: int | None = None
    ranks: int | None = None
    reported: Mapping[str, float] = {}


class StepSeries(Strict):
    """Everything one run logged.

    Attributes:
        ranks: by rank, those that introduced themselves.
        steps: in order; a step some rank did not log is here with `ranks` below the world size.
        unreadable: `file:line: why` for the lines that should have been a step and could not be read; of very
            many, the first.
        unread: how many lines could not be read.
        unread_after: how many of them came after which step, 0 before the first.
        log_interval: interval of steps that the framework logs, by its own log or by its arguments; None if unknown.
        first_apart: whether its log has a line for step 1 alone, in addition to those of its interval.
        totals: values that the framework logged for the whole run, by name.
        world_size: how many ranks the framework says it has.
        completed: the line with which the framework says that it did all its work.
        failure: the line with which it says that it failed: the first of those that are nearest to the cause; None for
            a completed run. For ranks of our own: how the first failed that had not introduced itself.
        cut_off: the line with which Slurm says that it ended the run at its time limit; None for a completed run.
        bad_ends: texts of launchers about processes that ended with an error.
        short: the reason for missing steps, as the framework reports it.
        restarted: `file:line: why` of the first sign of a second run in the same log.
        telemetry: values of each rank's GPU in the judged steps, if the ranks watched their GPUs.
        times: how the ranks spent their typical steps; None where their logs do not tell.
        unlike_norms: the first step whose gradient norm is not the same on all ranks, in words.
        stamped: the first and the last time of the lines that say something of the run, in order of time, as Unix times
            if it were UTC; None where no such line has one.
        written: the first and the last Unix time of its event files; None without any.
        skipped: how many steps had been skipped so far at which step, if the log has it apart from its steps.
        claims: claims of the ranks or the log about the training itself, to be compared with the recipe.
        labels: the runs that the log names, in the lines that our own drivers print; each once.
        nodes: hosts and how many ranks each was to have, as a framework's launcher says itself.
        contradictions: contradictions between a log and other files of the same run, in words.
    """

    ranks: tuple[RankInfo, ...] = ()
    steps: tuple[Step, ...] = ()
    unreadable: tuple[str, ...] = ()
    unread: int = 0
    unread_after: Mapping[int, int] = {}
    log_interval: int | None = None
    first_apart: bool = False
    totals: Mapping[str, float] = {}
    world_size: int | None = None
    completed: str | None = None
    failure: str | None = None
    cut_off: str | None = None
    restarted: str | None = None
    bad_ends: tuple[str, ...] = ()
    short: str | None = None
    telemetry: tuple[GpuTelemetry, ...] = ()
    times: RunTimes | None = None
    unlike_norms: str | None = None
    stamped: tuple[float, float] | None = None
    written: tuple[float, float] | None = None
    skipped: tuple[tuple[int, int], ...] = ()
    claims: tuple[Claim, ...] = ()
    labels: tuple[Label, ...] = ()
    nodes: tuple[tuple[str, int], ...] = ()
    contradictions: tuple[str, ...] = ()


class Progress(Strict):
    """The last step that a run has logged so far, as quickly as it can be had: to look on, not to judge.

    Attributes:
        step: its number.
        seconds: how long it took; None where the framework does not say.
    """

    step: int
    seconds: float | None
