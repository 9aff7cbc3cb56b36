"""Past events of jobs that only `scontrol show job` shows: preemption and suspension."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pytest_llmbench.cluster.slurm.states import parse_time

#: Asks about many jobs by one process, which reads its requests from its input.
SHOW_JOBS = ("scontrol", "--oneliner")
# As `scontrol show job` has them, one job a line.
_JOB = re.compile(r"\bJobId=(\d+) .* SubmitTime=(\S+) ")
_STATE = re.compile(r" JobState=(\S+) ")
_MARKS = re.compile(r" PreemptTime=(?P<preempted>\S+) SuspendTime=(?P<suspended>\S+) SecsPreSuspend=")


@dataclass(frozen=True, kw_only=True, slots=True)
class JobMarks:
    """Past events of a job, each the time as Slurm prints it, or empty.

    Attributes:
        preempted: time at which a job of higher priority got its nodes; it may run on for a grace time.
        suspended: when it was last suspended, or resumed after that.
        state: its state, in Slurm's word, when this was asked for.
    """

    preempted: str = ""
    suspended: str = ""
    state: str = field(default="", compare=False)


def questions(job_ids: Iterable[str]) -> bytes:
    """The input of `SHOW_JOBS`."""
    return "".join(f"show job {job_id}\n" for job_id in job_ids).encode()


def marks_in(answer: str) -> Iterator[tuple[str, str, JobMarks]]:
    """The jobs in an answer: id, submit time and marks."""
    for line in answer.splitlines():
        job, marks = _JOB.search(line), _MARKS.search(line)
        if job is not None and marks is not None:
            preempted, suspended = parse_time(marks["preempted"]), parse_time(marks["suspended"])
            state = _STATE.search(line)
            yield (
                job[1],
                job[2],
                JobMarks(preempted=preempted, suspended=suspended, state=state[1] if state is not None else ""),
            )
