"""A cluster with slow nodes: what pairs and groups of it would measure, with noise, without measuring anything."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from pytest_llmbench.checks.network.group_bisection import Bisection, bisect
from pytest_llmbench.checks.network.tournament import Game, Pair, PairVerdict, Rounds, floor_of, judge, schedule

TOLERANCE = 0.1


@dataclass
class SlowNodes:
    """A group is as fast as its slowest node."""

    nodes: int  # how many
    bad: int  # how many of them are slow
    seed: int  # of everything random: which nodes are bad, and the noise
    sigma: float = 0.0  # of the log-normal noise on every measurement
    fluke: float = 0.0  # probability that a measurement is slow by chance
    speed: float = 0.7  # of a bad node; a good one has 1
    links: tuple[Pair, ...] = ()  # slow links, as pairs of names
    runs: int = 0  # groups that were measured so far

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.names = [f"n{number}" for number in range(self.nodes)]
        self.culprits = set(self.random.sample(self.names, self.bad))

    def rate(self, group: Sequence[str]) -> float:
        slow = bool(self.culprits & set(group)) or any(set(link) <= set(group) for link in self.links)
        slow = slow or (self.fluke > 0 and self.random.random() < self.fluke)
        return (self.speed if slow else 1.0) * math.exp(self.sigma * self.random.gauss(0, 1))

    def play(self, rounds: Rounds) -> list[Game]:
        self.runs += sum(len(pairs) for pairs in rounds)
        return [Game(pair=pair, value=self.rate(pair)) for pairs in rounds for pair in pairs]

    def slow(self, groups: Sequence[tuple[str, ...]]) -> list[bool]:
        self.runs += len(groups)
        return [self.rate(group) < 1 - TOLERANCE for group in groups]

    def hunt(self, floor: float | None = None) -> PairVerdict:
        """The tournament and its second pass, by comparison where no floor is given."""
        games = self.play(schedule(self.names))
        return judge(games, self.play, floor=floor_of(games, TOLERANCE) if floor is None else floor)

    def halve(self) -> Bisection:
        """The bisection alone."""
        return bisect(self.names, self.slow)
