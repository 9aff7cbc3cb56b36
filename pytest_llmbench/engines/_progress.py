"""How far a run is, at constant cost: the last line of rank 0's log and one small file per rank."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

_TAIL_BYTES = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """The last step that rank 0 logged.

    Attributes:
        step: its number.
        seconds: how long it took.
        tokens: its tokens on rank 0.
    """

    step: int
    seconds: float
    tokens: int


def last_step(folder: Path) -> Progress | None:
    """Read the last whole step line of rank 0, or None before its first step. For display, not for judging."""
    try:
        with (folder / "steps" / "rank-00000.jsonl").open("rb") as log:
            log.seek(-min(_TAIL_BYTES, log.seek(0, os.SEEK_END)), os.SEEK_END)
            lines = log.read().split(b"\n")[:-1]
    except OSError:
        return None
    for line in reversed(lines):
        try:
            event = json.loads(line)
            if event["event"] == "step":
                return Progress(
                    step=int(event["step"]), seconds=float(event["seconds"]), tokens=int(event["tokens"])
                )
        except (ValueError, TypeError, KeyError):
            continue
    return None


def phases(folder: Path) -> dict[int, tuple[int, str]]:
    """Read what every rank says it is doing: rank to (step, phase), such as `(7, "forward")`."""
    found = {}
    for path in sorted((folder / "phase").glob("rank-*")):
        try:
            step, phase = path.read_text(encoding="ascii").split()
            found[int(path.name.removeprefix("rank-"))] = (int(step), phase)
        except (OSError, ValueError):
            continue  # being written just now
    return found


_ORDER = ("start", "matmul", "data", "forward", "backward", "optimizer", "done")


def laggards(folder: Path) -> str:
    """Say which ranks are behind the others, and where each stands."""
    standing = phases(folder)
    if not standing:
        return "no rank said where it stands"
    position = {
        rank: (step, _ORDER.index(phase) if phase in _ORDER else -1)
        for rank, (step, phase) in standing.items()
    }
    behind, ahead = min(position.values()), max(position.values())
    slow = [rank for rank, where in position.items() if where == behind]
    step, phase = standing[slow[0]]
    if behind == ahead:
        return f"all {len(standing)} ranks stand in {phase} of step {step}"
    named = ", ".join(map(str, slow[:8])) + (f" and {len(slow) - 8} more" if len(slow) > 8 else "")
    front_step, front_phase = standing[max(position, key=lambda rank: position[rank])]
    return (
        f"rank{'s' if len(slow) > 1 else ''} {named} stand{'' if len(slow) > 1 else 's'} in {phase} of step {step}, "
        f"while others wait in {front_phase} of step {front_step}"
    )
