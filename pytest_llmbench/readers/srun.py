"""Reads the messages of srun about tasks that end with an error.

    srun: error: n4: task 6: Killed
    srun: launch/slurm: _step_signal: Terminating StepId=17.0
    slurmstepd-n1: error: *** STEP 17.0 ON n1 CANCELLED AT 2026-11-23T03:11:26 ***
    srun: error: n1: tasks 0-1: Terminated

Tasks listed before srun begins to end the step are the cause; srun then ends all others and lists them in the same
words. If a user or Slurm ends a step, the message about that comes before those about its tasks:

    srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
    slurmstepd-n3: error: *** STEP 77.0 ON n3 CANCELLED AT 2026-11-23T03:29:08 DUE TO TIME LIMIT ***
    srun: error: n3: task 0: Killed
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import takewhile

_ENDED = re.compile(r"srun: error: (?P<host>\S+): tasks? (?P<tasks>[\d,-]+): (?P<how>\S.*)", re.ASCII)
_RANGE, _MOST_TASKS = re.compile(r"(?<![\d-])(\d{1,9})(?:-(\d{1,9}))?(?![\d-])", re.ASCII), 1_000_000
_ENDING = re.compile(r"Terminating StepId=|\*\*\* STEP \S+ (?:ON \S+ )?CANCELLED AT")
_ABORTED = re.compile(r"srun: (?:error: )?Job step aborted")
_CANCELLED = re.compile(r"\*\*\* (?:STEP|JOB) \S+ (?:ON \S+ )?CANCELLED AT \S+(?: DUE TO (?P<why>.+?))? \*\*\*")
_NODE_FAILURE = re.compile(r"srun: error: Node failure on (?P<node>[\w.\[\],-]+)")
_BLAMED = re.compile(
    r"^(?:srun|salloc|sbatch|slurmstepd\S*|slurmd\S*): error: (?:Node failure on|Task launch for \S+ failed on node) "
    r"(?P<node>[\w.\[\],-]+?)(?::|,|\s|$)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class EndedTasks:
    """Tasks of one node that ended in one way: their numbers, and srun's line about them."""

    ranks: frozenset[int]
    line: str


def first_to_end(text: str) -> tuple[EndedTasks, ...]:
    """Return the tasks that ended by themselves, before srun ended the rest; empty if srun lists none of them."""
    lines = takewhile(lambda line: not _ENDING.search(line), text.splitlines())
    ended = ((_ENDED.search(line), line.strip()) for line in lines)
    return tuple(EndedTasks(frozenset(_numbers(match["tasks"])), line) for match, line in ended if match)


def cancel_reason(text: str) -> str | None:
    """Slurm's reason for an end from outside, which may be empty; None for a step that ended by itself."""
    aborted = False
    for line in text.splitlines():
        if match := _CANCELLED.search(line):
            return match["why"] or ""
        if _ENDED.search(line) or _ENDING.search(line):
            break
        aborted = aborted or _ABORTED.search(line) is not None
    return "" if aborted else None


def failed_node(text: str) -> str | None:
    """The node that failed by srun's messages; None without such a message."""
    match = _NODE_FAILURE.search(text)
    return match["node"] if match else None


def blamed_node(text: str, hosts: Collection[str]) -> str | None:
    """The one node that Slurm's messages blame, if it is one of these hosts; None otherwise."""
    (named, *others) = {match["node"] for match in _BLAMED.finditer(text)} or {""}
    return named if named in hosts and not others else None


def _numbers(ranges: str) -> Iterator[int]:
    """Expand `0,2-3`. Numbers beyond the tasks of a Slurm step are dropped, as a damaged line may name billions."""
    for first, last in _RANGE.findall(ranges):
        if int(last or first) < _MOST_TASKS:
            yield from range(int(first), int(last or first) + 1)
