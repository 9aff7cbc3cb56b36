"""Search for the slow node: every node plays pairs with several others, then suspects play with good partners.

A pair is as slow as the slower of its two. So a bad node is slow in all of its pairs, and each of its partners in one;
what is left over is a slow link between two good nodes, or chance. The second pass tells them apart.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from pytest_llmbench.judging.outliers import outliers

# Up to here every pair of nodes is measured, and with it every link.
_ALL_UP_TO = 16
# Beyond, the time does not grow with the nodes, and that all partners of a good one are bad is next to impossible.
_ROUNDS = 8
Pair = tuple[str, str]
Rounds = list[list[Pair]]


def schedule(players: Sequence[str], rounds: int | None = None) -> Rounds:
    """Pair players by the circle method: no player is in two pairs of a round, and no pair is met twice.

    Args:
        players: two or more; of an odd number, one pauses in each round.
        rounds: how many. All there are (N - 1, or N for an odd N) is the default up to 16 players, and 8 beyond.
            An odd number of players plays at least two, or one of them would never play.

    Raises:
        ValueError: fewer than two players, or fewer than one round.
    """
    if len(players) < 2 or (rounds is not None and rounds < 1):
        raise ValueError(f"{len(players)} players and {rounds} rounds make no tournament")
    seats: list[str | None] = [*players, *([None] if len(players) % 2 else [])]
    fixed, others = seats[0], seats[1:]
    wanted = rounds or (len(others) if len(players) <= _ALL_UP_TO else _ROUNDS)
    wanted = min(max(wanted, 1 + len(players) % 2), len(others))
    made: Rounds = []
    for number in range(wanted):
        # Turns far apart: partners then sit at different distances, behind different switches.
        turn = number * len(others) // wanted
        ring = [fixed, *others[turn:], *others[:turn]]
        met = zip(ring[: len(ring) // 2], reversed(ring), strict=False)
        made.append([(one, two) for one, two in met if one is not None and two is not None])
    return made


def disjoint(pairs: Iterable[Pair]) -> Rounds:
    """Distribute pairs over rounds in which each node is in one pair."""
    rounds: Rounds = []
    for pair in pairs:
        free = (each for each in rounds if not any(set(pair) & set(other) for other in each))
        chosen = next(free, None)
        if chosen is None:
            rounds.append([pair])
        else:
            chosen.append(pair)
    return rounds


# In scaled MADs. Early: two bad players of eight widen the MAD, and the second pass clears who is suspected in vain.
_SUSPECT = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Game:
    """One measured pair.

    Attributes:
        value: the rate they reached; None where they reached none.
    """

    pair: Pair
    value: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspicion:
    """The result of the first pass.

    Attributes:
        floor: the rate below which a pair is slow; None where there is nothing to compare with.
        suspects: players that may be bad.
        good: the others with a good pair, the best proven first.
        links: slow pairs that no bad player would explain.
    """

    floor: float | None
    suspects: tuple[str, ...]
    good: tuple[str, ...]
    links: tuple[Pair, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PairVerdict:
    """The result of both passes. Nodes without a finding are good.

    Attributes:
        floor: as in `Suspicion`.
        culprits: slow with most of their good partners, too.
        acquitted: were suspects, and are not slow with most of their good partners.
        unresolved: suspects that no good player was left for.
        links: pairs that stay slow although neither of the two is bad.
        second: the games of the second pass.
    """

    floor: float | None
    culprits: tuple[str, ...]
    acquitted: tuple[str, ...]
    unresolved: tuple[str, ...]
    links: tuple[Pair, ...]
    second: tuple[Game, ...]


Play = Callable[[Rounds], Sequence[Game]]
League = Callable[[str], str]


def floor_of(games: Iterable[Game], tolerance: float) -> float | None:
    """The rate below which a pair is slow, by comparison.

    The median of all pairs would not do: with a third of the nodes bad, more than half of the pairs are slow. So
    players are compared first, each by its best pair; the pairs among those that hold up are what a pair should reach.
    Fewer than three players have no floor, and it means nothing where half of them are bad.

    Args:
        games: those of the first pass.
        tolerance: allowed shortfall from the median, as a fraction of it.
    """
    values = {game.pair: game.value for game in games if game.value is not None}
    best: dict[str, float] = {}
    for pair, value in values.items():
        for player in pair:
            best[player] = max(value, best.get(player, value))
    if len(best) < 3:
        return None
    bad = outliers(best, tolerance=tolerance, factor=_SUSPECT)
    rest = {f"{one} - {two}": value for (one, two), value in values.items() if one not in bad and two not in bad}
    odd = outliers(rest, tolerance=tolerance)
    return min((1 - tolerance) * median(rest.values()), *(value for name, value in rest.items() if name not in odd))


def suspect(games: Sequence[Game], floor: float | None) -> Suspicion:
    """Name those whom the slow pairs of the first pass, below the floor, point at: as few as explain them."""
    left = [game.pair for game in games if is_slow(game, floor)]
    played = Counter(player for game in games for player in game.pair)
    slow = Counter(player for pair in left for player in pair)
    accused: set[str] = set()
    while left:
        # Pairs with one already accused say nothing about the other.
        open_games = Counter(player for game in games if not accused & set(game.pair) for player in game.pair)
        against = Counter(player for pair in left for player in pair)
        share = {player: count / open_games[player] for player, count in against.items()}
        worst = max(share.values())
        if worst <= 0.5:
            break
        accused |= {player for player in share if share[player] == worst}
        left = [pair for pair in left if not accused & set(pair)]
    suspects = accused.union(*left)
    good = [player for player in played if player not in suspects and slow[player] < played[player]]
    return Suspicion(
        floor=floor,
        suspects=tuple(player for player in played if player in suspects),
        good=tuple(sorted(good, key=lambda player: slow[player] / played[player])),
        links=tuple(left),
    )


def second_pass(suspicion: Suspicion, repeats: int, league: League = lambda _: "") -> Rounds:
    """Pair every suspect with good players, as many different ones as there are, and play the odd links again.

    Args:
        suspicion: result of the first pass.
        repeats: games of each suspect and each link.
        league: nodes that may be paired: only those of one league.
    """
    rounds: Rounds = []
    for name in dict.fromkeys(map(league, suspicion.suspects)):
        accused = [player for player in suspicion.suspects if league(player) == name]
        partners = [player for player in suspicion.good if league(player) == name]
        for first in range(0, len(accused) if partners else 0, len(partners) or 1):
            at_once = accused[first : first + len(partners)]
            rounds += [
                [(each, partners[(seat + turn) % len(partners)]) for seat, each in enumerate(at_once)]
                for turn in range(repeats)
            ]
    for pairs in disjoint(suspicion.links):
        rounds += [pairs] * repeats
    return rounds


def judge(
    games: Sequence[Game], play: Play, *, floor: float | None, repeats: int = 3, league: League = lambda _: ""
) -> PairVerdict:
    """Judge the first pass, play the second where it takes one, and judge that.

    Args:
        games: those of the first pass.
        play: measures the pairs of further rounds, in order.
        floor: the rate below which a pair is slow: of a reference, or `floor_of`.
        repeats: as in `second_pass`; an odd number, as the majority decides.
        league: as in `second_pass`.
    """
    suspicion = suspect(games, floor)
    rounds = second_pass(suspicion, repeats, league)
    second = tuple(play(rounds)) if rounds else ()
    links = {frozenset(pair) for pair in suspicion.links}
    told: Mapping[str | frozenset[str], list[bool]] = defaultdict(list)  # by suspect, and by link
    for game in second:
        link = frozenset(game.pair)
        told[link if link in links else game.pair[0]].append(is_slow(game, floor))
    culprits = tuple(player for player in suspicion.suspects if _most(told[player]))
    unresolved = tuple(player for player in suspicion.suspects if not told[player])
    blamed = {*culprits, *unresolved}
    return PairVerdict(
        floor=floor,
        culprits=culprits,
        acquitted=tuple(player for player in suspicion.suspects if player not in blamed),
        unresolved=unresolved,
        links=tuple(pair for pair in suspicion.links if not blamed & set(pair) and _most(told[frozenset(pair)])),
        second=second,
    )


def is_slow(game: Game, floor: float | None) -> bool:
    """Whether a pair reached no rate, or one below the floor."""
    return game.value is None or (floor is not None and game.value < floor)


def _most(told: Sequence[bool]) -> bool:
    return 2 * sum(told) > len(told)
