"""The verdict on a whole session in one word, in `verdict.json`, for gates without an XML reader."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pytest_llmbench.core.errors import NOT_MEASURED
from pytest_llmbench.core.quantity import counted, listed
from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.core.schema import Document

# The order of every table, the worst first. A test that is INCONCLUSIVE fails unless the session only warns of it.
WORST_FIRST = ("FAIL", "ERROR", "INCOMPLETE", "INCONCLUSIVE", "XFAIL", "SKIP", "PASS")
FAILING = frozenset({"FAIL", "ERROR", "INCONCLUSIVE"})
# The worst first.
Word = Literal[
    "interrupted", "broken", "not_measured", "incomplete", "slow", "undecided", "nothing_judged", "pass"
]  # fmt: skip
# Exit code of a session without a verdict on speed, and, with `llmbench_exit_codes = detailed`, of failed tests.
# pytest's own codes end at 6.
NOTHING_JUDGED, _INTERRUPTED = 10, 2
DETAILED: Mapping[Word, int] = {"slow": 1, "undecided": 11, "incomplete": 12, "broken": 13, "not_measured": 14}
# How the reasons of ERRORs, of runs and of checks, name missing software.
_MISSING = re.compile(rf"\((?:engine|environment)_missing\): |\b{NOT_MEASURED}: ")


class SessionVerdict(Document):
    """The content of `verdict.json`."""

    title = "verdict of a session"
    verdict: Word
    """Verdict on the session: `pass`, `slow`, `broken`, `not_measured`, `undecided`, `incomplete`, `nothing_judged` or
    `interrupted`."""
    reason: str
    """Reason for any other verdict than `pass`; empty for `pass`."""
    counts: Mapping[str, int]
    """Number of tests with each verdict; a verdict that no test has is left out."""
    unconfirmed: tuple[str, ...] = ()
    """Runs whose numbers rest on something that nothing confirms."""
    exit_code: int
    """Exit code of pytest."""
    session: str
    """Id of the session."""
    ended: str
    """ISO 8601 time of the end, with zone."""
    llmbench_version: str
    """Version of pytest-llmbench."""
    as_recorded: bool = False
    """Whether the recipes in the records of a replay decided what had to run, and not those of today."""


def decide(
    rows: Sequence[Mapping[str, Any]],
    *,
    incomplete: Sequence[str] = (),
    unjudged: Sequence[str] = (),
    runs: int = 0,
    speed_required: bool = False,
    simulated: bool = False,
    exit_code: int = 0,
    interrupted: str = "",
) -> tuple[Word, str]:
    """Return the worst word that applies to a session, and the reason for it; `pass` if no other word applies.

    An unknown verdict is `broken`, and so is an exit code other than 0 without a verdict that explains it.

    `rows` are the properties of each verdict, of tests and of groups of nodes. `unjudged` are the runs, of all `runs`,
    without a verdict on their speed; with `speed_required`, one is enough. `incomplete` are required clauses that are
    unjudged, and `interrupted` is the signal, or the limit of time, that ended the session.
    """
    counts, code = count_verdicts(rows), exit_code
    errors, fails, open_ = counts[Verdict.ERROR], counts[Verdict.FAIL], counts[Verdict.INCONCLUSIVE]
    missing = sum(
        row["verdict"] == Verdict.ERROR and _MISSING.search(str(row.get("reason"))) is not None for row in rows
    )
    strange = sorted(set(counts) - {str(verdict) for verdict in Verdict})
    unexplained = code == 1 and not (errors or fails or open_ or incomplete)
    no_speed = bool(unjudged) and (len(unjudged) >= runs or speed_required)
    bad = f"{counted(errors, 'test')} could not be judged"
    missed = f"{counted(fails, 'test')} missed a threshold, or found a node unfit"
    ended = f"{interrupted} ended the session: {bad}{f', and {missed}' if fails else ''}"
    faults: tuple[tuple[object, Word, str], ...] = (  # the worst first
        (interrupted and code == _INTERRUPTED, "interrupted", ended),
        (strange, "broken", f"unknown verdicts: {', '.join(strange)}"),
        (
            code not in {0, 1, NOTHING_JUDGED} or unexplained, "broken",
            f"pytest ended with exit code {code} for a reason that is not a verdict: see its output",
        ),
        (errors > missing, "broken", bad),
        (missing, "not_measured", f"{counted(missing, 'test')} could not be measured: software is missing"),
        (incomplete, "incomplete", f"required and not judged: {', '.join(incomplete)}"),
        (fails, "slow", missed),
        (open_, "undecided", f"{counted(open_, 'test')} measured a number that is too close to its threshold"),
        (simulated, "nothing_judged", "the session had a simulated fault, so it measured nothing"),
        (not counts[Verdict.PASS] + counts[Verdict.XFAIL], "nothing_judged", "no test was judged"),
        (
            no_speed or code == NOTHING_JUDGED, "nothing_judged",
            f"no threshold judged the speed of {listed(unjudged) or 'a run'}",
        ),
    )  # fmt: skip
    return next(((word, reason) for holds, word, reason in faults if holds), ("pass", ""))


def count_verdicts(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Tests by verdict."""
    return Counter(str(row["verdict"]) for row in rows)


def detailed_exit_code(word: Word, exit_code: int) -> int:
    """The exit code by `llmbench_exit_codes = detailed`: the kind of failure where tests failed."""
    return DETAILED.get(word, exit_code) if exit_code == 1 else exit_code
