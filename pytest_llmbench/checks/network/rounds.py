"""Schedule of pairs in rounds: each node is in one pair at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
