"""Checks that the logs of ranks are from this run and its time, and that each is from another rank."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import pairwise

from pytest_llmbench.core.quantity import listed
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.core.record.series import RankInfo
from pytest_llmbench.core.wire import layout
from pytest_llmbench.judging.sanity.evidence import CLOCK_SKEW_S, Evidence, of_rank

# A host's clock may be set while a rank runs.
_CLOCK_SET_S = 1.0
# Largest difference between the ends of ranks on one host that wait for each other: seconds, plus this many steps.
_APART_S, _APART_STEPS = 5.0, 4.0
# Two ranks that agree in every digit of this many steps have one log.
_ENOUGH_STEPS = 3


def origin(e: Evidence) -> Iterator[Problem]:
    """Refuse logs of another run or of another time."""
    tokens = {info.token for info in e.series.ranks}
    if e.origin.token is None and len(tokens) > 1:
        yield Problem(kind="other_run", message=f"the ranks are of different runs: {listed(sorted(map(str, tokens)))}")
    for info in e.series.ranks:
        yield from _of_this_run(e, info)
        yield from _in_order(info)


def _of_this_run(e: Evidence, info: RankInfo) -> Iterator[Problem]:
    if e.origin.token not in (None, info.token):
        owner = f"is of run {info.token}" if info.token else "does not say which run it is of"
        #: problem other_run: a token of another run, or none
        yield of_rank("other_run", info, f": its log {owner}; this run is {e.origin.token}")
    begin, end = e.origin.launched, e.origin.ended
    for what, time in _times(info):
        if begin is not None and time < begin - CLOCK_SKEW_S:
            yield of_rank("other_run", info, f": {what} at Unix time {time:.0f}; this run was launched at {begin:.0f}")
        if end is not None and time > end + CLOCK_SKEW_S:
            yield of_rank("other_run", info, f": {what} at Unix time {time:.0f}; this run was over at {end:.0f}")


def _in_order(info: RankInfo) -> Iterator[Problem]:
    for (what, time), (then, later) in pairwise(_times(info)):
        if later < time - _CLOCK_SET_S:
            words = f": {then} {time - later:.4g} s before {what}, by the time stamps of its log"
            yield of_rank("other_run", info, words)


def _times(info: RankInfo) -> list[tuple[str, float]]:
    """The events of a rank with their times, in the order in which they must happen."""
    times = (
        ("it started", info.started),
        ("its first step began", info.steps.began if info.steps else None),
        ("its last step ended", info.steps.ended if info.steps else None),
        ("it finished", info.finished),
    )
    return [(what, time) for what, time in times if time is not None]


def together(e: Evidence) -> Iterator[Problem]:
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
            yield Problem(
                kind="other_run",
                message=f"by the clock of {host}, rank {one} ended its last step {last - first:.4g} s before rank "
                f"{other}, and a step takes {longest:.4g} s: they did not train together",
                log=layout.step_log(one),
            )


def different(e: Evidence) -> Iterator[Problem]:
    """Refuse two ranks that are one: the same process or GPU, or one log twice."""
    yield from _shared(e.series.ranks, "process", lambda info: (info.host, info.pid_namespace, info.pid))
    if e.topology.gpus:
        watched = {telemetry.rank: telemetry.gpu for telemetry in e.series.telemetry}
        yield from _shared(_whole_gpus(e), "GPU", lambda info: info.gpu)
        yield from _shared(_whole_gpus(e), "GPU", lambda info: watched.get(info.rank))
        yield from _unnamed_gpus(e)
        yield from _watched_another(e, watched)
    long_enough = [info for info in e.series.ranks if info.steps and info.steps.count >= _ENOUGH_STEPS]
    yield from _shared(long_enough, "durations of all steps", lambda info: info.steps and info.steps.durations)
    if e.expected is not None and e.expected.own_losses:
        yield from _shared(long_enough, "losses of all steps", lambda info: info.steps and info.steps.losses)


def _whole_gpus(e: Evidence) -> list[RankInfo]:
    """The ranks with a whole GPU; MIG slices are left out, as they may have the UUID of the whole."""
    return [info for info in e.series.ranks if " MIG " not in info.device]


def _unnamed_gpus(e: Evidence) -> Iterator[Problem]:
    lacking = [info.rank for info in e.series.ranks if info.gpu is None]
    if lacking and len(lacking) < len(e.series.ranks):
        yield Problem(
            kind="wrong_ranks",  #: problem wrong_ranks: ranks that are not one each on every place of every node
            message=f"rank(s) {listed(lacking)} do not name the GPU that they trained on, and others do: the logs are "
            f"of different runs, or changed",
        )


def _watched_another(e: Evidence, watched: Mapping[int, str | None]) -> Iterator[Problem]:
    for info in e.series.ranks:
        if None not in (info.gpu, watched.get(info.rank)) and info.gpu != watched[info.rank]:
            words = f" trained on {info.gpu} and watched {watched[info.rank]}: its samples are of another GPU"
            #: problem wrong_hardware: a rank that watched another GPU than it trained on
            yield of_rank("wrong_hardware", info, words)


def _shared(ranks: Sequence[RankInfo], what: str, of: Callable[[RankInfo], Hashable | None]) -> Iterator[Problem]:
    """Refuse ranks that share something that each rank has to itself, such as a process or a GPU."""
    groups: dict[Hashable, list[RankInfo]] = defaultdict(list)
    for info in ranks:
        if (key := of(info)) is not None:
            groups[key].append(info)
    for group in groups.values():
        if len(group) > 1:
            names = listed([f"{info.rank} on {info.host} (pid {info.pid})" for info in group])
            yield Problem(
                #: problem same_rank: two ranks have the same process, GPU, durations or losses: they are one, or its
                #:  log was copied
                kind="same_rank",
                message=f"ranks {names} have the same {what}: they are one rank, or its log was copied",
            )
