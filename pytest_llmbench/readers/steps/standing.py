"""Progress of a run, at constant cost: the last line of rank 0's log and one small file per rank."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from pytest_llmbench.core.record.series import Progress
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.step_events import PHASES, StepEvent, parse_event

# More than the longest event, a failure's text, and than the samples of minutes, so that the step before is found.
_TAIL_BYTES = 1 << 17


def last_step(folder: Path) -> Progress | None:
    """Read the last whole step line of rank 0, or None before its first step. For display, not for judging."""
    try:
        with (folder / layout.STEPS / layout.step_log(0)).open("rb") as log:
            log.seek(-min(_TAIL_BYTES, log.seek(0, os.SEEK_END)), os.SEEK_END)
            lines = log.read().split(b"\n")[:-1]
    except OSError:
        return None
    for line in reversed(lines):
        try:
            event = parse_event(line)
        except ValidationError:
            continue
        if isinstance(event, StepEvent):
            return Progress(step=event.step, seconds=event.seconds)
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """The current phase of a rank, in its own words.

    Attributes:
        step: 1-based number, 0 before the first.
        phase: one of `core.step_events.PHASES`.
        micro_batch: 1-based number within the step, 0 outside of micro batches.
    """

    step: int
    phase: str
    micro_batch: int

    @property
    def position(self) -> tuple[int, float, int]:
        """Position in the order of time: the optimizer comes after every micro batch of its step."""
        order = PHASES.index(self.phase) if self.phase in PHASES else -1
        after_all = order >= PHASES.index("optimizer")
        return self.step, math.inf if after_all else self.micro_batch, order

    def __str__(self) -> str:
        micro_batch = f", micro batch {self.micro_batch}" if self.micro_batch else ""
        return f"{self.phase} of step {self.step}{micro_batch}"


def phases(folder: Path) -> dict[int, Standing]:
    """Read what every rank says it is doing, by rank."""
    found = {}
    for path in sorted((folder / layout.PHASES).glob("*")):
        try:
            step, phase, micro_batch = path.read_text(encoding="ascii").split()
            rank = int(path.name.rpartition("-")[2])
            found[rank] = Standing(step=int(step), phase=phase, micro_batch=int(micro_batch))
        except (OSError, ValueError):
            continue  # being written just now
    return found


def laggards(folder: Path) -> str:
    """Say which ranks are behind the others, and where each stands."""
    standing = phases(folder)
    if not standing:
        return "no rank said where it stands"
    behind = min(standing.values(), key=lambda each: each.position)
    ahead = max(standing.values(), key=lambda each: each.position)
    if behind.position == ahead.position:
        return f"all {len(standing)} ranks stand in {behind}"
    slow = [rank for rank, each in standing.items() if each.position == behind.position]
    named = ", ".join(map(str, slow[:8])) + (f" and {len(slow) - 8} more" if len(slow) > 8 else "")
    return (
        f"rank{'s' if len(slow) > 1 else ''} {named} stand{'' if len(slow) > 1 else 's'} in {behind}, "
        f"while others wait in {ahead}"
    )
