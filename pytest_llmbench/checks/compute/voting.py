"""Whose numbers are wrong: from what ranks computed in two groups, before and after they changed places.

A wrong number reaches all of its group with the next exchange. So only the first disagreement of a training counts,
and in it the numbers from before the exchange. Another turn has other ranks compute the same numbers: with three that
agree on a number, the fourth is wrong.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_llmbench.checks.compute.nodes.seating import Turn


class NumberOf(NamedTuple):
    """A number: the gradients and the loss of a share of the data in a step, or the weights after it."""

    step: int
    stage: str
    shard: int

    def __str__(self) -> str:
        if self.stage == "weights":
            return f"the weights after step {self.step}"
        return f"loss and gradients of step {self.step}, before the exchange"


@dataclass(frozen=True, kw_only=True, slots=True)
class NumbersVerdict:
    """The result of a team's turns.

    Attributes:
        wrong: ranks whose numbers are wrong, and the first of these.
        suspects: ranks one of which is wrong, for each disagreement that no majority decides.
        swaps: after how many swaps the wrong ones were known.
    """

    wrong: Mapping[int, str] = field(default_factory=dict)
    suspects: tuple[frozenset[int], ...] = ()
    swaps: int = 0


Turns = Sequence[Mapping[int, Turn]]


def judge_numbers(turns: Turns) -> NumbersVerdict:
    """Judge the turns of one team, each by rank."""
    whole = _judge(turns)
    for count in range(1, len(turns)):
        early = _judge(turns[:count])
        if early.wrong.keys() == whole.wrong.keys() and early.suspects == whole.suspects:
            return NumbersVerdict(wrong=early.wrong, suspects=early.suspects, swaps=count - 1)
    return NumbersVerdict(wrong=whole.wrong, suspects=whole.suspects, swaps=max(len(turns) - 1, 0))


def _judge(turns: Turns) -> NumbersVerdict:
    votes: dict[NumberOf, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    damaged: list[frozenset[int]] = []
    wrong: dict[int, str] = {}
    for ranks in turns:
        seated = {rank: turn for rank, turn in ranks.items() if turn.seat is not None}
        for number in range(min((len(turn.steps) for turn in seated.values()), default=0)):
            said = list(_said(seated, number, "local"))
            _count(votes, said)
            own, lost = _lost(seated, number)
            wrong |= dict.fromkeys(own - wrong.keys(), f"its own copy of what it sent in step {number + 1}")
            damaged += lost
            if _disagree(said) or own or lost:
                break
            # Wrong weights are their rank's alone until the next exchange.
            _count(votes, _said(seated, number, "weights"))
    undecided = _common(damaged)
    wrong |= dict.fromkeys(
        (rank for each in undecided if len(each) == 1 for rank in each), "a part that it sent or got"
    )
    for place in sorted(votes):
        odd, tied = _minority(votes[place])
        wrong |= {rank: str(place) for rank in sorted(odd - wrong.keys())}
        undecided += [tied] if tied else []
    # A rank that is known to be wrong explains its disagreements; one alone disagrees with itself.
    alone = {rank for each in undecided if len(each) == 1 for rank in each}
    wrong |= dict.fromkeys(alone - wrong.keys(), "numbers that it computes differently each time")
    return NumbersVerdict(wrong=wrong, suspects=tuple(dict.fromkeys(e for e in undecided if not e & wrong.keys())))


def _said(seated: Mapping[int, Turn], number: int, stage: str) -> Iterator[tuple[int, NumberOf, str]]:
    for rank, turn in seated.items():
        if turn.seat is not None:
            shard = turn.seat.shard if stage == "local" else 0
            yield rank, NumberOf(number + 1, stage, shard), getattr(turn.steps[number], stage)


def _count(votes: dict[NumberOf, dict[str, set[int]]], said: Iterable[tuple[int, NumberOf, str]]) -> None:
    for rank, place, digest in said:
        votes[place][digest].add(rank)


def _disagree(said: Iterable[tuple[int, NumberOf, str]]) -> bool:
    values = {(place, digest) for _, place, digest in said}
    return len(values) > len({place for place, _ in values})


def _lost(seated: Mapping[int, Turn], number: int) -> tuple[set[int], list[frozenset[int]]]:
    """Ranks whose own part is not what they computed, and each sender with those that got something else from it."""
    own: set[int] = set()
    lost = []
    for rank, turn in seated.items():
        if turn.seat is None:
            continue
        sent = turn.steps[number].local
        got = {
            other: each.steps[number].gathered[turn.seat.shard]
            for other, each in seated.items()
            if each.seat is not None and each.seat.group == turn.seat.group
        }
        others = {other for other, digest in got.items() if digest != sent}
        if rank in others:
            own.add(rank)
        elif others:
            lost.append(frozenset(others | {rank}))
    return own, lost


def _common(damaged: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Ranks that are in every damaged transfer, or all of each where none is: a link has two ends."""
    if not damaged:
        return []
    everywhere = frozenset.intersection(*damaged)
    return [everywhere] if everywhere else list(damaged)


def _minority(votes: Mapping[str, set[int]]) -> tuple[set[int], frozenset[int]]:
    """Ranks that a majority of ranks contradicts, or, without one, all that disagree."""
    if len(votes) < 2:
        return set(), frozenset()
    first, second, *_ = sorted(votes.values(), key=len, reverse=True)
    if len(first) > len(second):
        return {rank for ranks in votes.values() if ranks is not first for rank in ranks}, frozenset()
    return set(), frozenset(rank for ranks in votes.values() for rank in ranks)
