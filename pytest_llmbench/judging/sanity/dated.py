"""Whether a framework's log was written while its run ran, as far as its lines begin with times."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator

from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.judging.sanity.evidence import CLOCK_SKEW_S, Evidence

# Logs say the time of their place, and not which place it is: zones lie at quarters of an hour, within these hours.
_QUARTER_S, _WESTMOST_S, _EASTMOST_S = 900.0, -12 * 3600.0, 14 * 3600.0
# Clocks of two machines, and the time between the last line and the observer's look.
_SLACK_S = 60.0


def dated(e: Evidence) -> Iterator[Problem]:
    """Refuse a log whose times are in no zone between the launch of its run and its end, and such event files."""
    yield from _written(e)
    begin, end, times = e.origin.launched, e.origin.ended, e.series.stamped
    if begin is None or end is None or times is None:
        return
    first, last = times
    # The zone's offset has to be one that brings all times into the run.
    least, most = last - end - _SLACK_S, first - begin + _SLACK_S
    offset = math.ceil(max(least, _WESTMOST_S) / _QUARTER_S) * _QUARTER_S
    if offset > min(most, _EASTMOST_S):
        yield Problem(
            kind="implausible",  #: problem implausible: a log of another day than its run
            message=f"its lines are of {_said(first)} to {_said(last)}; the run was from {_said(begin)} to "
            f"{_said(end)} UTC, and no time zone brings the one into the other: it is the log of another run",
        )


def _written(e: Evidence) -> Iterator[Problem]:
    """Look at the times in event files, which are of no zone."""
    begin, end = e.origin.launched, e.origin.ended
    first, last = e.series.written or (None, None)
    early = first is not None and begin is not None and first < begin - CLOCK_SKEW_S
    if first is not None and last is not None and (early or (end is not None and last > end + CLOCK_SKEW_S)):
        run = " to ".join("(nobody knows)" if at is None else _said(at) for at in (begin, end))
        yield Problem(  #: problem other_run: times that are not between launch and end (± 5 minutes), or not in order
            kind="other_run",
            message=f"its event files were written from {_said(first)} to {_said(last)} UTC; the run was from {run}: "
            "they are of another run",
        )


def _said(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
