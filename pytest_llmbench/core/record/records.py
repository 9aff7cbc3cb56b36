"""Run records: one JSON document per run, the evidence behind its verdicts."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, NonNegativeInt, PositiveInt, ValidationError

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import PRIVATE, write_text
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.early import EarlyVerdict
from pytest_llmbench.core.record.made_by import MadeBy
from pytest_llmbench.core.record.series import RankInfo, Step
from pytest_llmbench.core.record.steady import Steady
from pytest_llmbench.core.record.telemetry import GpuTelemetry
from pytest_llmbench.core.record.times import RunTimes
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.core.wire import layout

ProblemKind = Literal[
    "allocation", "command_failed", "engine_missing", "environment_missing", "gated", "hang", "harness",
    "implausible", "impossible", "job_cancelled", "job_lost", "job_node_fail", "job_out_of_memory", "job_preempted",
    "job_suspended", "job_timeout", "launch_failed", "loss_rises", "no_end", "no_evidence_of_completion", "no_gpu",
    "no_log", "no_start", "no_training", "not_finite", "not_prepared", "not_repeated", "not_struck", "other_run",
    "rank_died", "ranks_differ", "ranks_missing", "restarted", "same_rank", "session_ended", "started_again",
    "steps_missing", "time_limit", "unknown_engine", "unreadable_log", "wrong_hardware", "wrong_nodes", "wrong_ranks",
    "wrong_work",
]  # fmt: skip

# How jobs reach nodes, and what an allocation of nodes is for.
ClusterName = Literal["slurm", "local", "debug", "replay"]
AllocationMode = Literal["session", "run"]


class Verdict(StrEnum):
    """How a declared test ended. There is no other way for one to end.

    PASS: the number was measured and met its threshold. FAIL: it missed it. ERROR: the run cannot be
    judged (infrastructure, harness, implausible measurement). SKIP: it was not judged, for the
    reason given. INCONCLUSIVE: the number was measured, and is not known well enough to decide.
    XFAIL: the number missed a threshold that it is expected to miss for some time.
    INCOMPLETE: of a requirement, one of whose tests was not judged.
    """

    PASS = "PASS"  # noqa: S105 - a verdict, no password
    FAIL = "FAIL"
    ERROR = "ERROR"
    SKIP = "SKIP"
    INCONCLUSIVE = "INCONCLUSIVE"
    XFAIL = "XFAIL"
    INCOMPLETE = "INCOMPLETE"


class Metric(Strict):
    """One measured number.

    Attributes:
        value, unit: the number as a `Quantity` writes it.
        rule: how it was computed, in words.
        sense: how it follows from the seconds of a step, so that the run's steady state judges it: a `rate` is
            `amount` / seconds, a `time` is `amount` × seconds. None where its own rule judges it.
        amount: see there.
        low, high: between these it would be in many steps more of this run, with 99 % certainty on each side; None as
            `sense`, and for a run too short to tell. A share of a rate that something slowed each time but one: between
            these it is.
    """

    value: float
    unit: str
    rule: str
    sense: Literal["rate", "time"] | None = None
    amount: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def quantity(self) -> Quantity:
        """The number with its unit."""
        return Quantity(self.value, self.unit)


class Problem(Strict):
    """The reason why a run cannot be judged.

    Attributes:
        kind: a stable word.
        message: the event, its place, and the recommended action.
        log: the log to read first.
    """

    kind: ProblemKind
    message: str
    log: str | None = None


class Judgement(Strict):
    """One test's verdict on this run.

    Attributes:
        test: its node id.
        measured, threshold: the number and its bounds as texts, with their units.
        value, unit: the measured number; None where the test measured none.
        low, high: the interval around it, in `unit`; None where it has none.
        at_least, at_most: the bounds, in `unit`; None where there is none.
    """

    test: str
    verdict: Verdict
    statistic: str | None = None
    measured: str | None = None
    value: float | None = None
    unit: str | None = None
    low: float | None = None
    high: float | None = None
    threshold: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    reference: str | None = None
    reason: str | None = None
    cause: str | None = None


class Timings(Strict):
    """Unix times of a run's life; None where it did not get that far."""

    submitted: float | None = None
    started: float | None = None
    ended: float | None = None


class JobTraces(Strict):
    """Data to find a run again from another process: written when it is launched.

    Attributes:
        allocation: the Slurm job that holds the session's nodes, if one does.
    """

    schema_version: Literal[1] = 1
    session: str
    key: str
    token: str
    cluster: ClusterName
    allocation: str | None
    job_id: str | None
    hosts: tuple[str, ...]
    command: str
    submitted: float


class Record(Strict):
    """The part of a record that runs and checks share.

    Attributes:
        about: `run` or `check`.
        title: the record in words.
        session: session id.
        token: text in the comment of its Slurm job.
        system: system.
        cluster: `slurm`, `local`, `debug` or `replay`.
        folder: its folder.
        hosts: host names.
        judgements: each test's verdict: statistic, measured, threshold, reference, reason, cause, and the numbers of
            these.
        made_by: the session that made it: version, command line, user, host, ISO 8601 times, and the command that makes
            it again; null in records of earlier versions.
    """

    about: ClassVar[Literal["run", "check"]]
    title: ClassVar[str]
    schema_version: int
    session: str
    token: str
    system: str
    cluster: ClusterName
    folder: str
    job_id: str | None = None
    hosts: tuple[str, ...] = ()
    timings: Timings = Timings()
    judgements: tuple[Judgement, ...] = ()
    made_by: MadeBy | None = None

    @property
    def name(self) -> str:
        """Name of the run or check within the session."""
        raise NotImplementedError

    @property
    def was_cut_short(self) -> bool:
        """Whether the end of its session is all that is known of it."""
        raise NotImplementedError

    @property
    def path(self) -> Path:
        """Path of the record."""
        return Path(self.folder) / layout.RECORD

    @property
    def within_session(self) -> str:
        """Path of the record, relative to the folder of its session."""
        return f"{layout.FOLDERS[self.about]}/{self.name}/{layout.RECORD}"

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a record back.

        Raises:
            ConfigError: it is not there, cut, of another schema version, or not a record of this kind.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            newest = cls.model_fields["schema_version"].default
            raise ConfigError(f"{path}: no {cls.title} of schema version {newest} or before: {error}") from error


class RunRecord(Record):
    """One execution of one recipe, whole.

    Attributes:
        schema_version: 3.
        key: name of the run within the session.
        repeat: its number among the runs that are judged together, from 1.
        look: 0 for a run that was planned; else the number of the look before which it was made, as those before it did
            not decide (`--llmbench-inconclusive rerun`).
        run_token: random text that each rank of our own writes into its step log, and the driver of a command into
            its log, to tell them from logs of other runs; null if the log has none.
        recipe: the whole recipe, defaults and references included.
        allocation: `session` or `run`.
        nodes: nodes.
        ranks: ranks in all.
        gpus: GPUs in all.
        job_id: Slurm job; locally the process id of the launcher.
        device: device of the ranks: `cpu`, or the GPU model as the driver names it.
        command: started commands or tasks.
        versions: software versions of rank 0.
        provenance: facts of what ran.
        timings: Unix times `submitted`, `started`, `ended`.
        failed_launches: the reason for each failed launch before the last, with no rank started.
        superseded: kind and message of each attempt that `--llmbench-retries` repeated.
        lost_nodes: nodes that failed under it, or an attempt that `--llmbench-retries` repeated, as Slurm names them.
        avoided_nodes: nodes that the session had lost before, and that this run was kept off.
        rank_info: each rank of our own: host, pid, device, versions, matrix-product rate, how it ended, when it did
            what, and what its steps come to.
        steps: each step, or the mean of several (`interval`): seconds, tokens, samples, loss, gradient norm, peak
            memory, ranks, and further values of the framework (`reported`).
        totals: values that the framework logged for the whole run, by name.
        telemetry: for each rank that watched its GPU: its values in the judged steps, and the reason for each missing
            one.
        times: how the ranks spent the judged steps that are alike, in seconds a step: phases, waits, and time without a
            CPU; null where the step logs do not tell.
        unreadable: `file:line: why` of lines that look like steps, could not be read and were left out; of very many,
            the first.
        cut_off: how a run that is meant to be cut off at its time limit was.
        early: the looks at a run of a session with `--llmbench-early-verdict`: whether, where and why it ended early;
            null without it.
        replayed: folder of the logs of a run that was made elsewhere.
        simulated: the fault of `--llmbench-simulate`: such a run is a measurement of nothing.
        metrics: each statistic: value, unit, rule, and the interval around it.
        steady: the steady part of its steps, in seconds a step: the interval of their mean, pauses, drift; null for a
            run of fewer than 4 judged steps, and of steps without a duration.
        outside_steps: parts of the run's time, in seconds: in steps (`steps_s`), before the first one (`before_s`)
            and otherwise (`around_s`).
        findings: findings about the run, a sentence each.
        unjudged: the same of a command's run that cannot be judged, as far as its log goes: evidence, and no verdict.
        problem: the reason why it cannot be judged: kind, message, log; null for a sane run.
    """

    about = "run"
    title = "run record"
    # 2: the log of a command begins with the run's token. 3: metrics have an interval.
    schema_version: Literal[1, 2, 3] = 3
    key: str
    repeat: PositiveInt = 1
    look: NonNegativeInt = 0
    run_token: str | None = None
    recipe: Recipe
    allocation: AllocationMode
    nodes: int
    ranks: int
    gpus: int
    device: str | None = None
    command: str | None = None
    versions: Mapping[str, str] = {}
    provenance: Mapping[str, str] = {}
    failed_launches: tuple[str, ...] = ()
    superseded: tuple[str, ...] = ()
    lost_nodes: tuple[str, ...] = ()
    avoided_nodes: tuple[str, ...] = ()
    rank_info: tuple[RankInfo, ...] = ()
    steps: tuple[Step, ...] = ()
    totals: Mapping[str, float] = {}
    telemetry: tuple[GpuTelemetry, ...] = ()
    times: RunTimes | None = None
    unreadable: tuple[str, ...] = ()
    cut_off: str | None = None
    early: EarlyVerdict | None = None
    replayed: str | None = None
    simulated: str | None = None
    metrics: Mapping[str, Metric] = {}
    steady: Steady | None = None
    outside_steps: Mapping[str, float] = {}
    findings: tuple[str, ...] = ()
    unjudged: Mapping[str, Metric] = {}
    problem: Problem | None = None

    @property
    def name(self) -> str:
        """The run's key."""
        return self.key

    @property
    def series(self) -> str:
        """Key of the first of the runs that are judged together with it."""
        return self.key.removesuffix(f"-repeat{self.repeat}") if self.repeat > 1 else self.key

    @property
    def was_cut_short(self) -> bool:
        """Whether it was ended, or never begun, as the session ended."""
        return self.problem is not None and self.problem.kind == "session_ended"

    @property
    def took_s(self) -> float:
        """Seconds that it took, without what it waited for Slurm; 0 where it did not get that far."""
        began, ended = self.timings.started or self.timings.submitted, self.timings.ended
        return ended - began if began is not None and ended is not None else 0.0

    @property
    def job(self) -> str:
        """Its job for people: ` (job 17)`, or ` (pid 17)` of a process on this machine; empty if there is none."""
        if self.job_id is None:
            return ""
        return f" ({'pid' if self.cluster in {'local', 'debug'} else 'job'} {self.job_id})"

    @property
    def logs(self) -> Path:
        """The folder of what the ranks printed."""
        return Path(self.replayed) if self.replayed is not None else Path(self.folder) / layout.LOGS


def write_model(path: Path, model: BaseModel) -> str:
    """Write a model as JSON so that a reader sees the whole of it or nothing; return the text."""
    text = model.model_dump_json(indent=1) + "\n"
    write_text(path, text, mode=PRIVATE)
    return text
