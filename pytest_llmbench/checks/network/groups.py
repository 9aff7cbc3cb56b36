"""Groups of ranks that measure a collective: options, rounds of groups in one probe, and the result of each group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field as Constrained
from pydantic import PositiveFloat, PositiveInt

from pytest_llmbench.checks.answers import read_answers, silent
from pytest_llmbench.checks.base import Answer, CheckDefaults, CheckSettings, Fleet, Site, deadline_of
from pytest_llmbench.checks.findings import Bounds, FindingMaker, SharedKind, make_finding
from pytest_llmbench.checks.network.nodes.answer import GroupCollective, PlayedGame, RankGames, Sizes
from pytest_llmbench.checks.transport import Look, read_look
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.core.wire.answers import NcclLines

NetworkKind = Literal[
    "dead_node", "failing_node", "slow_at_times", "slow_boundary", "slow_link", "slow_node", "slow_together", "uneven",
]  # fmt: skip
finding: FindingMaker[NetworkKind | SharedKind] = make_finding

_GPU = Sizes(bytes=2**32, iterations=20, warm_up=5, timeout_s=60.0, patience_s=120.0)
_CPU = Sizes(bytes=2**20, iterations=8, warm_up=2, timeout_s=5.0, patience_s=30.0)
_LOOK_BYTES = 2**28  # of a step in which NCCL prints its lines
_TOLERANCE = {"cuda": 0.1, "cpu": 0.5}  # CPU ranks of one machine share its cores
# Ranks answer with the results so far before they are ended for being late.
_LIMIT_SHARE = 0.8
# The longest round in timeouts: a game, and the wait for those whose partner hangs.
_TIMEOUTS_A_ROUND = 3

GroupFault = Literal["no_answer", "error", "wrong_values"]


class NetworkOptions(Strict):
    """Options of all network checks. The default depends on the device."""

    bytes: Annotated[int, Constrained(ge=4, multiple_of=4)] | None = None
    """Size of the message in bytes; absent, 4 GiB between GPUs and 1 MiB between CPUs.

    At scale `smoke` it is 1 MiB. GPUs with less free memory, and very slow links, take less.
    """
    iterations: PositiveInt | None = None
    """Number of calls that are timed; absent, 20 with GPUs, 8 without and at scale `smoke`."""
    warm_up: PositiveInt | None = None
    """Number of calls before the timed ones; absent, 5 with GPUs, 2 without and at scale `smoke`."""
    timeout_s: PositiveFloat | None = None
    """Longest wait in a group, in seconds; absent, 60 with GPUs, 5 without and at scale `smoke`."""
    patience_s: PositiveFloat | None = None
    """Longest wait for all ranks at the start, in seconds; absent, 120 with GPUs, 30 without and at scale `smoke`."""
    tolerance: Annotated[float, Constrained(gt=0, lt=1)] | None = None
    """Allowed shortfall from the other nodes (fraction); absent, 0.1 with GPUs, 0.5 without."""

    def sizes(self, site: Site) -> Sizes:
        own = self.model_dump(exclude={"bytes"} if site.scale == "smoke" else set(), exclude_none=True)
        own = {name: value for name, value in own.items() if name in Sizes.model_fields}
        return (_GPU if site.is_full_gpu else _CPU).model_copy(update=own)  # options are for the full size

    def allowed(self, site: Site) -> float:
        return self.tolerance if self.tolerance is not None else _TOLERANCE[site.device]


class TournamentOptions(NetworkOptions):
    """Further options of the checks with pairs of nodes."""

    rounds: PositiveInt | Literal["all"] | None = None
    """Number of rounds for each node; absent, `all` up to 16 nodes, and 8 beyond."""
    repeats: PositiveInt = 3
    """Number of re-measurements of each suspect with healthy nodes; the majority decides, and a tie clears the suspect.
    """

    def count_rounds(self, nodes: int) -> int | None:
        """The number of rounds; None for the usual one."""
        return nodes if self.rounds == "all" else self.rounds


def note_missing_reference(bounds: Bounds, statistic: str) -> tuple[str, ...]:
    """A remark for a statistic without a reference."""
    if any(reference.statistic == statistic for reference in bounds.references):
        return ()
    return (f"no reference for {statistic}: nodes are compared with each other alone",)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankGroup:
    """Ranks that measure together: these local ranks of each host."""

    hosts: tuple[str, ...]
    local_ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupResult:
    """The result of a group."""

    group: RankGroup
    busbw: float | None = None  # GB/s of its slowest rank; None after a fault
    latency_us: float | None = None  # of a small all_reduce, likewise
    bytes: int | None = None  # the size of its message, likewise
    fault: GroupFault | None = None  # the kind of fault that prevented a number
    reason: str = ""  # the fault in words

    @property
    def text(self) -> str:
        return self.reason if self.busbw is None else f"{self.busbw:.4g} GB/s"


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """The result of some rounds."""

    results: tuple[GroupResult, ...]  # one for each group, in the order of the groups
    silent: Mapping[str, str]  # reasons for nodes without a whole answer
    device: str | None  # device of the measurement, as its driver names it; None if all ranks are silent about it
    nccl: tuple[tuple[str, NcclLines | None], ...] = ()  # NCCL's lines of each rank, with its host


class MeasuredGroups:
    """Measures groups on the nodes of a check."""

    def __init__(self, fleet: Fleet, check: CheckDefaults, settings: CheckSettings, options: NetworkOptions) -> None:
        self.local_ranks = tuple(range(fleet.site.ranks_per_node))
        self._fleet, self._check, self._settings, self._sizes = fleet, check, settings, options.sizes(fleet.site)

    def look(self, rounds: Sequence[Sequence[RankGroup]], collective: GroupCollective = "all_gather") -> Look:
        """Let NCCL print which way it sends the data of rounds of groups, in a step of its own."""
        hosts = dict.fromkeys(host for groups in rounds for group in groups for host in group.hosts)
        played = self.play(rounds, collective, nccl=True)
        return read_look(played.nccl, tuple(hosts), played.silent)

    def play(
        self, rounds: Sequence[Sequence[RankGroup]], collective: GroupCollective = "all_gather", *, nccl: bool = False
    ) -> Played:
        """Measure rounds of disjoint groups, one round after the other, in one step of the nodes that take part.

        With `nccl` it is the short step in which NCCL prints its lines.
        """
        taking_part = {host for groups in rounds for group in groups for host in group.hosts}
        hosts = tuple(host for host in self._fleet.hosts if host in taking_part)
        per_node = len(self.local_ranks)
        firsts = {host: number * per_node for number, host in enumerate(hosts)}
        plan = [
            [[firsts[host] + local for host in group.hosts for local in group.local_ranks] for group in groups]
            for groups in rounds
        ]
        longest_s = self._sizes.patience_s + _TIMEOUTS_A_ROUND * self._sizes.timeout_s * (len(rounds) + 1)
        limit_s = min(longest_s, _LIMIT_SHARE * deadline_of(self._check, self._settings))
        config = {"rounds": plan, **self._sizes.model_dump(), "limit_s": limit_s, "collective": collective}
        how: dict[str, Any] = {"hosts": hosts, "together": True}
        if nccl:
            config |= {"nccl": True, "iterations": 1, "warm_up": 1, "bytes": min(self._sizes.bytes, _LOOK_BYTES)}
            how["name"] = "transport"
        probe = self._check.probe_devices(self._fleet.site, self._settings, "pairs:play", config, **how)
        answers = read_answers(self._fleet.run([probe])[0], RankGames)
        data = [answer.data for answer in answers if answer.data is not None]
        games = [
            {(game.round, game.group): game for game in (answer.data.games if answer.data else ())}
            for answer in answers
        ]
        return Played(
            results=tuple(
                _combine_games(group, {rank: games[rank].get((number, index)) for rank in plan[number][index]}, answers)
                for number, groups in enumerate(rounds)
                for index, group in enumerate(groups)
            ),
            silent=silent(answers),
            device=data[0].device if data else None,
            nccl=tuple((answer.host, answer.data.nccl) for answer in answers if answer.data),
        )


def _combine_games(
    group: RankGroup, games: Mapping[int, PlayedGame | None], answers: Sequence[Answer[RankGames]]
) -> GroupResult:
    """One result of the games of a group by rank: a number needs the measurements of all of them."""
    known = [game for game in games.values() if game is not None]
    missing = {rank for game in known for rank in game.missing} | {rank for rank, game in games.items() if game is None}
    if missing:
        reasons = []
        for answer in (answers[rank] for rank in sorted(missing)):
            reason = answer.why or (answer.data.stopped if answer.data else None) or "it did not come"
            reasons.append(f"no answer: rank {answer.rank} of {answer.host}: {reason}")
        return GroupResult(group=group, fault="no_answer", reason="; ".join(reasons))
    errors = [f"{answers[rank].host}: {game.error}" for rank, game in games.items() if game and game.error is not None]
    if errors:
        return GroupResult(group=group, fault="error", reason=errors[0])
    measured = [game.measured for game in known if game.measured is not None]
    if wrong := sum(game.wrong for game in measured):
        return GroupResult(group=group, fault="wrong_values", reason=f"{wrong} elements of the results are wrong")
    latency_us = 1e6 * max(game.latency_s for game in measured)
    busbw, size = min(game.busbw for game in measured), min(game.bytes for game in measured)
    return GroupResult(group=group, busbw=busbw, latency_us=latency_us, bytes=size)
