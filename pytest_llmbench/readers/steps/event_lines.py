"""The files of step logs, and their lines one by one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.step_events import Event, parse_event

_FILE = re.compile(r"rank-([0-9]{5}|[1-9][0-9]{5,8})\.jsonl")
_LONGEST_LINE = 65536


@dataclass(frozen=True, kw_only=True, slots=True)
class EventLine:
    """One line of a rank's log.

    Attributes:
        number: 1-based.
        event: its content; None where it is not exactly one event.
        why: the reason if it is not readable.
    """

    number: int
    event: Event | None
    why: str = ""


def rank_logs(folder: Path) -> list[tuple[int, Path]]:
    """Rank and log of every rank that has one, in order.

    Args:
        folder: the run's folder, with `steps/rank-00000.jsonl` and so on.
    """
    try:
        paths = list((folder / layout.STEPS).iterdir())
    except OSError:
        return []
    return sorted((int(match[1]), path) for path in paths if (match := _FILE.fullmatch(path.name)))


def strange_files(folder: Path) -> list[str]:
    """Names of files next to the logs of ranks that are not logs, such as the log of a rank that began again.

    What is hidden is left out: file systems leave such files behind.
    """
    try:
        names = sorted(path.name for path in (folder / layout.STEPS).iterdir())
    except OSError:
        return []
    return [name for name in names if not _FILE.fullmatch(name) and not name.startswith(".")]


def event_lines(path: Path) -> Iterator[EventLine]:
    """Yield every line of a rank's log, whatever its bytes are.

    Raises:
        OSError: the file cannot be read on.
    """
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_LONGEST_LINE):
            number += 1
            yield _line(number, line)
            while not line.endswith(b"\n") and (line := file.readline(_LONGEST_LINE)):
                pass  # the rest of a line that is too long


def _line(number: int, line: bytes) -> EventLine:
    if not line.endswith(b"\n"):
        return EventLine(number=number, event=None, why="cut off" if len(line) < _LONGEST_LINE else "too long")
    try:
        return EventLine(number=number, event=parse_event(line))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        why = ": ".join([".".join(map(str, problem["loc"])), problem["msg"]]).removeprefix(": ")
        return EventLine(number=number, event=None, why=why)
