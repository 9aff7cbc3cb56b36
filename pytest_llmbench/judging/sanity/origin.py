"""Checks that logs are from this run, its launch, nodes and time, and that each is from another rank.

Ranks of our own log a token and Unix times; a command's log has labels of our driver, and local times.
"""

import datetime as dt
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import pairwise

from pytest_llmbench.core.quantity import listed
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.core.record.series import RankInfo
from pytest_llmbench.core.wire import layout
from pytest_llmbench.judging.sanity.evidence import CLOCK_SKEW_S, Evidence, of_rank, problem
from pytest_llmbench.judging.sanity.ranks import given_name

# A host's clock may be set while a rank runs.
_CLOCK_SET_S = 1.0
# Largest difference between the ends of ranks on one host that wait for each other: seconds, plus this many steps.
_APART_S, _APART_STEPS = 5.0, 4.0
# Two ranks that agree in every digit of this many steps have one log.
_ENOUGH_STEPS = 3


def check_origin(e: Evidence) -> Iterator[Problem]:
    """Refuse logs of another run or of another time."""
    tokens = {info.token for info in e.series.ranks}
    if e.origin.token is None and len(tokens) > 1:
        yield problem("other_run", f"the ranks are of different runs: {listed(sorted(map(str, tokens)))}")
    for info in e.series.ranks:
        if e.origin.token not in (None, info.token):
            owner = f"is of run {info.token}" if info.token else "does not name its run"
            #: problem other_run: a token of another run, or none
            yield of_rank("other_run", info, f": its log {owner}; this run is {e.origin.token}")
        times = _times(info)
        for what, time in times:
            if (run := _not_in_run(e, time)) is not None:
                yield of_rank("other_run", info, f": {what} at Unix time {time:.0f}; {run}")
        for (what, time), (then, later) in pairwise(times):
            if later < time - _CLOCK_SET_S:
                words = f": {then} {time - later:.4g} s before {what}, by the time stamps of its log"
                yield of_rank("other_run", info, words)


def _not_in_run(e: Evidence, time: float) -> str | None:
    """When the run began or ended, in words, for a Unix time before or after it; None for one within it."""
    begin, end = e.origin.launched, e.origin.ended
    if begin is not None and time < begin - CLOCK_SKEW_S:
        return f"this run was launched at {begin:.0f}"
    return f"this run was over at {end:.0f}" if end is not None and time > end + CLOCK_SKEW_S else None


def _times(info: RankInfo) -> list[tuple[str, float]]:
    """The events of a rank with their times, in the order in which they must happen."""
    times = (
        ("it started", info.started),
        ("its first step began", info.steps.began if info.steps else None),
        ("its last step ended", info.steps.ended if info.steps else None),
        ("it finished", info.finished),
    )
    return [(what, time) for what, time in times if time is not None]


def check_together(e: Evidence) -> Iterator[Problem]:
    """Refuse ranks of one host with ends far apart, as ranks of one model wait for each other in every step."""
    if e.expected is None or not e.expected.one_model:
        return
    hosts: dict[str, list[RankInfo]] = defaultdict(list)
    for info in e.series.ranks:
        if info.steps is not None:
            hosts[info.node or info.host].append(info)
    for host, ranks in hosts.items():
        ends = sorted((info.steps.ended, info.rank) for info in ranks if info.steps)
        longest = max(info.steps.seconds / info.steps.count for info in ranks if info.steps)
        (first, one), (last, other) = ends[0], ends[-1]
        if last - first > _APART_S + _APART_STEPS * longest:
            yield problem(
                "other_run",
                f"by the clock of {host}, rank {one} ended its last step {last - first:.4g} s before rank {other}, and "
                f"a step takes {longest:.4g} s: they did not train together",
                layout.step_log(one),
            )


def check_different(e: Evidence) -> Iterator[Problem]:
    """Refuse two ranks that are the same process or GPU, or share a log."""
    ranks = e.series.ranks
    yield from _shared(ranks, "process", lambda info: (info.host, info.pid_namespace, info.pid))
    if e.topology.gpus:
        watched = {telemetry.rank: telemetry.gpu for telemetry in e.series.telemetry}
        whole = [info for info in ranks if " MIG " not in info.device]  # MIG slices may have the UUID of the whole GPU
        yield from _shared(whole, "GPU", lambda info: info.gpu)
        yield from _shared(whole, "GPU", lambda info: watched.get(info.rank))
        lacking = [info.rank for info in ranks if info.gpu is None]
        if lacking and len(lacking) < len(ranks):
            #: problem wrong_ranks: not one rank on every place of every node
            yield problem(
                "wrong_ranks",
                f"rank(s) {listed(lacking)} do not name the GPU that they trained on, and others do: the logs are of "
                "different runs, or changed",
            )
        for info in ranks:
            if None not in (info.gpu, watched.get(info.rank)) and info.gpu != watched[info.rank]:
                words = f" trained on {info.gpu} and watched {watched[info.rank]}: its samples are of another GPU"
                #: problem wrong_hardware: a rank that watched another GPU than its own
                yield of_rank("wrong_hardware", info, words)
    long_enough = [info for info in ranks if info.steps and info.steps.count >= _ENOUGH_STEPS]
    yield from _shared(long_enough, "durations of all steps", lambda info: info.steps and info.steps.durations)
    if e.expected is not None and e.expected.own_losses:
        yield from _shared(long_enough, "losses of all steps", _own_losses)


def _own_losses(info: RankInfo) -> Hashable | None:
    """Return what no other copy of the model has; tensor-parallel ranks of one copy have its losses in common."""
    return info.steps and (info.steps.losses, info.training.tensor_rank if info.training else 0)


def _shared(ranks: Sequence[RankInfo], what: str, of: Callable[[RankInfo], Hashable | None]) -> Iterator[Problem]:
    """Refuse ranks that share a process, a GPU or the like."""
    groups: dict[Hashable, list[RankInfo]] = defaultdict(list)
    for info in ranks:
        if (key := of(info)) is not None:
            groups[key].append(info)
    for group in groups.values():
        if len(group) > 1:
            names = listed([f"{info.rank} on {info.host} (pid {info.pid})" for info in group])
            #: problem same_rank: two ranks have the same process, GPU, durations or losses: they are one, or its log
            #:  was copied
            yield problem("same_rank", f"ranks {names} have the same {what}: they are one rank, or its log was copied")


def check_run_of_log(e: Evidence) -> Iterator[Problem]:
    """Refuse a command's log with labels of another run, of several runs or launches, or of another time."""
    #: problem other_run: a log without the label of this run
    tokens = sorted({label.token for label in e.series.labels})
    others = [token for token in tokens if e.origin.token not in (None, token)]
    if others:
        yield problem("other_run", f"its log is of run {listed(others)}; this run is {e.origin.token}")
    elif len(tokens) > 1:
        yield problem("other_run", f"its log is of several runs: {listed(tokens)}")
    launches = sorted({label.launched for label in e.series.labels})
    if len(launches) > 1:
        times = listed([f"{launched:.3f}" for launched in launches])
        yield problem("other_run", f"its log is of {len(launches)} launches, at Unix times {times}")
    for launched in launches:
        if (run := _not_in_run(e, launched)) is not None:
            yield problem("other_run", f"its log says that it was launched at Unix time {launched:.0f}; {run}")


def check_labels(e: Evidence) -> Iterator[Problem]:
    """Require the labels of exactly the nodes that print one, if the run was launched by us."""
    labels = e.series.labels
    if not labels:
        if e.origin.token is not None:
            yield problem(
                "other_run",
                f"its log does not name run {e.origin.token}: the line `#llmbench run=...`, with which "
                "its driver begins it, is missing; it is the log of another run, or it lost its beginning",
            )
        return
    wanted = max(label.of for label in labels)
    named = sorted({given_name(e, label.host) for label in labels})
    strangers = [host for host in named if e.hosts and host not in e.hosts]
    if strangers or len(named) != wanted or wanted not in (1, e.topology.nodes):
        #: problem wrong_nodes: the labels of a log name other hosts
        yield problem(
            "wrong_nodes",
            f"its log has labels of {len(named)} nodes ({listed(named)}), where one of each of {wanted} should be; the "
            f"run was on {listed(list(e.hosts)) if e.hosts else f'{e.topology.nodes} nodes'}",
        )


# Logs have local times without their zone. The offsets of zones are multiples of a quarter of an hour in this range.
_QUARTER_S, _WESTMOST_S, _EASTMOST_S = 900.0, -12 * 3600.0, 14 * 3600.0
# Clocks of two machines, and the time between the last line and the observer's look.
_SLACK_S = 60.0


def check_dates(e: Evidence) -> Iterator[Problem]:
    """Refuse a log whose times are outside of the run in every time zone, and event files from another time."""
    begin, end = e.origin.launched, e.origin.ended
    if e.series.written is not None:  # Unix times
        first, last = e.series.written
        if _not_in_run(e, first) or _not_in_run(e, last):
            run = " to ".join("(nobody knows)" if at is None else _utc(at) for at in (begin, end))
            #: problem other_run: times outside of the run (± 5 minutes), or not in order
            yield problem(
                "other_run",
                f"its event files were written from {_utc(first)} to {_utc(last)} UTC; the run was from {run}: they "
                "are of another run",
            )
    if begin is None or end is None or e.series.stamped is None:
        return
    first, last = e.series.stamped
    # Smallest offset of a zone that could bring all times into the run.
    least, most = last - end - _SLACK_S, first - begin + _SLACK_S
    offset = math.ceil(max(least, _WESTMOST_S) / _QUARTER_S) * _QUARTER_S
    if offset > min(most, _EASTMOST_S):  #: problem implausible: a log of another day than its run
        yield problem(
            "implausible",
            f"its lines are of {_utc(first)} to {_utc(last)}; the run was from {_utc(begin)} to {_utc(end)} UTC, and "
            "no time zone brings the one into the other: it is the log of another run",
        )


def _utc(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
