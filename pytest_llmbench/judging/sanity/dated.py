"""Whether a framework's log was written while its run ran, as far as its lines begin with times."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator

from pytest_llmbench.core.records import Problem
from pytest_llmbench.judging.sanity.evidence import Evidence

# Logs say the time of their place, and not which place it is: zones lie at quarters of an hour, within these hours.
_QUARTER_S, _WESTMOST_S, _EASTMOST_S = 900.0, -12 * 3600.0, 14 * 3600.0
# Clocks of two machines, and the time between the last line and the observer's look.
_SLACK_S = 60.0


def dated(e: Evidence) -> Iterator[Problem]:
    """Refuse a log whose times are in no zone between the launch of its run and its end."""
    begin, end, times = e.origin.launched, e.origin.ended, e.series.stamped
    if begin is None or end is None or times is None:
        return
    first, last = times
    # The zone's offset has to be one that brings all times into the run.
    least, most = last - end - _SLACK_S, first - begin + _SLACK_S
    offset = math.ceil(max(least, _WESTMOST_S) / _QUARTER_S) * _QUARTER_S
    if offset > min(most, _EASTMOST_S):
        yield Problem(
            kind="implausible",
            message=f"its lines are of {_said(first)} to {_said(last)}; the run was from {_said(begin)} to "
            f"{_said(end)} UTC, and no time zone brings the one into the other: it is the log of another run",
        )


def _said(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
