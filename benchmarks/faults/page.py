"""The campaign as a page of docs/measurements."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import pytest

from benchmarks.faults.judging import Line
from benchmarks.faults.scenes import Fault
from tests.slurm.conftest import Queue

# Text below this line of the page is written by hand, and stays when the page is written again.
HAND = "<!-- by hand -->"
ABOUT = """\
A fault is sound if every one of its expectations is met: the verdict of its test, the kind of problem in its
record, the words in the message and on the terminal, the exit status of pytest, no metric of a run that
cannot be judged, no job more than its record explains, and, a minute after the end, no job in the queue and no
process of the session. A fault that could not strike, or of which nothing could be compared, is an error, and is
not sound. The seed decides after how many steps a fault strikes, another number in each repetition. Many faults
share a session with others, each with a run of its own; the exit status is then that of the session.
"""


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """Repetitions of faults on one Slurm.

    Attributes:
        date: of its begin.
        repeat, seed: as they were asked for.
        machine: cores and kind of the processor.
        versions: of what takes part.
    """

    date: str
    repeat: int
    seed: int
    machine: str
    versions: str

    @classmethod
    def here(cls, repeat: int, seed: int) -> Self:
        """One that begins now."""
        slurm = Queue.run("sinfo", "--version").split()[-1]
        return cls(
            date=f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%d}", repeat=repeat, seed=seed,
            machine=f"{os.cpu_count()} cores of a virtual machine, {platform.machine()}",
            versions=f"Slurm {slurm} of `tools/slurm/up.sh` with eight nodes on this machine, "
            f"Python {platform.python_version()}, pytest {pytest.__version__}",
        )  # fmt: skip

    def to_json(self) -> str:
        """The first line of a campaign's file."""
        return json.dumps({"campaign": asdict(self)})


def page(faults: Iterable[Fault], told: Iterable[str], hand: str = "") -> str:
    """Markdown: what was done, on what, and a row for each fault.

    Args:
        faults: all that are declared; one without a line is shown as not run.
        told: the lines of campaigns' files.
        hand: what people wrote below the table, see `by_hand`.
    """
    read = [json.loads(text) for text in told]
    campaigns = [Campaign(**each["campaign"]) for each in read if "campaign" in each]
    lines = [Line(**each) for each in read if "campaign" not in each]
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
            f"| Date | {_each(each.date for each in campaigns)} |",
            f"| Machine | {_each(each.machine for each in campaigns)} |",
            f"| Versions | {_each(each.versions for each in campaigns)} |",
            f"| Commands | {_each(_commands(campaigns))} |",
            f"| Sound | {sound} of {len(lines)} repetitions of {len(rows)} faults |",
            "",
            "| Fault | Family | Done | Expected | Seen | Sound |",
            "|---|---|---|---|---|--:|",
            *rows,
            "",
            f"{ABOUT}\n{HAND}{hand or chr(10)}",
        ]
    )


def by_hand(path: Path) -> str:
    """The text below the table that was written by hand; empty if the page does not exist yet."""
    return path.read_text("utf-8").partition(HAND)[2] if path.exists() else ""


def row(fault: Fault, lines: list[Line]) -> str:
    """A row of the table."""
    seen = Counter(line.seen if line.outcome == "sound" else f"{line.seen} ({line.why})" for line in lines)
    told = ", ".join(text if len(seen) == 1 else f"{count} × {text}" for text, count in seen.items()) or "not run"
    sound = sum(line.outcome == "sound" for line in lines)
    cells = (f"`{fault.name}`", fault.family, fault.done, str(fault.expected), told, f"{sound} of {len(lines)}")
    return f"| {' | '.join(' '.join(cell.split()).replace('|', '/') for cell in cells)} |"


def _commands(campaigns: list[Campaign]) -> Iterator[str]:
    """The commands that make campaigns again."""
    for repeat in sorted({each.repeat for each in campaigns}):
        seeds = sorted({each.seed for each in campaigns if each.repeat == repeat})
        command = f"`python -m benchmarks.faults --repeat {repeat} --seed"
        yield f"{command} {seeds[0]}`" if len(seeds) == 1 else f"{command} N`, N = {', '.join(map(str, seeds))}"


def _each(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))
