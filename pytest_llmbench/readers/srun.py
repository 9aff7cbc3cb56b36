"""What srun prints when tasks of a step end badly.

    srun: error: n4: task 6: Killed
    srun: launch/slurm: _step_signal: Terminating StepId=17.0
    slurmstepd-n1: error: *** STEP 17.0 ON n1 CANCELLED AT 2026-11-23T03:11:26 ***
    srun: error: n1: tasks 0-1: Terminated

The tasks before srun begins to end the step are the cause. It ends all others, and lists them in the same words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_ENDED = re.compile(r"srun: error: (?P<host>\S+): tasks? (?P<tasks>[\d,-]+): (?P<how>\S.*)", re.ASCII)
_ENDING = re.compile(r"Terminating StepId=|\*\*\* STEP \S+ ON \S+ CANCELLED AT")


@dataclass(frozen=True, slots=True)
class EndedTasks:
    """Tasks of one node that ended in one way.

    Attributes:
        ranks: their numbers.
        line: srun's line about them.
    """

    ranks: frozenset[int]
    line: str


def first_to_end(text: str) -> tuple[EndedTasks, ...]:
    """Return the tasks that ended by themselves, before srun ended the rest; empty where srun names none."""
    return tuple(_until_ending(text))


def _until_ending(text: str) -> Iterator[EndedTasks]:
    for line in text.splitlines():
        if _ENDING.search(line):
            return
        if match := _ENDED.search(line):
            yield EndedTasks(frozenset(_numbers(match["tasks"])), line.strip())


def _numbers(ranges: str) -> Iterator[int]:
    """Read `0,2-3`."""
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            yield from range(int(first), int(last or first) + 1)
