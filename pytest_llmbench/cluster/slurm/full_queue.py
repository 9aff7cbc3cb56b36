"""Limits of the queue: jobs that Slurm refuses because it is full, and jobs that wait in it for too long."""

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pytest_llmbench.cluster.slurm.background import BackgroundCall
from pytest_llmbench.cluster.slurm.commands import QueueFullError
from pytest_llmbench.cluster.slurm.queries import SHORT_WAIT_S, GroupLimit, SlurmQueries
from pytest_llmbench.cluster.slurm.queue import Slurm
from pytest_llmbench.cluster.slurm.states import JobState, JobStatus, OurJob, is_hopeless
from pytest_llmbench.core.durations import format_minutes
from pytest_llmbench.core.errors import ClusterError

_MINUTE_S = 60.0
# A cancellation that failed, or was without effect, is tried again after this.
_AGAIN_S = 30.0
# A limit on the jobs of one user, or of one user in an account; and for how long none of them has run until a job that
# waits for it is given up: it alone exceeds the limit. Slurm may look at a job again only after minutes.
_OF_A_USER = re.compile(r"(?:Assoc(?!Grp)|QOSMax\w+PerUser)\w*")
_ALONE_S = 600.0
# A limit on all jobs of an account or a QOS together.
_OF_A_GROUP = re.compile(r"(?P<kind>Assoc|QOS)Grp\w+")
# Refusals in a row with an empty queue until waiting is given up: a job may end between a refusal and the look at it.
_SURE = 3


@dataclass
class FullQueue:
    """Decides for how long jobs are held back that Slurm refuses because its queue is full."""

    queries: SlurmQueries
    longest_min: int | None  # how long a job may be held back, minutes; None for any time
    say: Callable[[str], None]  # called once for each limit
    slurm: Mapping[str, str] = field(default_factory=dict)  # options of the jobs
    _since: dict[str, float] = field(default_factory=dict)
    _without_jobs: dict[str, int] = field(default_factory=dict)
    _named: set[str] = field(default_factory=set)

    def note_refused(self, name: str, error: QueueFullError, *, ours: int) -> str:
        """Note that a job was refused; return the reason to give it up, or an empty text to hold it back.

        A limit that refuses jobs also while the queue is empty will always do so: waiting is useless.
        `ours` is the number of jobs of this session that are in the queue.
        """
        now = time.monotonic()
        since = self._since.setdefault(name, now)
        if self.longest_min is not None and now - since > _MINUTE_S * self.longest_min:
            return f"{error}: it was held back for longer than --llmbench-max-wait {format_minutes(self.longest_min)}"
        if error.limit not in self._named and (reason := self._closed(error.limit)):
            return f"{error}: {reason}, so none of its jobs is ever accepted: use another"
        counts = bool(ours) or not error.counts_this_user  # jobs of others count, which Slurm may hide
        if not counts:
            answer, failed = self.queries.answer(["squeue", "--noheader", f"--user={os.getuid()}", "--format=%i"])
            counts = bool(failed or answer.split())
        self._without_jobs[name] = 0 if counts else self._without_jobs.get(name, 0) + 1
        if self._without_jobs[name] >= _SURE:
            return f"{error}; and no job is in the queue that could count: the limit lets none in, so ask for another"
        if error.limit not in self._named:
            self._named.add(error.limit)
            self.say(f"held back until a job has ended: {error}")
        return ""

    def _closed(self, limit: str) -> str:
        """The closed account or QOS; empty for any other limit."""
        if (group := _OF_A_GROUP.fullmatch(limit)) is None:
            return ""
        limits = self.queries.group_limits(self.slurm.get("account", ""), self.slurm.get("qos", ""), {})
        closed = (f"{found.name} of {found.place} is 0" for found in _of_kind(group, limits) if not found.most)
        return next((text for text in closed if text.startswith("GrpSubmitJobs ")), "")

    def note_accepted(self, name: str) -> None:
        """Note that Slurm has taken a job."""
        self._since.pop(name, None)
        self._without_jobs.pop(name, None)


def _of_kind(group: re.Match[str], limits: Iterable[GroupLimit]) -> list[GroupLimit]:
    """The limits of QOS or of accounts, whichever Slurm's reason names."""
    return [limit for limit in limits if limit.place.startswith("QOS") == (group["kind"] == "QOS")]


@dataclass
class QueueLimit:
    """The longest wait in the queue, `--llmbench-max-wait`: a job that waited longer and has not begun is cancelled."""

    slurm: Slurm
    longest_min: int | None  # how long a job may wait, minutes; None for any time
    _asked: dict[OurJob, float] = field(default_factory=dict)
    _reasons: dict[OurJob, str] = field(default_factory=dict)
    _looked: float = float("-inf")
    _alone: float = float("inf")  # since when no job of this user has run, as far as it was looked for
    _of_groups: dict[tuple[str, str], tuple[float, str]] = field(default_factory=dict)
    _named: set[str] = field(default_factory=set)

    def why_never(self, job_id: str, reason: str) -> str:
        """The reason for which a waiting job will never start: its own shape, or a limit; empty while it may start."""
        first = reason.partition(",")[0]
        if is_hopeless(reason) or (_OF_A_USER.fullmatch(first) is not None and self._waits_alone()):
            return reason
        return "" if (group := _OF_A_GROUP.fullmatch(first)) is None else self._exceeds(job_id, group)

    def _exceeds(self, job_id: str, group: re.Match[str]) -> str:
        """The limit of an account or a QOS that a job alone exceeds; else empty, with one note on its wait."""
        asked, why = self._of_groups.get((job_id, group[0]), (float("-inf"), ""))
        if time.monotonic() - asked < _AGAIN_S:
            return why
        full = [
            limit for limit in _of_kind(group, self.slurm.queries.limits_of(job_id))
            if limit.needed and limit.used + limit.needed > limit.most and limit.name != "GrpSubmitJobs"
        ]  # fmt: skip
        alone = [limit for limit in full if limit.needed > limit.most]
        why = f"{group[0]}: {'; '.join(map(str, alone))}" if alone else ""
        self._of_groups[job_id, group[0]] = time.monotonic(), why
        if not why and group[0] not in self._named:
            self._named.add(group[0])
            others = "; ".join(map(str, full)) or "`scontrol show assoc_mgr` hides which one from this user"
            self.slurm.notes.append(f"job {job_id} waits for its group to use less ({group[0]}): {others}")
        return why

    def _waits_alone(self) -> bool:
        """True if no job of this user has run for long, so that a limit on them is exceeded by a waiting one alone."""
        now = time.monotonic()
        if (since := now - self._looked) >= _AGAIN_S:
            self._looked = now
            states = "RUNNING,SUSPENDED,CONFIGURING,COMPLETING"
            which = (f"--user={os.getuid()}", f"--states={states}", "--format=%i")
            answer, failed = self.slurm.queries.answer(["squeue", "--noheader", *which], SHORT_WAIT_S)
            if failed or answer.split():
                self._alone = float("inf")
            elif self._alone > now or since > 2 * _AGAIN_S:
                self._alone = now
        return now - self._alone >= _ALONE_S

    def enforce(self, job: OurJob) -> None:
        """Cancel a watched job that has waited for too long, without waiting long for Slurm's answer.

        A silent controller may have started it: it is cancelled only while Slurm shows that it still waits.
        """
        longest, now = self.longest_min, time.monotonic()
        if longest is None or self.slurm.silent or self.slurm.waited_s(job) <= _MINUTE_S * longest:
            return
        if job in self._asked and now - self._asked[job] < _AGAIN_S:
            return
        self._asked[job] = now
        reason = self.slurm.status(job).reason or "none given"
        self._reasons[job] = (
            f"Slurm job {job.id} waited in the queue for longer than --llmbench-max-wait {format_minutes(longest)}, "
            f"and was cancelled (Slurm's reason of its waiting: {reason}): give a longer --llmbench-max-wait, fewer "
            "--nodes, or another --partition or --slurm qos=NAME"
        )

        def cancel() -> None:
            try:
                self.slurm.cancel_waiting(job)
            except ClusterError as error:
                self.slurm.notes.append(f"Slurm job {job.id} waited for too long, and is not cancelled yet: {error}")

        BackgroundCall(cancel, "scancel").is_over(SHORT_WAIT_S)

    def reason_of_end(self, job: OurJob, status: JobStatus) -> str:
        """The reason for the end of a job that was cancelled for its long wait; empty for any other job."""
        return self._reasons.get(job, "") if status.state in {JobState.CANCELLED, JobState.LOST} else ""
