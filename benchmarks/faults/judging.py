"""The expected outcome of a fault, the outcome that was seen, and whether the two agree."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree as ET

from pytest_llmbench.core.record.records import ProblemKind
from tests.conftest import read_junit

Outcome = Literal["sound", "unsound", "error"]


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The expected outcome of a fault.

    Each fault must also leave nothing behind and cost no job too many. An ERROR must have no metric, and a PASS one.
    """

    exit: int  # the exit status of pytest
    verdict: str | None = "ERROR"  # that of the run's test; None if the test must lack one
    # Kinds of problem, of which the run's record must have one; without any, it must have no problem.
    kinds: tuple[ProblemKind, ...] = ()
    words: tuple[str, ...] = ()  # texts that the message of the run's test must contain
    told: tuple[str, ...] = ()  # texts that pytest must print
    unsaid: tuple[str, ...] = ()  # texts that the message may not contain
    never: tuple[str, ...] = ()  # texts that neither message nor output may contain

    def __str__(self) -> str:
        kinds = " or ".join(f"`{kind}`" for kind in self.kinds)
        quoted = ", ".join(f'"{words.strip()}"' for words in (*self.words, *self.told))
        unsaid = ", ".join(f'no "{words.strip()}"' for words in self.unsaid)
        outcome = f"{self.verdict or 'no verdict'} {kinds}".strip()
        return "; ".join(filter(None, [outcome, quoted, unsaid, f"exit {self.exit}"]))


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The outcome that was seen after a fault."""

    exit: int | None  # the exit status of pytest; None if it did not end
    verdict: str | None  # that of the run's test; None without a verdict
    kind: str | None  # the problem of the run's record; None without a problem
    message: str  # message of the run's test in the report
    output: str  # output of pytest
    metrics: int  # how many metrics the record has
    # Jobs and processes that were still there a minute later; None if the campaign did not look for them.
    left: tuple[str, ...] | None
    double: int = 0  # jobs of the run beyond those that its record explains

    def __str__(self) -> str:
        kind = f" `{self.kind}`" if self.kind else ""
        return f"{self.verdict or 'no verdict'}{kind}; exit {self.exit}"


@dataclass(frozen=True, kw_only=True)
class Line:
    """A fault in one repetition."""

    fault: str  # its name
    outcome: Outcome  # sound if every expectation is met, error if nothing could be compared
    why: str  # the expectations that are not met, or what kept us from comparing
    seen: str  # the outcome, in short

    def to_json(self) -> str:
        """One line of a campaign's file."""
        return json.dumps(asdict(self))


def judge(fault: str, expected: Expected, seen: Seen | str) -> Line:
    """Compare what was seen with what was expected.

    Args:
        fault: its name.
        expected: what must be there.
        seen: what was, or why nothing was seen.
    """
    if isinstance(seen, str):
        return Line(fault=fault, outcome="error", why=seen, seen="nothing")
    if seen.exit is None:
        return Line(fault=fault, outcome="error", why="pytest did not end", seen=str(seen))
    if seen.left is None:
        return Line(fault=fault, outcome="error", why="the campaign did not look for what is left", seen=str(seen))
    unmet = list(differences(expected, seen))
    return Line(fault=fault, outcome="unsound" if unmet else "sound", why="; ".join(unmet), seen=str(seen))


def differences(expected: Expected, seen: Seen) -> list[str]:
    """The expectations that are not met."""
    found = []
    if seen.exit != expected.exit:
        found.append(f"exit {seen.exit}, not {expected.exit}")
    if seen.verdict != expected.verdict:
        found.append(f"{seen.verdict or 'no verdict'}, not {expected.verdict or 'no verdict'}")
    if seen.kind not in (expected.kinds or (None,)):
        found.append(f"{seen.kind or 'no problem'}, not {' or '.join(expected.kinds) or 'no problem'}")
    if expected.verdict == "ERROR" and seen.metrics:
        found.append(f"{seen.metrics} metrics of a run that cannot be judged")
    if expected.verdict == "PASS" and not seen.metrics:
        found.append("no metric")
    if seen.double:
        found.append(f"{seen.double} jobs too many")
    found += [f'"{words}" is not in the message' for words in expected.words if words not in seen.message]
    found += [f'"{words}" was not printed' for words in expected.told if words not in seen.output]
    found += [f"{words!r} is shown" for words in expected.never if words in seen.message + seen.output]
    found += [f"{words!r} is in the message" for words in expected.unsaid if words in seen.message]
    found += [f"{each} is left" for each in seen.left or ()]
    return found


def look(session: Path | None, key: str, exit_status: int | None, output: str) -> Seen:
    """Read the outcome of a run from the files of its session; the caller, who has looked at Slurm, adds `left`.

    Args:
        session: its folder; None if it has made none.
        key: the run.
        exit_status: that of pytest.
        output: output of pytest.
    """
    verdict, kind, message, metrics = None, None, "", 0
    if session is not None and (record := session / "runs" / key / "record.json").exists():
        told = json.loads(record.read_text("utf-8"))
        kind, metrics = (told["problem"] or {}).get("kind"), len(told["metrics"])
    try:
        cases = read_junit(session / "junit.xml") if session is not None else {}
    except (OSError, ET.ParseError):  # killed before it wrote its report: there is no verdict
        cases = {}
    for case in cases.values():
        if f"[{key}-" in case.name:
            verdict, message = case.properties.get("verdict"), case.message
    return Seen(
        exit=exit_status, verdict=verdict, kind=kind, message=message, output=output, metrics=metrics, left=None
    )
