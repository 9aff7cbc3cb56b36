"""Findings of a tournament, with their evidence."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from pytest_llmbench.checks.kinds import SharedKind
from pytest_llmbench.checks.network.groups import Fault, GroupResult
from pytest_llmbench.checks.network.kinds import NetworkKind, finding
from pytest_llmbench.checks.network.tournament import Game, is_slow
from pytest_llmbench.checks.network.tournament_run import Hunt, game_of
from pytest_llmbench.core.record.health import Finding, Reading, Severity

_REPLACE = "take the node out; check its cables, ports, NICs and their drivers against a good node"
# What is said of a node by what keeps it from a rate: kind, severity, and what to do.
KINDS: Mapping[Fault | None, tuple[NetworkKind | SharedKind, Severity, str]] = {
    None: ("slow_node", Severity.ISOLATE, _REPLACE),
    "error": ("failing_node", Severity.ISOLATE, _REPLACE),
    "wrong_values": ("wrong_values", Severity.ISOLATE, "take the node out: it computes or transmits wrong numbers"),
    "no_answer": ("dead_node", Severity.REBOOT, "look at its console and system log, and reboot it"),
}  #: finding dead_node: a node stops answering in a measurement, and others do not


def findings_of(hunt: Hunt) -> list[Finding]:
    """Everything that is wrong or worth watching, as far as a node can be named."""
    return [*_dead(hunt), *_culprits(hunt), *_links(hunt), *_at_times(hunt)]


def unjudged_of(hunt: Hunt) -> dict[str, str]:
    """Nodes that could not be judged, and why."""
    told: dict[str, str] = {} if hunt.witnessed else dict(hunt.silent)
    verdict = hunt.verdict
    for player in verdict.unresolved:
        host, rail = hunt.players[player]
        bad = "; ".join(f"with {_other(hunt, game, player)} {result.text}" for game, result in _bad(hunt, player)[:3])
        where = f"{rail}: " if rail else ""
        told.setdefault(host, f"{where}bad {bad}; no good node is left to find the bad one with; {_floor(hunt)}")
    named = {*verdict.culprits, *verdict.unresolved}
    for pair, result in hunt.first.items():
        if result.fault == "wrong_values" and not named & set(pair):
            for player in pair:
                told.setdefault(hunt.players[player][0], f"{' - '.join(pair)}: {result.why}; it did not happen again")
    measured = {host for result in hunt.first.values() if result.fault != "no_answer" for host in result.group.hosts}
    blamed = {hunt.players[player][0] for player in named} | hunt.silent.keys()
    for host, _ in hunt.players.values():
        if host not in measured | blamed:
            told.setdefault(host, "no pair with it was measured")
    return told


def readings_of(hunt: Hunt, statistic: str, per_node: str, gpus: int) -> list[Reading]:
    """The rate of every pair, and, as statistic `per_node`, the median of every node's pairs.

    `gpus` counts those of one node that took part.
    """
    pairs = {" - ".join(pair): (pair, result.busbw) for pair, result in hunt.first.items() if result.busbw is not None}
    readings = [
        Reading(subject=subject, statistic=statistic, value=value, unit="GB/s", nodes=2, gpus=2 * gpus)
        for subject, (_, value) in pairs.items()
    ]
    for player, (host, rail) in hunt.players.items():
        values = [value for pair, value in pairs.values() if player in pair]
        if values:
            middle = median(values)
            readings.append(
                Reading(host=host, subject=rail, statistic=per_node, value=middle, unit="GB/s", nodes=2, gpus=2 * gpus)
            )
    return readings


def evidence_of(hunt: Hunt) -> dict[str, Any]:
    """Numbers behind the findings; those of all good pairs are readings."""
    floor = hunt.verdict.floor
    first = [_row(pair, result) for pair, result in hunt.first.items() if is_slow(game_of(pair, result), floor)]
    second = [_row(game.pair, result) for game, result in zip(hunt.verdict.second, hunt.second, strict=True)]
    return {"floor_gb_s": floor, "pairs": len(hunt.first), "slow_pairs": first, "second_pass": second}


def _dead(hunt: Hunt) -> Iterator[Finding]:
    if hunt.witnessed:
        kind, severity, action = KINDS["no_answer"]
        for host, why in hunt.silent.items():
            message = f"it gave no answer, and other nodes did: {why}"
            yield finding(host, "", kind, severity, message, action)


def _culprits(hunt: Hunt) -> Iterator[Finding]:
    for player in hunt.verdict.culprits:
        host, rail = hunt.players[player]
        if host in hunt.silent:
            continue
        first = [(pair, result) for pair, result in hunt.first.items() if player in pair]
        second = [(game, result) for game, result in _second(hunt) if game.pair[0] == player]
        bad = _bad(hunt, player)
        # What most of its bad pairs suffered from is what it is.
        fault = Counter(result.fault for _, result in bad).most_common(1)[0][0]
        kind, severity, action = KINDS[fault]
        slow = sum(is_slow(game_of(pair, result), hunt.verdict.floor) for pair, result in first)
        good = "; ".join(f"with {_other(hunt, game, player)} {result.text}" for game, result in second)
        numbers = [result.busbw for _, result in first if result.busbw is not None]
        yield Finding(
            host=host,
            subject=rail,
            kind=kind,
            severity=severity,
            message=f"bad in {slow} of {len(first)} pairs{f', median {median(numbers):.4g} GB/s' if numbers else ''}; "
            f"with good nodes again: {good}; {_floor(hunt)}",
            action=action,
            measured=f"{median(numbers):.6g} GB/s" if numbers else None,
            threshold=None if hunt.verdict.floor is None else f">= {hunt.verdict.floor:.6g} GB/s",
        )


def _links(hunt: Hunt) -> Iterator[Finding]:
    for pair in hunt.verdict.links:
        again = [result for game, result in _second(hunt) if set(game.pair) == set(pair)]
        said = "; ".join(result.text for result in [hunt.first[pair], *again])
        # Either node works with all others, so neither is at fault: both say so, and neither is taken out.
        for player in pair:
            message = f"slow with each other alone: {said}; both are well with other nodes; {_floor(hunt)}"
            action = "check the switches and cables between the two; until then, keep them out of one training"
            #: finding slow_link: two nodes are slow with each other alone
            yield finding(hunt.players[player][0], " - ".join(pair), "slow_link", Severity.MONITOR, message, action)


def _at_times(hunt: Hunt) -> Iterator[Finding]:
    linked = {player for pair in hunt.verdict.links for player in pair}
    for player in hunt.verdict.acquitted:
        if player in linked:
            continue
        first = [(pair, result) for pair, result in hunt.first.items() if player in pair]
        slow = [result.text for pair, result in first if is_slow(game_of(pair, result), hunt.verdict.floor)]
        message = f"bad in {len(slow)} of {len(first)} pairs ({'; '.join(slow)}), and well again with good nodes; "
        message += _floor(hunt)
        action = "measure again; a link that drops or retrains shows in its counters"
        host, rail = hunt.players[player]
        #: finding slow_at_times: a node was slow in the first pass and not in the second
        yield finding(host, rail, "slow_at_times", Severity.MONITOR, message, action)


def _floor(hunt: Hunt) -> str:
    floor = hunt.verdict.floor
    if floor is None:
        return "there is nothing to compare with"
    by = "as the reference has it" if hunt.referenced else "by comparison with the others"
    return f"a good pair reaches {floor:.4g} GB/s, {by}"


def _bad(hunt: Hunt, player: str) -> list[tuple[Game, GroupResult]]:
    """The bad games of a player; those with good partners alone, where there are some."""
    first = [(game_of(pair, result), result) for pair, result in hunt.first.items() if player in pair]
    second = [(game, result) for game, result in _second(hunt) if game.pair[0] == player]
    return [(game, result) for game, result in second or first if is_slow(game, hunt.verdict.floor)]


def _second(hunt: Hunt) -> Iterator[tuple[Game, GroupResult]]:
    return zip(hunt.verdict.second, hunt.second, strict=True)


def _other(hunt: Hunt, game: Game, player: str) -> str:
    return hunt.players[game.pair[1] if game.pair[0] == player else game.pair[0]][0]


def _row(pair: Sequence[str], result: GroupResult) -> dict[str, Any]:
    return {"pair": list(pair), "busbw_gb_s": result.busbw, **({"why": result.why} if result.why else {})}
