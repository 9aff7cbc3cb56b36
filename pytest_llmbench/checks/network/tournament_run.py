"""The hunt for the slow node: a tournament on real nodes, without those that do not answer."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pytest_llmbench.checks.network.groups import GroupResult, MeasuredGroups, Played, RankGroup
from pytest_llmbench.checks.network.tournament import Game, Pair, PairVerdict, Rounds, floor_of, judge, schedule

_ATTEMPTS = 3

# The reference for a pair on a device, GB/s; None where there is none.
RateOf = Callable[[str], float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Hunt:
    """The result. A player is a node, or one rail of it.

    Attributes:
        players: node and rail by player; the rail is empty where all of them are used.
        first: results of the first pass between nodes that answered, by pair.
        silent: nodes that gave no answer, and why.
        witnessed: whether most nodes answered, so that silence is about the silent.
        referenced: whether the floor is that of a reference.
    """

    players: Mapping[str, tuple[str, str]]
    first: Mapping[Pair, GroupResult]
    second: tuple[GroupResult, ...]
    verdict: PairVerdict
    silent: Mapping[str, str]
    witnessed: bool
    device: str | None
    referenced: bool


def hunt(
    field: MeasuredGroups,
    hosts: Sequence[str],
    rails: Sequence[int] | None,
    reference: RateOf,
    *,
    rounds: int | None,
    tolerance: float,
    repeats: int,
) -> Hunt:
    """Play pairs of nodes, and name the bad ones.

    Args:
        field: the place of the measurement.
        hosts: two nodes or more.
        rails: local ranks that play one at a time; None for all ranks of a node together.
        reference: bound on the rate of a pair.
        rounds: of each rail, as `schedule` has it.
        tolerance: as in `floor_of`.
        repeats: as in `second_pass`.
    """
    tracks: Sequence[int | None] = rails or [None]
    players = {_name(host, rail): (host, rail) for rail in tracks for host in hosts}
    ranks = {name: field.local_ranks if rail is None else (rail,) for name, (_, rail) in players.items()}

    def group(pair: Pair) -> RankGroup:
        return RankGroup(hosts=(players[pair[0]][0], players[pair[1]][0]), local_ranks=ranks[pair[0]])

    def play(pairs: Rounds) -> Played:
        return field.play([[group(pair) for pair in each] for each in pairs])

    def draw(left: Sequence[str]) -> Rounds:
        return [
            [(_name(one, rail), _name(two, rail)) for one, two in each]
            for rail in tracks
            for each in schedule(left, rounds)
        ]

    first, silent, device = _first_pass(play, draw, hosts)
    games = [game_of(pair, result) for pair, result in first.items()]
    bound = reference(device) if device is not None else None
    second: list[GroupResult] = []

    def further(pairs: Rounds) -> list[Game]:
        played = play(pairs)
        silent.update(played.silent)
        second.extend(played.results)
        return [game_of(pair, result) for pair, result in zip(_flat(pairs), played.results, strict=True)]

    verdict = judge(
        games,
        further,
        floor=floor_of(games, tolerance) if bound is None else bound,
        repeats=repeats,
        league=lambda player: str(players[player][1]),
    )
    return Hunt(
        players={name: (host, "" if rail is None else f"rail {rail}") for name, (host, rail) in players.items()},
        first=first,
        second=tuple(second),
        verdict=verdict,
        silent=silent,
        witnessed=2 * len(silent) < len(hosts),
        device=device,
        referenced=bound is not None,
    )


def _first_pass(
    play: Callable[[Rounds], Played], draw: Callable[[Sequence[str]], Rounds], hosts: Sequence[str]
) -> tuple[dict[Pair, GroupResult], dict[str, str], str | None]:
    """Play until enough is known of every node that answers; those that do not are left out of the next attempt."""
    silent: dict[str, str] = {}
    left = list(hosts)
    for _ in range(_ATTEMPTS):
        pairs = draw(left)
        played = play(pairs)
        silent |= played.silent
        known = {
            pair: result
            for pair, result in zip(_flat(pairs), played.results, strict=True)
            if not set(result.group.hosts) & set(silent)
        }
        left = [host for host in left if host not in silent]
        if not played.silent or _enough(known, left) or len(left) < 2 or 2 * len(silent) >= len(hosts):
            break
    return known, silent, played.device


def _enough(known: Mapping[Pair, GroupResult], hosts: Sequence[str]) -> bool:
    """Whether all nodes played about as much: at least half as often as the one that played most."""
    played = Counter(host for result in known.values() if result.fault != "no_answer" for host in result.group.hosts)
    return bool(hosts) and 2 * min(played[host] for host in hosts) >= max(played.values(), default=1)


def game_of(pair: Pair, result: GroupResult) -> Game:
    """A pair, and the rate it reached."""
    return Game(pair=pair, value=result.busbw)


def _flat(rounds: Rounds) -> list[Pair]:
    return [pair for each in rounds for pair in each]


def _name(host: str, rail: int | None) -> str:
    return host if rail is None else f"{host} rail {rail}"
