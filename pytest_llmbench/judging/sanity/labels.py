"""Checks that a command's log is from this run, launch, nodes and time, by the labels of our driver in it."""

import datetime as dt
import math
from collections.abc import Iterator

from pytest_llmbench.core.quantity import listed
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.core.wire.labels import Label
from pytest_llmbench.judging.sanity.evidence import CLOCK_SKEW_S, Evidence
from pytest_llmbench.judging.sanity.ranks import same_host


def stranger(e: Evidence) -> Iterator[Problem]:
    """Refuse a log with labels of another run, of several runs or launches, or of another time."""
    tokens = sorted({label.token for label in e.series.labels})
    others = [token for token in tokens if e.origin.token not in (None, token)]
    if others:
        yield _other(f"its log says that it is of run {listed(others)}; this run is {e.origin.token}")
    elif len(tokens) > 1:
        yield _other(f"its log is of several runs: {listed(tokens)}")
    launches = sorted({label.launched for label in e.series.labels})
    if len(launches) > 1:
        times = listed([f"{launched:.3f}" for launched in launches])
        yield _other(f"its log is of {len(launches)} launches, at Unix times {times}")
    for launched in launches:
        if e.origin.launched is not None and launched < e.origin.launched - CLOCK_SKEW_S:
            yield _other(f"{_launched_at(launched)}; this run was launched at {e.origin.launched:.0f}")
        if e.origin.ended is not None and launched > e.origin.ended + CLOCK_SKEW_S:
            yield _other(f"{_launched_at(launched)}; this run was over at {e.origin.ended:.0f}")


def labelled(e: Evidence) -> Iterator[Problem]:
    """Require the labels of exactly the nodes that print one, if the run was launched by us."""
    if e.series.labels:
        yield from _nodes(e, e.series.labels)
    elif e.origin.token is not None:
        yield _other(
            f"nothing in its log says that it is of run {e.origin.token}: the line `#llmbench run=...`, with which its "
            "driver begins it, is missing; it is the log of another run, or it lost its beginning"
        )


def _nodes(e: Evidence, labels: tuple[Label, ...]) -> Iterator[Problem]:
    due = max(label.of for label in labels)
    named = sorted({next((host for host in e.hosts if same_host(host, label.host)), label.host) for label in labels})
    strangers = [host for host in named if e.hosts and host not in e.hosts]
    if strangers or len(named) != due or due not in (1, e.topology.nodes):
        yield Problem(
            kind="wrong_nodes",  #: problem wrong_nodes: the labels of a log name other hosts
            message=f"its log has labels of {len(named)} nodes ({listed(named)}), where one of each of {due} should "
            f"be; the run was on {listed(list(e.hosts)) if e.hosts else f'{e.topology.nodes} nodes'}",
        )


def _launched_at(launched: float) -> str:
    return f"its log says that it was launched at Unix time {launched:.0f}"


def _other(message: str) -> Problem:
    return Problem(kind="other_run", message=message)  #: problem other_run: a log without the label of this run


# Logs have local times without their zone. The offsets of zones are multiples of a quarter of an hour in this range.
_QUARTER_S, _WESTMOST_S, _EASTMOST_S = 900.0, -12 * 3600.0, 14 * 3600.0
# Clocks of two machines, and the time between the last line and the observer's look.
_SLACK_S = 60.0


def dated(e: Evidence) -> Iterator[Problem]:
    """Refuse a log whose times are outside of the run in every time zone, and event files from another time."""
    yield from _written(e)
    begin, end, times = e.origin.launched, e.origin.ended, e.series.stamped
    if begin is None or end is None or times is None:
        return
    first, last = times
    # Smallest offset of a zone that could bring all times into the run.
    least, most = last - end - _SLACK_S, first - begin + _SLACK_S
    offset = math.ceil(max(least, _WESTMOST_S) / _QUARTER_S) * _QUARTER_S
    if offset > min(most, _EASTMOST_S):
        yield Problem(
            kind="implausible",  #: problem implausible: a log of another day than its run
            message=f"its lines are of {_utc(first)} to {_utc(last)}; the run was from {_utc(begin)} to "
            f"{_utc(end)} UTC, and no time zone brings the one into the other: it is the log of another run",
        )


def _written(e: Evidence) -> Iterator[Problem]:
    """Refuse event files from another time; their times are Unix times."""
    begin, end = e.origin.launched, e.origin.ended
    first, last = e.series.written or (None, None)
    early = first is not None and begin is not None and first < begin - CLOCK_SKEW_S
    if first is not None and last is not None and (early or (end is not None and last > end + CLOCK_SKEW_S)):
        run = " to ".join("(nobody knows)" if at is None else _utc(at) for at in (begin, end))
        yield Problem(  #: problem other_run: times that are not between launch and end (± 5 minutes), or not in order
            kind="other_run",
            message=f"its event files were written from {_utc(first)} to {_utc(last)} UTC; the run was from {run}: "
            "they are of another run",
        )


def _utc(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
