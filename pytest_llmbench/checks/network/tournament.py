"""Search for the slow node: every node plays pairs with several others, then suspects play with good partners.

A pair is as slow as the slower of its two. So a bad node is slow in all of its pairs, and each of its partners in one.
A slow pair that remains is a slow link between two good nodes, or chance; the second pass decides.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from statistics import median

from pytest_llmbench.judging.outliers import outliers

# Up to here every pair of nodes is measured, and with it every link.
_ALL_UP_TO = 16
# Beyond, the time is constant; a good node with eight bad partners is next to impossible.
_ROUNDS = 8
Pair = tuple[str, str]
# The rate below which a pair is slow, for all pairs or by the boundary between the two.
Floor = float | Mapping[str, float | None] | None
Rounds = list[list[Pair]]


def schedule(players: Sequence[str], rounds: int | None = None) -> Rounds:
    """Pair players by the circle method: each player is in one pair of a round, and each pair meets once.

    There are `rounds` rounds, by default all (N - 1, or N for an odd N) up to 16 players, and 8 beyond. One player of
    an odd number pauses in each round; such a tournament has two rounds at least. Raises ValueError for fewer than two
    players, or fewer than one round.
    """
    if len(players) < 2 or (rounds is not None and rounds < 1):
        raise ValueError(f"{len(players)} players and {rounds} rounds make no tournament")
    seats: list[str | None] = [*players, *([None] if len(players) % 2 else [])]
    fixed, others = seats[0], seats[1:]
    wanted = rounds or (len(others) if len(players) <= _ALL_UP_TO else _ROUNDS)
    wanted = min(max(wanted, 1 + len(players) % 2), len(others))
    drawn: Rounds = []
    for number in range(wanted):
        # Turns far apart: partners then sit at different distances, behind different switches.
        turn = number * len(others) // wanted
        ring = [fixed, *others[turn:], *others[:turn]]
        met = zip(ring[: len(ring) // 2], reversed(ring), strict=False)
        drawn.append([(one, two) for one, two in met if one is not None and two is not None])
    return drawn


def disjoint(pairs: Iterable[Pair]) -> Rounds:
    """Distribute pairs over rounds in which each node is in one pair."""
    rounds: dict[int, list[Pair]] = {}
    busy: dict[str, set[int]] = defaultdict(set)  # the rounds of each player
    for pair in pairs:
        taken = busy[pair[0]] | busy[pair[1]]
        number = next(number for number in count() if number not in taken)
        rounds.setdefault(number, []).append(pair)
        for player in pair:
            busy[player].add(number)
    return [rounds[number] for number in sorted(rounds)]


# In scaled MADs. A low one: two bad players of eight widen the MAD, and the second pass clears wrong suspects.
_SUSPECT = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Game:
    """One measured pair, and its rate; None after a fault."""

    pair: Pair
    value: float | None
    boundary: str = ""  # the boundary between its two players, such as `rack`; empty within one place


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspicion:
    """The result of the first pass."""

    suspects: tuple[str, ...]  # players that may be bad
    good: tuple[str, ...]  # the others with a good pair, the best proven first
    links: tuple[Pair, ...]  # slow pairs without a bad player


@dataclass(frozen=True, kw_only=True, slots=True)
class PairVerdict:
    """The result of both passes. Nodes without a finding are good."""

    culprits: tuple[str, ...]  # slow with most of their good partners, too
    acquitted: tuple[str, ...]  # suspects that are well with most of their good partners
    unresolved: tuple[str, ...]  # suspects without a good partner
    links: tuple[Pair, ...]  # pairs of good players that stay slow


Play = Callable[[Rounds], Sequence[Game]]
League = Callable[[str], str]


def floor_of(games: Iterable[Game], tolerance: float) -> float | None:
    """The rate below which a pair is slow, by comparison.

    With a third of the nodes bad, more than half of the pairs are slow, and so is the median of all pairs. So players
    are compared first, each by its best pair; the pairs among the good ones define the floor. Fewer than three players
    have no floor, and it is useless where half of them are bad.

    `games` are those of the first pass; `tolerance` is the allowed shortfall from the median, as a fraction of it.
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


def suspect(games: Sequence[Game], floor: Floor) -> Suspicion:
    """Name the fewest players that explain the slow pairs of the first pass, which are below the floor."""
    left = [game.pair for game in games if is_slow(game, floor)]
    played = Counter(player for game in games for player in game.pair)
    slow = Counter(player for pair in left for player in pair)
    accused: set[str] = set()
    while left:
        # Pairs with an accused player are explained by it.
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
        suspects=tuple(player for player in played if player in suspects),
        good=tuple(sorted(good, key=lambda player: slow[player] / played[player])),
        links=tuple(left),
    )


def second_pass(suspicion: Suspicion, repeats: int, league: League = lambda _: "") -> Rounds:
    """Pair every suspect with good players, as many different ones as there are, and play the odd links again.

    `repeats` counts the games of each suspect and each link. Pairs are of players of one `league`.
    """
    rounds: Rounds = []
    for name in dict.fromkeys(map(league, suspicion.suspects)):
        accused = [player for player in suspicion.suspects if league(player) == name]
        partners = [player for player in suspicion.good if league(player) == name]
        for first in range(0, len(accused) if partners else 0, len(partners) or 1):
            at_once = accused[first : first + len(partners)]
            rounds += [
                [(player, partners[(seat + turn) % len(partners)]) for seat, player in enumerate(at_once)]
                for turn in range(repeats)
            ]
    for pairs in disjoint(suspicion.links):
        rounds += [pairs] * repeats
    return rounds


def judge(
    games: Sequence[Game], play: Play, *, floor: Floor, repeats: int = 3, league: League = lambda _: ""
) -> PairVerdict:
    """Judge the first pass, play the second where it is needed, and judge that.

    `play` measures the pairs of further rounds, in order. The `floor` is that of a reference, or `floor_of`. `repeats`
    is an odd number, as the majority decides.
    """
    suspicion = suspect(games, floor)
    rounds = second_pass(suspicion, repeats, league)
    links = {frozenset(pair) for pair in suspicion.links}
    slow: Mapping[str | frozenset[str], list[bool]] = defaultdict(list)  # by suspect, and by link
    for game in play(rounds) if rounds else ():
        link = frozenset(game.pair)
        slow[link if link in links else game.pair[0]].append(is_slow(game, floor))
    culprits = tuple(player for player in suspicion.suspects if _is_most(slow[player]))
    unresolved = tuple(player for player in suspicion.suspects if not slow[player])
    blamed = {*culprits, *unresolved}
    return PairVerdict(
        culprits=culprits,
        acquitted=tuple(player for player in suspicion.suspects if player not in blamed),
        unresolved=unresolved,
        links=tuple(pair for pair in suspicion.links if not blamed & set(pair) and _is_most(slow[frozenset(pair)])),
    )


def is_slow(game: Game, floor: Floor) -> bool:
    """True if a pair has a rate below the floor, or lacks one."""
    least = floor.get(game.boundary) if isinstance(floor, Mapping) else floor
    return game.value is None or (least is not None and game.value < least)


def _is_most(votes: Sequence[bool]) -> bool:
    return 2 * sum(votes) > len(votes)
