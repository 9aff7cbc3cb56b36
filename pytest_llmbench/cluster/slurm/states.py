"""Jobs as squeue and sacct show them: their states, and whether one is the job that is meant."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Self

from pytest_llmbench.cluster.slurm.commands import plain

# Separators before and between the fields of an answer: control characters, which comments and reasons lack.
RECORD, FIELD = "\x1e", "\x1f"
SQUEUE_FIELDS = ("%i", "%T", "%r", "%N", "%V", "%U", "%j", "%o", "%S", "%k")
SACCT_FIELDS = ("JobIDRaw", "State", "Reason", "NodeList", "Submit", "UID", "JobName", "Comment")

# A pending job with one of these reasons waits for an administrator rather than for nodes.
_HOPELESS = {
    "AccountNotAllowed", "BadConstraints", "DependencyNeverSatisfied", "InvalidAccount", "InvalidQOS", "JobHeldAdmin",
    "JobHeldUser", "JobHoldMaxRequeue", "MaxMemPerLimit", "PartitionConfig", "PartitionInactive", "PartitionNodeLimit",
    "PartitionTimeLimit", "QOSNotAllowed", "ReservationDeleted", "job_requeued_in_held_state",
    "launch_failed_requeued_held",
}  # fmt: skip
# A limit on one job, such as QOSMaxNodePerJobLimit; others fall when other jobs of the user or account end.
_LIMIT_OF_A_JOB = re.compile(r"(?:Assoc|QOS)(?:Max\w*Per(?:Job|Node)(?:Limit)?|Min\w+)")


def is_hopeless(reason: str) -> bool:
    """True if a job that waits for this reason, in Slurm's words, will wait for ever as it is."""
    first = reason.partition(",")[0]
    return first in _HOPELESS or _LIMIT_OF_A_JOB.fullmatch(first) is not None


class JobState(StrEnum):
    """Slurm's job states, as far as they are treated differently; LOST is a job that Slurm has forgotten."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    PREEMPTED = "PREEMPTED"
    LOST = "LOST"


_ALIVE = {JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED}
_STATE_WORDS: Mapping[str, JobState] = {
    **{state.value: state for state in JobState},
    **dict.fromkeys(("CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"), JobState.PENDING),
    **dict.fromkeys(("SPECIAL_EXIT", "EXPEDITING", "LAUNCH_FAILED", "POWER_UP_NODE"), JobState.PENDING),
    **dict.fromkeys(("SIGNALING", "RESIZING", "STAGE_OUT", "COMPLETING", "UPDATE_DB"), JobState.RUNNING),
    "STOPPED": JobState.SUSPENDED,
    **dict.fromkeys(("BOOT_FAIL", "RECONFIG_FAIL"), JobState.NODE_FAIL),
    "DEADLINE": JobState.TIMEOUT,
    "REVOKED": JobState.CANCELLED,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStatus:
    """Slurm's answer about one job."""

    state: JobState
    reason: str = ""  # the reason why it is pending or ended, in Slurm's word
    nodelist: str = ""  # its nodes in Slurm's notation, empty while it is pending
    word: str = ""  # the state as Slurm printed it
    # Unix time at which Slurm expects to start it; None without a forecast, and after its start. Two answers that
    # differ in it alone are equal, because it is only a guess.
    starts: float | None = field(default=None, compare=False)
    # Its nodes that Slurm shows as failed, after it ended for a failed node.
    failed: tuple[str, ...] = field(default=(), compare=False)

    @property
    def alive(self) -> bool:
        """True if the job waits, runs or is suspended."""
        return self.state in _ALIVE


def judge_holder(status: JobStatus) -> JobStatus:
    """The status of a job that holds nodes and has run.

    It lost its first node if its script is missing there. If it waits, the controller has forgotten its start: Slurm
    takes its nodes for free, and slurmd ends its steps.
    """
    if status.state is JobState.PENDING:
        reason = "it waits in the queue again: Slurm's controller was killed before it had saved its start"
        return JobStatus(state=JobState.LOST, reason=reason)
    if status.state is JobState.FAILED and status.reason == "JobLaunchFailure":
        return replace(status, state=JobState.NODE_FAIL, reason="JobLaunchFailure: its first node has lost its script")
    return status


def parse_state(word: str) -> JobState:
    """Read a state as squeue or sacct print it (`CANCELLED by 1000`, `COMPLETED+`)."""
    name = word.split(maxsplit=1)[0].rstrip("+") if word.split() else ""
    return _STATE_WORDS.get(name, JobState.LOST)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobIdentity:
    """The marks by which a job is recognised. Its submit time is added as soon as it was seen."""

    token: str = ""  # the first word of its comment; empty for the job that pytest itself runs inside
    name: str = ""  # its name; likewise
    uid: str = ""  # the number of its user; empty where the token is enough
    script: str = ""  # its submission script, which lies in the session's folder: sites rewrite comments


@dataclass(frozen=True, slots=True)
class OurJob:
    """A job with all that distinguishes it from others: Slurm may give its id out again, even within one session."""

    id: str
    identity: JobIdentity


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRow:
    """One job as squeue or sacct shows it; its script comes from squeue alone."""

    job_id: str
    status: JobStatus
    submitted: str
    uid: str
    name: str
    script: str
    comment: str

    def fits(self, identity: JobIdentity, submitted: str) -> bool:
        """True if this is the job that is meant, as squeue shows it: people and sites change a name, or a comment.

        Two of name, token and script are enough.
        """
        script = bool(identity.script) and self.script == identity.script
        marks = (identity.name in {"", self.name}, not self.was_rewritten(identity), script)
        return sum(marks) > 1 and self._is_like(identity, submitted)

    def ends(self, identity: JobIdentity, submitted: str, shown: Self | None) -> bool:
        """True if this is the job that is meant, as sacct shows it, which may have dropped its comment.

        `shown` is the job as squeue has last shown it.
        """
        changed = shown is not None and self.comment == shown.comment
        kept = not self.comment.split() or not self.was_rewritten(identity) or changed
        named = identity.name in {"", self.name} or (shown is not None and self.name == shown.name)
        return kept and named and self._is_like(identity, submitted)

    def was_rewritten(self, identity: JobIdentity) -> bool:
        """True if its comment lacks the token that it should have: a site may rewrite comments."""
        return bool(identity.token) and self.comment.split()[:1] != [identity.token]

    def _is_like(self, identity: JobIdentity, submitted: str) -> bool:
        return identity.uid in {"", self.uid} and submitted in {"", self.submitted}

    @property
    def description(self) -> str:
        """The job, for people."""
        return f"{plain(self.name)!r}, submitted {self.submitted} by user {self.uid}"


def job_rows(records: Iterable[str]) -> Iterator[JobRow]:
    """Read jobs. The comment is the last field, so that a separator in it leaves the others intact."""
    for record in records:
        fields = record.removesuffix("\n").split(FIELD, len(SQUEUE_FIELDS) - 1)
        if len(fields) != len(SQUEUE_FIELDS):
            continue
        job_id, word, reason, nodelist, submitted, uid, name, script, starts, comment = fields
        state = parse_state(word)
        begin = None
        with contextlib.suppress(ValueError, OverflowError):  # in the time zone of this process
            begin = datetime.fromisoformat(starts).timestamp() if state is JobState.PENDING else None
        status = JobStatus(
            state=state, reason="" if reason == "None" else plain(reason), word=plain(word), starts=begin,
            nodelist="" if nodelist == "None assigned" else nodelist,
        )  # fmt: skip
        yield JobRow(
            job_id=job_id, status=status, submitted=submitted, uid=uid, name=name, script=script,
            comment="" if comment == "(null)" else comment,
        )  # fmt: skip


def parse_duration(text: str) -> float | None:
    """Read `[days-]hours:minutes:seconds`."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+(?:\.\d+)?)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return 86400 * days + 3600 * hours + 60 * minutes + seconds


def parse_time(text: str) -> str:
    """A time as Slurm prints it; empty for its words for a missing time."""
    return "" if text in {"None", "Unknown", "N/A"} else text
