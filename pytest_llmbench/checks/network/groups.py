"""Groups of ranks that measure an all_reduce: from rounds of them to one probe, and back to what they reached."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_llmbench.checks.answers import read_answers, silent
from pytest_llmbench.checks.base import Answer, Fleet, Probe
from pytest_llmbench.checks.network.nodes.answer import PlayedGame, RankGames, Sizes

_ENTRY = "pytest_llmbench.checks.network.nodes.pairs:play"
# Ranks answer with what they have before they are ended for being late.
_LIMIT_SHARE = 0.8
# A round takes no longer than this many timeouts: a game, and the wait for those whose partner hangs.
_TIMEOUTS_A_ROUND = 3

Fault = Literal["no_answer", "error", "wrong_values"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankGroup:
    """Ranks that measure together: these local ranks of each host."""

    hosts: tuple[str, ...]
    local_ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupResult:
    """The result of a group.

    Attributes:
        busbw: GB/s of its slowest rank; None where there is no number that counts.
        latency_us: of a small all_reduce, likewise.
        fault: the reason why there is no number.
        why: that, in words.
    """

    group: RankGroup
    busbw: float | None = None
    latency_us: float | None = None
    fault: Fault | None = None
    why: str = ""

    @property
    def text(self) -> str:
        """The rate, or why there is none."""
        return self.why if self.busbw is None else f"{self.busbw:.4g} GB/s"


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """The result of some rounds.

    Attributes:
        results: one for each group, in the order asked.
        silent: nodes that gave no whole answer, and why.
        device: device of the measurement, as its driver names it; None if no rank reported it.
        nvlink: whether any of their GPUs has an active NVLink; None if no rank reported it.
    """

    results: tuple[GroupResult, ...]
    silent: Mapping[str, str]
    device: str | None
    nvlink: bool | None = None


class MeasuredGroups:
    """The place at which groups are measured.

    Attributes:
        rounds, runs: how many rounds and groups have been measured.
    """

    def __init__(self, fleet: Fleet, name: str, sizes: Sizes, deadline_s: float) -> None:
        self.rounds = 0
        self.runs = 0
        self.local_ranks = tuple(range(fleet.site.ranks_per_node))
        self._fleet = fleet
        self._name = name
        self._sizes = sizes
        self._deadline_s = deadline_s

    def play(self, rounds: Sequence[Sequence[RankGroup]]) -> Played:
        """Measure rounds of disjoint groups, one round after the other, in one step of the nodes that take part."""
        self.rounds += len(rounds)
        self.runs += sum(len(groups) for groups in rounds)
        taking_part = {host for groups in rounds for group in groups for host in group.hosts}
        hosts = tuple(host for host in self._fleet.hosts if host in taking_part)
        per_node = len(self.local_ranks)
        plan = [[_ranks(group, hosts, per_node) for group in groups] for groups in rounds]
        longest_s = self._sizes.patience_s + _TIMEOUTS_A_ROUND * self._sizes.timeout_s * (len(rounds) + 1)
        limits = {"limit_s": min(longest_s, _LIMIT_SHARE * self._deadline_s)}
        probe = Probe(
            name=self._name,
            entry=_ENTRY,
            config={"rounds": plan, **self._sizes.model_dump(), **limits},
            hosts=hosts,
            ranks_per_node=per_node,
            gpus=self._fleet.site.device == "cuda",
            together=True,
            deadline_s=self._deadline_s,
        )
        answers = read_answers(self._fleet.run([probe])[0], RankGames)
        return Played(
            results=tuple(_results(rounds, plan, answers)),
            silent=silent(answers),
            device=next((answer.data.device for answer in answers if answer.data is not None), None),
            nvlink=_any_known(answer.data.nvlink for answer in answers if answer.data is not None),
        )


def _any_known(told: Iterable[bool | None]) -> bool | None:
    """Whether any says yes; None where none says anything."""
    known = [word for word in told if word is not None]
    return any(known) if known else None


def _ranks(group: RankGroup, hosts: Sequence[str], per_node: int) -> list[int]:
    return [hosts.index(host) * per_node + local for host in group.hosts for local in group.local_ranks]


def _results(
    rounds: Sequence[Sequence[RankGroup]], plan: Sequence[Sequence[Sequence[int]]], answers: Sequence[Answer[RankGames]]
) -> Iterator[GroupResult]:
    games = [_games(answer) for answer in answers]
    for number, groups in enumerate(rounds):
        for index, group in enumerate(groups):
            told = {rank: games[rank].get((number, index)) for rank in plan[number][index]}
            yield _result(group, told, answers)


def _games(answer: Answer[RankGames]) -> dict[tuple[int, int], PlayedGame]:
    games = () if answer.data is None else answer.data.games
    return {(game.round, game.group): game for game in games}


def _result(
    group: RankGroup, told: Mapping[int, PlayedGame | None], answers: Sequence[Answer[RankGames]]
) -> GroupResult:
    """One result of what each rank of a group says. Only what all of them measured is a number."""
    known = [game for game in told.values() if game is not None]
    missing = {rank for game in known for rank in game.missing}
    missing |= {rank for rank, game in told.items() if game is None}
    if missing:
        why = "; ".join(_absent(answers[rank]) for rank in sorted(missing))
        return GroupResult(group=group, fault="no_answer", why=why)
    errors = [f"{answers[rank].host}: {game.error}" for rank, game in told.items() if game and game.error is not None]
    if errors:
        return GroupResult(group=group, fault="error", why=errors[0])
    measured = [game.measured for game in known if game.measured is not None]
    wrong = sum(each.wrong for each in measured)
    if wrong:
        return GroupResult(group=group, fault="wrong_values", why=f"{wrong} elements of the sums are wrong")
    return GroupResult(
        group=group,
        busbw=min(each.busbw for each in measured),
        latency_us=1e6 * max(each.latency_s for each in measured),
    )


def _absent(answer: Answer[RankGames]) -> str:
    why = answer.why or (answer.data.stopped if answer.data is not None else None) or "it did not come"
    return f"no answer: rank {answer.rank} of {answer.host}: {why}"
