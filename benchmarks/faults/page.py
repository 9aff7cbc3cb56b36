"""The campaign as a page of docs/measurements."""

from __future__ import annotations

import datetime as dt
import os
import platform
from collections import Counter
from collections.abc import Iterable

import pytest

from benchmarks.faults.judging import Line
from benchmarks.faults.scenes import Fault
from tests.slurm.conftest import Queue

ABOUT = """\
A fault is sound if every one of its expectations is met: the verdict of its test, the kind of problem in its
record, the words in the message and on the terminal, the exit status of pytest, no metric of a run that
cannot be judged, and, a minute after the end, no job in the queue and no process of the session. A fault that
could not strike, or of which nothing could be compared, is an error, and is not sound. The seed decides after
how many steps a fault strikes, another number in each repetition. Many faults share a session with others,
each with a run of its own; the exit status is then that of the session.
"""


def page(faults: Iterable[Fault], lines: list[Line], command: str) -> str:
    """Markdown: what was done, on what, and a row for each fault.

    Args:
        faults: all that are declared; one without a line is shown as not run.
        lines: those of all repetitions.
        command: what has made them.
    """
    rows = [row(fault, [line for line in lines if line.fault == fault.name]) for fault in faults]
    sound = sum(line.outcome == "sound" for line in lines)
    return "\n".join(
        [
            "# Faults on a real Slurm",
            "",
            "Faults that are caused on purpose, each with the outcome that it must have and the one that it had.",
            "",
            "| | |",
            "|---|---|",
            f"| Date | {dt.datetime.now(tz=dt.UTC):%Y-%m-%d} |",
            f"| Machine | {os.cpu_count()} cores of a virtual machine, {platform.machine()}, no GPU |",
            f"| Versions | {versions()} |",
            f"| Command | `{command}` |",
            f"| Sound | {sound} of {len(lines)} repetitions of {len(rows)} faults |",
            "",
            "| Fault | Family | Done | Expected | Seen | Sound |",
            "|---|---|---|---|---|--:|",
            *rows,
            "",
            ABOUT,
        ]
    )


def row(fault: Fault, lines: list[Line]) -> str:
    """A row of the table."""
    seen = Counter(line.seen if line.outcome == "sound" else f"{line.seen} ({line.why})" for line in lines)
    told = ", ".join(text if len(seen) == 1 else f"{count} × {text}" for text, count in seen.items()) or "not run"
    sound = sum(line.outcome == "sound" for line in lines)
    cells = (f"`{fault.name}`", fault.family, fault.done, str(fault.expected), told, f"{sound} of {len(lines)}")
    return f"| {' | '.join(' '.join(cell.split()).replace('|', '/') for cell in cells)} |"


def versions() -> str:
    """Of what takes part."""
    slurm = Queue.run("sinfo", "--version").split()[-1]
    return (
        f"Slurm {slurm} of `tools/slurm/up.sh` with eight nodes on this machine, "
        f"Python {platform.python_version()}, pytest {pytest.__version__}"
    )
