"""Boundaries between racks and switches: pairs across one are compared with each other, and a slow one is named.

A node at fault is slow with all others. Behind a slow switch, all of its nodes are; between two racks with a slow link,
pairs of the two are; and where a boundary is slow everywhere, all pairs across it are. None of this is the fault of a
node, so the finding is about the place.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_llmbench.checks.network.tournament import Game, Pair, floor_of, is_slow
from pytest_llmbench.core.recipe.topology import Places, Segment

Floors = Mapping[str, float | None]
# Least share of bad nodes of a bad place, and of bad pairs between two places whose link is bad.
_MOST = 0.8
_FEWEST_PAIRS = 3


def floors_of(games: Sequence[Game], rates: Mapping[str, float], tolerance: float) -> dict[str, float | None]:
    """The rate below which a pair is slow, for each boundary; one for all where boundaries are alike.

    `rates` are those of the boundaries; one without a rate, or with too few pairs to be compared, takes the lowest one.
    """
    names = {game.boundary for game in games}
    if not rates or min(rates.values()) >= (1 - tolerance) * max(rates.values()):
        return dict.fromkeys(names, floor_of(games, tolerance))
    floors = {
        name: floor_of([game for game in games if game.boundary == name], tolerance) if name in rates else None
        for name in names
    }
    common = min((floor for floor in floors.values() if floor is not None), default=None)
    return {name: common if floor is None else floor for name, floor in floors.items()}


def boundary_rates(
    games: Sequence[Game], places: Places, places_of: Callable[[Game], tuple[str, ...]]
) -> dict[str, float]:
    """The upper quartile of the pairs across each boundary; the empty name is for those within one place.

    A boundary is slow as a whole if its better pairs are; half of all may be slow because of one bad switch. So that
    counts without the pairs of any one place, unless there are but two. The rate is missing if all pairs
    touch one place. `places_of` names the two places of a pair.
    """
    rates: dict[str, list[tuple[float, tuple[str, ...]]]] = defaultdict(list)
    for game in games:
        if game.value is not None:
            rates[game.boundary].append((game.value, places_of(game)))
    counts = {name: len({*groups.values()}) for name, groups in places.levels.items()}
    rates_of_names = {
        name: _rate_of(pairs) if counts.get(name, 0) > 2 else _upper_quartile([value for value, _ in pairs])
        for name, pairs in rates.items()
    }
    return {name: rate for name, rate in rates_of_names.items() if rate is not None}


def _rate_of(pairs: Sequence[tuple[float, tuple[str, ...]]]) -> float | None:
    places = {place for _, names in pairs for place in names}
    without = [[value for value, names in pairs if place not in names] for place in places]
    return max(map(_upper_quartile, without)) if all(without) else None


def _upper_quartile(values: Sequence[float]) -> float:
    return sorted(values)[(3 * (len(values) - 1) + 2) // 4]


def place_players(places: Places, players: Mapping[str, tuple[str, str]]) -> Places:
    """The places of players, which are nodes, or one rail of each: by name, the host and the rail, if any.

    Behind a switch, each rail is a place of its own; and so is a rail of all nodes.
    """
    levels = {
        level: {name: f"{groups[host]} {rail}".rstrip() for name, (host, rail) in players.items() if host in groups}
        for level, groups in places.levels.items()
    }
    rails = {name: rail.removeprefix("rail ") for name, (_, rail) in players.items() if rail}
    return Places({**levels, **({"rail": rails} if rails else {})})


def find_bad_places(places: Places, accused: Collection[str], games: Sequence[Game], floors: Floors) -> list[Segment]:
    """Find the places that are slow as a whole, each with its slow players; outermost first.

    Two of its players at least are accused, and nearly all are slow: a player also counts if all of its pairs to the
    outside are, as one of few pairs may be within the place and fast.
    """
    played: dict[str, list[Game]] = defaultdict(list)
    for game in games:
        for player in game.pair:
            played[player].append(game)
    segments: list[Segment] = []
    # If most are accused, the fault is larger than a place.
    left = {*accused} if 2 * len(accused) <= len(played) else set[str]()
    for place in reversed([*places]):
        members = {*place.hosts}
        own = [player for player in place.hosts if player in played]
        if len(left & members) < 2 or len(own) == len(played):
            continue
        outside = {player: [game for game in played[player] if not members >= {*game.pair}] for player in own}
        bad = [
            player for player in own
            if player in left or (outside[player] and all(is_slow(game, floors) for game in outside[player]))
        ]  # fmt: skip
        if len(bad) >= _MOST * len(own):
            segments.append(Segment(level=place.level, name=place.name, hosts=tuple(bad)))
            left -= members
    return segments


@dataclass(frozen=True, kw_only=True, slots=True)
class BadLink:
    """Two places between which the pairs are slow, and well with all others."""

    level: str
    names: tuple[str, ...]
    pairs: tuple[Pair, ...]  # the slow ones
    measured: int  # pairs between the two

    @property
    def players(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(player for pair in self.pairs for player in pair))

    def __str__(self) -> str:
        return f"{self.level} {' - '.join(self.names)}"


def find_bad_links(places: Places, links: Sequence[Pair], games: Sequence[Game], floors: Floors) -> Iterator[BadLink]:
    """Yield the links between places that explain the slow pairs of good players."""
    if len(links) < _FEWEST_PAIRS:
        return
    left = {*links}
    for level in reversed(places.levels):
        between: dict[tuple[str, ...], list[Game]] = defaultdict(list)
        for game in games:
            if names := places.between(level, *game.pair):
                between[names].append(game)
        for names, played in between.items():
            own = tuple(game.pair for game in played if game.pair in left)
            slow = sum(is_slow(game, floors) for game in played)
            ends = ({*ends} for ends in zip(*own, strict=True))
            if len(own) >= _FEWEST_PAIRS and slow >= _MOST * len(played) and all(len(end) > 1 for end in ends):
                left -= {*own}
                yield BadLink(level=level, names=names, pairs=own, measured=len(played))
