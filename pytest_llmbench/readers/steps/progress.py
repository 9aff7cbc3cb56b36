"""Reads step logs line by line, and the progress of a run at constant cost."""

import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from pytest_llmbench.core.plain import read_json
from pytest_llmbench.core.quantity import listed
from pytest_llmbench.core.record.series import Progress
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.step_events import PHASES, Event, StartEvent, StepEvent, parse_event

_FILE = re.compile(r"rank-([0-9]{5}|[1-9][0-9]{5,8})\.jsonl")
_LONGEST_LINE = 65536
_NAMED = 8


def rank_logs(folder: Path) -> list[tuple[int, Path]]:
    """Rank and path of every step log of a run (`steps/rank-00000.jsonl`, ...), in the order of ranks."""
    return sorted((int(match[1]), path) for path in _step_files(folder) if (match := _FILE.fullmatch(path.name)))


def strange_files(folder: Path) -> list[str]:
    """Return the names of other files in the folder of the ranks' logs, such as the log of a restarted rank.

    Hidden files are left out, as file systems leave such files behind.
    """
    names = sorted(path.name for path in _step_files(folder))
    return [name for name in names if not _FILE.fullmatch(name) and not name.startswith(".")]


def _step_files(folder: Path) -> list[Path]:
    with suppress(OSError):
        return list((folder / layout.STEPS).iterdir())
    return []


def event_lines(path: Path) -> Iterator[tuple[int, Event | str]]:
    """Yield the number of every line of a rank's log, and its event, or the reason why it is unreadable.

    Raises OSError if reading fails, perhaps after some lines.
    """
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_LONGEST_LINE):
            number += 1
            yield number, _event(line)
            while not line.endswith(b"\n") and (line := file.readline(_LONGEST_LINE)):
                pass  # the rest of a line that is too long


def _event(line: bytes) -> Event | str:
    if not line.endswith(b"\n"):
        return "cut off" if len(line) < _LONGEST_LINE else "too long"
    try:
        event = parse_event(line)
        read_json(line, once=True)  # refuses duplicate keys, of which pydantic takes the last
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        return ": ".join([".".join(map(str, problem["loc"])), problem["msg"]]).removeprefix(": ")
    except ValueError as error:
        return str(error)
    return event


# Longer than the longest event (the text of a failure) and than the samples of minutes, so it includes a step.
_TAIL_BYTES = 1 << 17


def last_step(folder: Path) -> Progress | None:
    """Read the last complete step line of rank 0, for the display; None before its first step."""
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
class RankPhase:
    """The phase, one of `core.wire.step_events.PHASES`, that a rank reports.

    `step` is 0 before the first step, `micro_batch` 0 outside of micro batches.
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


def phases(folder: Path) -> dict[int, RankPhase]:
    """Read the phase that every rank reports, by rank."""
    reported = {}
    for path in sorted((folder / layout.PHASES).glob("*")):
        try:
            step, phase, micro_batch = path.read_text(encoding="ascii").split()
            rank = int(path.name.rpartition("-")[2])
            reported[rank] = RankPhase(step=int(step), phase=phase, micro_batch=int(micro_batch))
        except (OSError, ValueError):
            continue  # the rank is writing it at this moment
    return reported


def laggards(folder: Path) -> str:
    """Describe the ranks that are behind the others, with their hosts and phases."""
    standing = phases(folder)
    if not standing:
        return "no rank said where it stands"
    behind = min(standing.values(), key=lambda rank_phase: rank_phase.position)
    ahead = max(standing.values(), key=lambda rank_phase: rank_phase.position)
    if behind.position == ahead.position:
        return f"all {len(standing)} ranks stand in {behind}"
    slow = [rank for rank, rank_phase in standing.items() if rank_phase.position == behind.position]
    stand = "stand" if len(slow) > 1 else "stands"
    return f"{name_ranks(folder, slow)} {stand} in {behind}, while others wait in {ahead}"


def name_ranks(folder: Path, ranks: Sequence[int]) -> str:
    """Name ranks with their hosts: a single rank with GPU and process, many with the hosts of the first few."""
    starts = [start for rank in ranks[:_NAMED] if (start := _start(folder, rank)) is not None]
    hosts = ", ".join(dict.fromkeys(start.node or start.host for start in starts))
    where = f" on {hosts}" if hosts else ""
    if len(ranks) > 1:
        return f"ranks {listed(ranks, _NAMED)}{where}"
    own = [*(start.gpu for start in starts if start.gpu), *(f"pid {start.pid}" for start in starts)]
    return f"rank {ranks[0]}{where}" + (f" ({', '.join(own)})" if own else "")


def _start(folder: Path, rank: int) -> StartEvent | None:
    with suppress(OSError):
        for _, event in event_lines(folder / layout.STEPS / layout.step_log(rank)):
            return event if isinstance(event, StartEvent) else None
    return None
