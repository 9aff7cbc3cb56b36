"""The ranks with wrong numbers, from the trainings of two groups before and after they changed places.

A wrong number reaches all of its group with the next exchange. So the first disagreement of a training counts, and in
it the numbers from before the exchange. In another turn, other ranks compute the same numbers: with three that agree
on a number, the fourth is wrong.
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
    """The result of a team's turns."""

    wrong: Mapping[int, str] = field(default_factory=dict)  # the first wrong number of each wrong rank
    suspects: tuple[frozenset[int], ...] = ()  # ranks one of which is wrong, for each disagreement without a majority
    swaps: int = 0  # the number of swaps that named the wrong ones


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
            numbers = list(_list_numbers(seated, number, "local"))
            _count(votes, numbers)
            own, lost = _find_lost(seated, number)
            wrong |= dict.fromkeys(own - wrong.keys(), f"its own copy of what it sent in step {number + 1}")
            damaged += lost
            if _disagree(numbers) or own or lost:
                break
            # Wrong weights are their rank's alone until the next exchange.
            _count(votes, _list_numbers(seated, number, "weights"))
    undecided = _intersect(damaged)
    ends = (rank for suspects in undecided if len(suspects) == 1 for rank in suspects)
    wrong |= dict.fromkeys(ends, "a part that it sent or got")
    for place in sorted(votes):
        odd, tied = _find_minority(votes[place])
        wrong |= {rank: str(place) for rank in sorted(odd - wrong.keys())}
        undecided += [tied] if tied else []
    # A wrong rank explains its disagreements; one alone disagrees with itself.
    alone = {rank for suspects in undecided if len(suspects) == 1 for rank in suspects}
    wrong |= dict.fromkeys(alone - wrong.keys(), "numbers that it computes differently each time")
    unexplained = (suspects for suspects in undecided if not suspects & wrong.keys())
    return NumbersVerdict(wrong=wrong, suspects=tuple(dict.fromkeys(unexplained)))


def _list_numbers(seated: Mapping[int, Turn], number: int, stage: str) -> Iterator[tuple[int, NumberOf, str]]:
    for rank, turn in seated.items():
        if turn.seat is not None:
            shard = turn.seat.shard if stage == "local" else 0
            yield rank, NumberOf(number + 1, stage, shard), getattr(turn.steps[number], stage)


def _count(votes: dict[NumberOf, dict[str, set[int]]], numbers: Iterable[tuple[int, NumberOf, str]]) -> None:
    for rank, place, digest in numbers:
        votes[place][digest].add(rank)


def _disagree(numbers: Iterable[tuple[int, NumberOf, str]]) -> bool:
    values = {(place, digest) for _, place, digest in numbers}
    return len(values) > len({place for place, _ in values})


def _find_lost(seated: Mapping[int, Turn], number: int) -> tuple[set[int], list[frozenset[int]]]:
    """Ranks whose own part differs from their computed one, and each sender with the receivers of another part."""
    own: set[int] = set()
    lost = []
    for rank, turn in seated.items():
        if turn.seat is None:
            continue
        sent = turn.steps[number].local
        got = {
            other: theirs.steps[number].gathered[turn.seat.shard]
            for other, theirs in seated.items()
            if theirs.seat is not None and theirs.seat.group == turn.seat.group
        }
        others = {other for other, digest in got.items() if digest != sent}
        if rank in others:
            own.add(rank)
        elif others:
            lost.append(frozenset(others | {rank}))
    return own, lost


def _intersect(damaged: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Ranks in every damaged transfer, or, without such, all ranks of each: a link has two ends."""
    if not damaged:
        return []
    everywhere = frozenset.intersection(*damaged)
    return [everywhere] if everywhere else list(damaged)


def _find_minority(votes: Mapping[str, set[int]]) -> tuple[set[int], frozenset[int]]:
    """Ranks that a majority of ranks contradicts, or, without one, all that disagree."""
    if len(votes) < 2:
        return set(), frozenset()
    first, second, *_ = sorted(votes.values(), key=len, reverse=True)
    if len(first) > len(second):
        return {rank for ranks in votes.values() if ranks is not first for rank in ranks}, frozenset()
    return set(), frozenset(rank for ranks in votes.values() for rank in ranks)
