"""Run records: one JSON document per run, the evidence behind its verdicts; and all verdicts of a session."""

import datetime as dt
import hashlib
from abc import abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt

from pytest_llmbench.core.files import PRIVATE, write_text
from pytest_llmbench.core.quantity import Quantity, counted
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.series import EarlyVerdict, RankInfo, RunTimes, Step
from pytest_llmbench.core.record.steady import Steady
from pytest_llmbench.core.record.telemetry import GpuTelemetry
from pytest_llmbench.core.schema import Document, Strict, to_json
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
    """The end of a declared test."""

    PASS = "PASS"  # noqa: S105 - a verdict, no password
    """The number was measured and met its threshold."""
    FAIL = "FAIL"
    """The number was measured and missed its threshold."""
    ERROR = "ERROR"
    """The run cannot be judged: infrastructure, harness, or an implausible measurement."""
    SKIP = "SKIP"
    """The test was not judged, for the reason given."""
    INCONCLUSIVE = "INCONCLUSIVE"
    """The number was measured, but too imprecisely to decide."""
    XFAIL = "XFAIL"
    """The number missed a threshold that it is expected to miss for some time."""
    INCOMPLETE = "INCOMPLETE"
    """A requirement has a test that was not judged."""


class Metric(Strict):
    """One measured number."""

    value: float
    """Measured number, in `unit`."""
    unit: str
    """Unit of `value`, `low` and `high`, such as `words/s`."""
    rule: str
    """How the number was computed, in words."""
    sense: Literal["rate", "time"] | None = None
    """Relation to the seconds of a step: a `rate` is `amount` / seconds, a `time` is `amount` × seconds.

    Such a metric is judged by the steady part of the run. Null for a metric with a rule of its own.
    """
    amount: float | None = None
    """Work of one step for a `rate`, or number of steps for a `time`; null without `sense`."""
    low: float | None = None
    """Lower end of the interval: the mean of many more steps of this run lies above it with 99 % certainty.

    For a share of a measured ceiling, the bound follows from the second-highest measurement of the ceiling. Null
    where no interval is known, as in a short run.
    """
    high: float | None = None
    """Upper end of the interval: the mean of many more steps of this run lies below it with 99 % certainty.

    Null where no interval is known.
    """

    @property
    def quantity(self) -> Quantity:
        """The number with its unit."""
        return Quantity(self.value, self.unit)


class Problem(Strict):
    """The reason why a run cannot be judged."""

    kind: ProblemKind
    """Kind of problem, a stable word."""
    message: str
    """The event, its place, and the recommended action."""
    log: str | None = None
    """Path of the log to read first."""


class Judgement(Strict):
    """One test's verdict on this run."""

    test: str
    """Node id of the test."""
    verdict: Verdict
    """Verdict of the test."""
    statistic: str | None = None
    """Name of the statistic that was compared."""
    measured: str | None = None
    """Measured number with its unit, as text."""
    value: float | None = None
    """Measured number, in `unit`; null where the test measured none."""
    unit: str | None = None
    """Unit of the measured number and of its bounds."""
    low: float | None = None
    """Lower end of the interval around the number, in `unit`; null where it has none."""
    high: float | None = None
    """Upper end of the interval around the number, in `unit`; null where it has none."""
    threshold: str | None = None
    """Bounds with their units, as text."""
    at_least: float | None = None
    """Lower bound, in `unit`; null where there is none."""
    at_most: float | None = None
    """Upper bound, in `unit`; null where there is none."""
    reference: str | None = None
    """Name of the reference that has the bounds."""
    floor: str | None = None
    """Machine that the bounds were set for, if they are only a floor for this one; null of any other."""
    reason: str | None = None
    """Reason for the verdict, in words."""
    cause: str | None = None
    """Likely cause of a missed threshold, in words."""


class MadeBy(Strict):
    """The session that made a record, with `***` for secrets."""

    llmbench_version: str
    """Version of pytest-llmbench."""
    command: tuple[str, ...]
    """Words of pytest's command line."""
    directory: str
    """Folder in which pytest was started."""
    user: str | None
    """Login name; null where the machine has none for its user."""
    host: str
    """Host on which pytest ran."""
    submitted: str | None = None
    """ISO 8601 time of the submission, with zone; null where the run did not get that far."""
    started: str | None = None
    """ISO 8601 time of the start, with zone; null where the run did not get that far."""
    ended: str | None = None
    """ISO 8601 time of the end, with zone; null where the run did not get that far."""
    reproduce: str
    """Command line that makes the run or check again, with the tests that waited for it."""


# Up to the year 9999.
UnixTime = Annotated[float, Field(ge=0, lt=2.5e11)]


class Timings(Strict):
    """Unix times of a run; null for a stage that it did not reach."""

    submitted: UnixTime | None = None
    """Unix time of the submission."""
    started: UnixTime | None = None
    """Unix time of the start on the nodes."""
    ended: UnixTime | None = None
    """Unix time of the end."""


class JobTraces(Document):
    """`job.json` of a run's folder: what another process needs to find the run's job again."""

    title = "traces of a job"
    session: str
    """Id of the session."""
    key: str
    """Name of the run within the session."""
    token: str
    """Text in the comment of the run's Slurm job."""
    cluster: ClusterName
    """How the job reaches its nodes."""
    allocation: str | None
    """Slurm job that holds the session's nodes, if one does."""
    job_id: str | None
    """Slurm job of the run; locally the process id of its launcher."""
    hosts: tuple[str, ...]
    """Host names of the run's nodes, where they are known."""
    command: str
    """Command that was started."""
    submitted: float
    """Unix time of the submission."""


class Identity(Strict):
    """The part of a record that is known before its run or check begins."""

    session: str
    """Id of the session."""
    token: str
    """Text in the comment of the session's Slurm jobs."""
    system: str
    """Name of the system."""
    cluster: ClusterName
    """How jobs reach nodes: `slurm`, `local`, `debug` or `replay`."""
    folder: str
    """Path of the folder of this run or check."""


class Traces(Strict):
    """The part of a record that its launch leaves: the job, its nodes and times."""

    job_id: str | None = None
    """Slurm job; locally the process id of the launcher."""
    hosts: tuple[str, ...] = ()
    """Host names of the nodes, by slot."""
    timings: Timings = Timings()
    """Unix times `submitted`, `started` and `ended`."""


class Record(Traces, Identity, Document):
    """The part of a record that runs and checks share."""

    about: ClassVar[Literal["run", "check"]]
    judgements: tuple[Judgement, ...] = ()
    """Verdict of each test: statistic, measured number, threshold, reference, reason and cause."""
    made_by: MadeBy | None = None
    """The session that made the record: version, command line, user, host, times, and the command to repeat it."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the run or check within the session."""

    @property
    @abstractmethod
    def was_cut_short(self) -> bool:
        """True if it was cut short by the end of its session."""

    @property
    def took_s(self) -> float:
        """Seconds that it took, without the wait in the queue; 0 if it did not start, or end."""
        raise NotImplementedError

    @property
    def path(self) -> Path:
        """Path of the record."""
        return Path(self.folder) / layout.RECORD

    @property
    def within_session(self) -> str:
        """Path of the record, relative to the folder of its session."""
        return f"{layout.FOLDERS[self.about]}/{self.name}/{layout.RECORD}"


class RunIdentity(Identity):
    """The part of a run's record that its plan decides."""

    key: str
    """Name of the run within the session."""
    repeat: PositiveInt = 1
    """Number of the run among the runs that are judged together, from 1."""
    look: NonNegativeInt = 0
    """0 for a planned run; for a repeat of `--llmbench-inconclusive rerun`, the number of the look that asked."""
    run_token: str | None = None
    """Random text that ties logs to this run: each rank, or the driver of a command, writes it into its log.

    Null if the log has none.
    """
    recipe: Recipe
    """The whole recipe, defaults and references included."""
    allocation: AllocationMode
    """Whether nodes are held for the `session` or for each `run`."""
    nodes: PositiveInt
    """Number of nodes."""
    ranks: PositiveInt
    """Number of ranks on all nodes."""
    gpus: NonNegativeInt
    """Number of GPUs on all nodes."""
    replayed: str | None = None
    """Folder of the logs, for a run that was made elsewhere."""
    simulated: str | None = None
    """Fault of `--llmbench-simulate` that the run had; its measurements count for nothing."""
    as_recorded: str | None = None
    """Difference of the recipe from that of the folder which judges, with `--replay as-recorded:SESSION`; else null."""


class RunTraces(Traces):
    """The part of a run's record that its last launch leaves."""

    command: str | None = None
    """Command, or tasks, that were started."""


class RunAttempts(Strict):
    """The part of a run's record about failed launches, earlier attempts and lost nodes."""

    failed_launches: tuple[str, ...] = ()
    """Reason for each failed launch before the last one; no rank had started."""
    superseded: tuple[str, ...] = ()
    """Kind and message of the problem of each attempt that `--llmbench-retries` repeated."""
    lost_nodes: tuple[str, ...] = ()
    """Nodes that failed under this run or an attempt that `--llmbench-retries` repeated, as Slurm names them."""
    avoided_nodes: tuple[str, ...] = ()
    """Nodes that the session had lost before, and that this run was kept off."""


class RunOutcome(Strict):
    """The part of a run's record that follows from its logs."""

    device: str | None = None
    """Device of the ranks: `cpu`, or the GPU model as the driver names it."""
    versions: Mapping[str, str] = {}
    """Software versions of rank 0."""
    provenance: Mapping[str, str] = {}
    """Versions, commits and digests of the software and data that ran."""
    rank_info: tuple[RankInfo, ...] = ()
    """Each rank of our own engines: host, pid, device, versions, matrix-product rate, end, and sums of its steps."""
    steps: tuple[Step, ...] = ()
    """Each step, or the mean of `interval` steps: seconds, tokens, samples, loss, gradient norm and peak memory."""
    totals: Mapping[str, float] = {}
    """Values that the framework logged for the whole run, by name."""
    telemetry: tuple[GpuTelemetry, ...] = ()
    """Values of each watched GPU in the judged steps, and the reason for each missing value."""
    times: RunTimes | None = None
    """How the ranks spent the typical judged steps: phases, waits, and time without a CPU, in seconds per step.

    Null where the step logs lack these times.
    """
    unreadable: tuple[str, ...] = ()
    """Lines that look like steps and were left out because they cannot be read: `file:line: reason`; only the first of
    very many.
    """
    cut_off: str | None = None
    """How the run was cut off at its time limit, for a run that is meant to be."""
    early: EarlyVerdict | None = None
    """Looks at the run with `--llmbench-early-verdict`, and when and why it ended early; null without the option."""
    metrics: Mapping[str, Metric] = {}
    """Value, unit, rule and interval of each statistic."""
    steady: Steady | None = None
    """The steady part of the run: interval of the mean step time in seconds, pauses and drift.

    Null for a run of fewer than 4 judged steps, and for steps without a duration.
    """
    outside_steps: Mapping[str, float] = {}
    """Seconds of the run in its steps (`steps_s`), before the first step (`before_s`) and elsewhere (`around_s`)."""
    findings: tuple[str, ...] = ()
    """Findings about the run, one sentence each."""
    transport: tuple[str, ...] = ()
    """Findings about the way that NCCL sent data, by its own lines."""
    unconfirmed: tuple[str, ...] = ()
    """Unconfirmed facts behind the numbers, which stand in one place only; one sentence each."""
    settings: str | None = None
    """How many settings the log prints, how many of them were compared with the recipe, and names of unknown ones."""
    unjudged: Mapping[str, Metric] = {}
    """Metrics read from the log of a command whose run cannot be judged: evidence, not used for a verdict."""
    problem: Problem | None = None
    """Kind, message and log of the reason why the run cannot be judged; null for a sane run."""


class RunRecord(RunOutcome, RunAttempts, RunTraces, RunIdentity, Record):
    """One execution of one recipe, whole: what was planned, what its launches left, and what its logs show."""

    about = "run"
    title = "run record"

    @classmethod
    def of(cls, identity: RunIdentity, *parts: RunTraces | RunAttempts | RunOutcome) -> Self:
        """Put a record together from its parts; a run that never began has an identity alone."""
        return cls(**{name: value for part in (identity, *parts) for name, value in part})

    @property
    def name(self) -> str:
        """The run's key."""
        return self.key

    @property
    def series(self) -> str:
        """Key of the first of the runs that are judged together with it."""
        return self.key.removesuffix(f"-repeat{self.repeat}") if self.repeat > 1 else self.key

    @property
    def topology(self) -> Topology:
        """The shape of the run."""
        ranks = max(self.ranks // self.nodes, 1)
        return Topology(nodes=self.nodes, gpus_per_node=self.gpus // self.nodes, cpu_ranks_per_node=ranks)

    @property
    def work(self) -> dict[str, str]:
        """The work of the run in words: engine, model, batch, precision, layout and steps."""
        recipe, done = self.recipe, max((step.step for step in self.steps), default=0)
        model, layout_, tokens = recipe.model, recipe.parallelism, recipe.sequence_length
        parts = (f"tensor {layout_.tensor}", f"pipeline {layout_.pipeline}", f"sharding {layout_.sharding}")
        return {
            "engine": recipe.engine,
            "model": f"{model.layers} layers, hidden size {model.hidden_size}, {model.attention_heads} heads, "
            f"{model.vocab_size} words",
            "batch": f"{recipe.global_batch_size} sequences of {tokens} tokens, {recipe.micro_batch_size} at a time",
            "precision": recipe.precision,
            "layout": ", ".join(parts),
            "steps": f"{done} of {recipe.steps}, judged from step {recipe.warm_up.steps + 1}",
            **({"trained": self.trained} if self.trained is not None else {}),
            **({"judged": self.as_recorded} if self.as_recorded is not None else {}),
        }

    @property
    def trained(self) -> str | None:
        """The first rank's count of layers in 8 bits, and the choice of `activation_checkpointing: auto`."""
        counts = next((info.training for info in self.rank_info if info.training is not None), None)
        if counts is None:
            return None
        layers, words = counts.products or {}, list[str]()
        if layers:
            total = sum(layers.values())
            words = [f"{number} of {total} linear layers of the blocks in {name}" for name, number in layers.items()]
            words.append("embedding and output layer in bf16")
        if self.recipe.parallelism.activation_checkpointing == "auto":
            words.append(f"recomputed: {counts.activation_checkpointing}")
            if (batch := counts.micro_batch_size) is not None:
                words.append(f"{counted(batch, 'sequence')} in each micro batch")
        return "; ".join(words) or None

    @property
    def was_cut_short(self) -> bool:
        """True if it was ended, or never begun, as the session ended."""
        return self.problem is not None and self.problem.kind == "session_ended"

    @property
    def took_s(self) -> float:
        """Seconds from start to end, without the wait in the queue; 0 if it did not start."""
        began, ended = self.timings.started or self.timings.submitted, self.timings.ended
        return ended - began if began is not None and ended is not None else 0.0

    @property
    def steady_steps(self) -> int | None:
        """Number of steps in the steady part; None without one."""
        return None if self.steady is None else self.steady.judged * min(step.interval for step in self.steps)

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


Property = str | int | float | bool | None


class RecordedClause(Strict):
    """One clause of `--llmbench-require FILE`."""

    name: str
    """Number or name of the clause in the contract."""
    tests: tuple[str, ...]
    """Node ids, names of tests, or patterns of either."""
    verdict: Verdict
    """Worst verdict of the clause's tests, or INCOMPLETE."""
    reason: str = ""
    """Reason for INCOMPLETE; else empty."""


class SessionVerdicts(Document):
    """All verdicts of a session."""

    title = "verdicts of a session"
    session: str
    """Id of the session."""
    facts: Mapping[str, str] = {}
    """Properties of the whole session, as in the JUnit report."""
    tests: tuple[Mapping[str, Property], ...] = ()
    """Properties of each test, and of each compared group of nodes; the name is under `test`."""
    clauses: tuple[RecordedClause, ...] = ()
    """Verdict of each required clause."""
    notes: tuple[str, ...] = ()
    """Lines about verdicts that are missing, such as the runs of which no speed was judged."""

    @property
    def digest(self) -> dict[str, str]:
        """The suite property of the JUnit report that covers all properties of the tests."""
        #: suite property verdicts_sha256: digest of the tests in `verdicts.json`
        return {"verdicts_sha256": hashlib.sha256(self.model_dump_json(include={"tests"}).encode()).hexdigest()}


def iso(unix: float | None) -> str | None:
    """A Unix time as ISO 8601, in the zone of this machine; None for None."""
    return None if unix is None else dt.datetime.fromtimestamp(unix).astimezone().isoformat(timespec="milliseconds")


def write_model(path: Path, model: BaseModel) -> str:
    """Write a model as JSON so that a reader sees the whole of it or nothing; return the text."""
    text = to_json(model, indent=1) + "\n"
    write_text(path, text, mode=PRIVATE)
    return text
