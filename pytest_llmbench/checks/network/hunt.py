"""The hunt for the slow node: a tournament on real nodes, without silent ones, and its findings and evidence."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from pytest_llmbench.checks.kinds import SharedKind
from pytest_llmbench.checks.network.groups import (
    GroupFault,
    GroupResult,
    MeasuredGroups,
    NetworkKind,
    Played,
    RankGroup,
    finding,
)
from pytest_llmbench.checks.network.tournament import (
    Game,
    Pair,
    PairVerdict,
    Rounds,
    floor_of,
    is_slow,
    judge,
    schedule,
)
from pytest_llmbench.core.record.health import Finding, Reading, Severity

_ATTEMPTS = 3
_REPLACE = "take the node out; check its cables, ports, NICs and their drivers against a good node"
# Kind, severity and action for a node, by the fault that prevented a rate; None for a slow one.
KINDS: Mapping[GroupFault | None, tuple[NetworkKind | SharedKind, Severity, str]] = {
    None: ("slow_node", Severity.ISOLATE, _REPLACE),
    "error": ("failing_node", Severity.ISOLATE, _REPLACE),
    "wrong_values": ("wrong_values", Severity.ISOLATE, "take the node out: it computes or transmits wrong numbers"),
    "no_answer": ("dead_node", Severity.REBOOT, "look at its console and system log, and reboot it"),
}  #: finding dead_node: a node stops answering in a measurement, and others do not

# The reference for a pair on a device, GB/s; None without one.
RateOf = Callable[[str], float | None]
PlayedPair = tuple[Game, GroupResult]


@dataclass(frozen=True, kw_only=True, slots=True)
class Hunt:
    """The result. A player is a node, or one rail of it."""

    players: Mapping[str, tuple[str, str]]  # node and rail by player; the rail is empty where all of them are used
    first: Mapping[Pair, GroupResult]  # results of the first pass between nodes that answered, by pair
    second: tuple[GroupResult, ...]  # results of the second pass, in the order of `verdict.second`
    verdict: PairVerdict
    silent: Mapping[str, str]  # reasons for nodes without an answer
    witnessed: bool  # whether most nodes answered, so that silence is a fault of the silent ones
    device: str | None
    referenced: bool  # whether the floor is that of a reference

    def pairs_of(self, player: str) -> list[PlayedPair]:
        """The pairs of a player in the first pass."""
        return [(make_game(pair, result), result) for pair, result in self.first.items() if player in pair]

    def repeats_of(self, player: str) -> list[PlayedPair]:
        """The pairs of a suspect with good partners, in the second pass."""
        games = zip(self.verdict.second, self.second, strict=True)
        return [(game, result) for game, result in games if game.pair[0] == player]

    def bad_pairs_of(self, player: str) -> list[PlayedPair]:
        """The bad pairs of a player; only those with good partners, where there are some."""
        games = self.repeats_of(player) or self.pairs_of(player)
        return [(game, result) for game, result in games if self.is_slow(game)]

    def is_slow(self, game: Game) -> bool:
        """Whether a pair is below the floor, or lacks a rate."""
        return is_slow(game, self.verdict.floor)

    def partner(self, game: Game, player: str) -> str:
        """The host of the other one of a pair."""
        return self.players[game.pair[1] if game.pair[0] == player else game.pair[0]][0]

    @property
    def floor_text(self) -> str:
        """The rate of a good pair, and its source, in words."""
        if self.verdict.floor is None:
            return "there is nothing to compare with"
        source = "as the reference has it" if self.referenced else "by comparison with the others"
        return f"a good pair reaches {self.verdict.floor:.4g} GB/s, {source}"


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
    """Play pairs of two nodes or more, and name the bad ones; see `schedule`, `floor_of` and `second_pass`.

    `rails` are local ranks that play one at a time, or None for all ranks of a node together. `reference` is a bound on
    the rate of a pair, and `rounds` is for each rail.
    """
    tracks: Sequence[int | None] = rails or [None]
    players = {_name(host, rail): (host, rail) for rail in tracks for host in hosts}

    def make_group(pair: Pair) -> RankGroup:
        (one, rail), (two, _) = players[pair[0]], players[pair[1]]
        return RankGroup(hosts=(one, two), local_ranks=field.local_ranks if rail is None else (rail,))

    def play(rounds: Rounds) -> Played:
        return field.play([[make_group(pair) for pair in pairs] for pairs in rounds])

    def draw(left: Sequence[str]) -> Rounds:
        return [
            [(_name(one, rail), _name(two, rail)) for one, two in pairs]
            for rail in tracks
            for pairs in schedule(left, rounds)
        ]

    first, silent, device = _play_first_pass(play, draw, hosts)
    games = [make_game(pair, result) for pair, result in first.items()]
    bound = reference(device) if device is not None else None
    second: list[GroupResult] = []

    def play_again(rounds: Rounds) -> list[Game]:
        played = play(rounds)
        silent.update(played.silent)
        second.extend(played.results)
        return [make_game(pair, result) for pair, result in zip(_flatten(rounds), played.results, strict=True)]

    floor = floor_of(games, tolerance) if bound is None else bound
    verdict = judge(games, play_again, floor=floor, repeats=repeats, league=lambda player: str(players[player][1]))
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


def _play_first_pass(
    play: Callable[[Rounds], Played], draw: Callable[[Sequence[str]], Rounds], hosts: Sequence[str]
) -> tuple[dict[Pair, GroupResult], dict[str, str], str | None]:
    """Play until every node that answers has enough results; each attempt leaves silent nodes out."""
    silent: dict[str, str] = {}
    left = list(hosts)
    for _ in range(_ATTEMPTS):
        rounds = draw(left)
        played = play(rounds)
        silent |= played.silent
        known = {
            pair: result
            for pair, result in zip(_flatten(rounds), played.results, strict=True)
            if not set(result.group.hosts) & set(silent)
        }
        left = [host for host in left if host not in silent]
        if not played.silent or _is_enough(known, left) or len(left) < 2 or 2 * len(silent) >= len(hosts):
            break
    return known, silent, played.device


def _is_enough(known: Mapping[Pair, GroupResult], hosts: Sequence[str]) -> bool:
    """Whether all nodes played at least half as often as the one that played most."""
    played = Counter(host for result in known.values() if result.fault != "no_answer" for host in result.group.hosts)
    return bool(hosts) and 2 * min(played[host] for host in hosts) >= max(played.values(), default=1)


def make_game(pair: Pair, result: GroupResult) -> Game:
    """A pair with its rate."""
    return Game(pair=pair, value=result.busbw)


def _flatten(rounds: Rounds) -> list[Pair]:
    return [pair for pairs in rounds for pair in pairs]


def _name(host: str, rail: int | None) -> str:
    return host if rail is None else f"{host} rail {rail}"


def make_findings(hunt: Hunt) -> list[Finding]:
    """Everything that is wrong or worth watching, as far as a node can be named."""
    return [*_find_dead(hunt), *_find_culprits(hunt), *_find_links(hunt), *_find_slow_at_times(hunt)]


def _find_dead(hunt: Hunt) -> Iterator[Finding]:
    if hunt.witnessed:
        kind, severity, action = KINDS["no_answer"]
        for host, reason in hunt.silent.items():
            yield finding(host, "", kind, severity, f"it gave no answer, and other nodes did: {reason}", action)


def _find_culprits(hunt: Hunt) -> Iterator[Finding]:
    for player in hunt.verdict.culprits:
        host, rail = hunt.players[player]
        if host in hunt.silent:
            continue
        first = hunt.pairs_of(player)
        # The most frequent fault of its bad pairs is its kind.
        fault = Counter(result.fault for _, result in hunt.bad_pairs_of(player)).most_common(1)[0][0]
        kind, severity, action = KINDS[fault]
        slow = sum(hunt.is_slow(game) for game, _ in first)
        second = hunt.repeats_of(player)
        again = "; ".join(f"with {hunt.partner(game, player)} {result.text}" for game, result in second)
        rates = [result.busbw for _, result in first if result.busbw is not None]
        middle = f", median {median(rates):.4g} GB/s" if rates else ""
        message = f"bad in {slow} of {len(first)} pairs{middle}; with good nodes again: {again}; {hunt.floor_text}"
        measured = f"{median(rates):.6g} GB/s" if rates else None
        threshold = None if hunt.verdict.floor is None else f">= {hunt.verdict.floor:.6g} GB/s"
        made = finding(host, rail, kind, severity, message, action)
        yield made.model_copy(update={"measured": measured, "threshold": threshold})


def _find_links(hunt: Hunt) -> Iterator[Finding]:
    for pair in hunt.verdict.links:
        games = zip(hunt.verdict.second, hunt.second, strict=True)
        again = [result for game, result in games if set(game.pair) == set(pair)]
        rates = "; ".join(result.text for result in [hunt.first[pair], *again])
        # Each of the two works with all others: both get a hint, and stay in.
        for player in pair:
            message = f"slow with each other alone: {rates}; both are well with other nodes; {hunt.floor_text}"
            action = "check the switches and cables between the two; until then, keep them out of one training"
            #: finding slow_link: two nodes are slow with each other alone
            yield finding(hunt.players[player][0], " - ".join(pair), "slow_link", Severity.MONITOR, message, action)


def _find_slow_at_times(hunt: Hunt) -> Iterator[Finding]:
    linked = {player for pair in hunt.verdict.links for player in pair}
    for player in hunt.verdict.acquitted:
        if player in linked:
            continue
        first = hunt.pairs_of(player)
        slow = [result.text for game, result in first if hunt.is_slow(game)]
        message = f"bad in {len(slow)} of {len(first)} pairs ({'; '.join(slow)}), and well again with good nodes; "
        message += hunt.floor_text
        action = "measure again; a link that drops or retrains shows in its counters"
        host, rail = hunt.players[player]
        #: finding slow_at_times: a node was slow in the first pass and not in the second
        yield finding(host, rail, "slow_at_times", Severity.MONITOR, message, action)


def list_unjudged(hunt: Hunt) -> dict[str, str]:
    """Unjudged nodes, with the reason."""
    reasons: dict[str, str] = {} if hunt.witnessed else dict(hunt.silent)
    verdict = hunt.verdict
    for player in verdict.unresolved:
        host, rail = hunt.players[player]
        pairs = hunt.bad_pairs_of(player)[:3]
        bad = "; ".join(f"with {hunt.partner(game, player)} {result.text}" for game, result in pairs)
        where = f"{rail}: " if rail else ""
        rest = f"no good node is left to find the bad one with; {hunt.floor_text}"
        reasons.setdefault(host, f"{where}bad {bad}; {rest}")
    named = {*verdict.culprits, *verdict.unresolved}
    for pair, result in hunt.first.items():
        if result.fault == "wrong_values" and not named & set(pair):
            for player in pair:
                reason = f"{' - '.join(pair)}: {result.reason}; it did not happen again"
                reasons.setdefault(hunt.players[player][0], reason)
    measured = {host for result in hunt.first.values() if result.fault != "no_answer" for host in result.group.hosts}
    blamed = {hunt.players[player][0] for player in named} | hunt.silent.keys()
    for host, _ in hunt.players.values():
        if host not in measured | blamed:
            reasons.setdefault(host, "no pair with it was measured")
    return reasons


def make_readings(hunt: Hunt, statistic: str, per_node: str, gpus: int) -> list[Reading]:
    """The rate of every pair, and, as statistic `per_node`, the median of every node's pairs.

    `gpus` counts those of one node that took part.
    """
    rates = {pair: result.busbw for pair, result in hunt.first.items() if result.busbw is not None}
    unit, both = "GB/s", 2 * gpus
    readings = [
        Reading(subject=" - ".join(pair), statistic=statistic, value=rate, unit=unit, nodes=2, gpus=both)
        for pair, rate in rates.items()
    ]
    for player, (host, rail) in hunt.players.items():
        own = [rate for pair, rate in rates.items() if player in pair]
        if own:
            middle = median(own)
            readings.append(
                Reading(host=host, subject=rail, statistic=per_node, value=middle, unit=unit, nodes=2, gpus=both)
            )
    return readings


def make_evidence(hunt: Hunt) -> dict[str, Any]:
    """Numbers behind the findings; those of all good pairs are readings."""
    slow = [_row(pair, result) for pair, result in hunt.first.items() if hunt.is_slow(make_game(pair, result))]
    second = [_row(game.pair, result) for game, result in zip(hunt.verdict.second, hunt.second, strict=True)]
    return {"floor_gb_s": hunt.verdict.floor, "pairs": len(hunt.first), "slow_pairs": slow, "second_pass": second}


def _row(pair: Sequence[str], result: GroupResult) -> dict[str, Any]:
    return {"pair": list(pair), "busbw_gb_s": result.busbw, **({"why": result.reason} if result.reason else {})}
