"""Nodes that should be all alike: the value of most is right, and the others stand out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

_NAMED = 4


def differing(values: Mapping[str, str]) -> dict[str, str]:
    """Say of each host that stands out what it has, what the others have, and who they are.

    A value that more hosts have than any other is right. Without such a group, every host stands out, and all
    groups are named: the right one is unknown.

    Args:
        values: by host.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for host, value in values.items():
        groups[value].append(host)
    if len(groups) < 2:
        return {}
    ranked = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    (usual, hosts), (_, second) = ranked[:2]
    if len(hosts) > len(second):
        return {host: f"{value}; {usual} on {few(hosts)}" for value, others in ranked[1:] for host in others}
    said = "; ".join(f"{value} on {few(others)}" for value, others in ranked)
    return {host: f"{value}; the nodes are divided: {said}" for host, value in values.items()}


def alike_in_size(sizes: Mapping[str, int], tolerance: float) -> dict[str, str]:
    """Name sizes in GiB by host, with the same words for sizes that are close to each other.

    Args:
        sizes: bytes by host.
        tolerance: how much larger than the smallest of its group a size may be, as a fraction.
    """
    named: dict[str, str] = {}
    smallest, name = 0, ""
    for host, size in sorted(sizes.items(), key=lambda each: each[1]):
        if not name or size > smallest * (1 + tolerance):
            smallest, name = size, f"{size / 2**30:.2f} GiB"
        named[host] = name
    return named


def few(hosts: Sequence[str]) -> str:
    """Some names of many, and how many more there are."""
    more = f" and {len(hosts) - _NAMED} more" if len(hosts) > _NAMED else ""
    return ", ".join(hosts[:_NAMED]) + more
