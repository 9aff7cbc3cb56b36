"""Measures all nodes together and, if that is slow although all pairs are fast, finds the nodes responsible.

Halves are measured, halves of slow halves, and controls. A half that is slow alone holds a culprit. If only the whole
is slow, its halves are filled up with good nodes to the size that was slow, as a fault may need that many ranks to
show. A group that is slow only as a whole is reported as such.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_llmbench.checks.network.groups import GroupResult, MeasuredGroups, RankGroup, finding
from pytest_llmbench.checks.network.hunt import KINDS
from pytest_llmbench.core.recipe.topology import Places
from pytest_llmbench.core.record.health import Finding, Reading, Report, Severity

_FEWEST = 3
_BELIEVE_AFTER = 2  # slow measurements in a row
Hosts = tuple[str, ...]
Slow = Callable[[list[Hosts]], Sequence[bool]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bisection:
    """The result of a search."""

    culprits: Hosts  # nodes that are slow with good ones
    together: tuple[Hosts, ...]  # smallest groups that are slow without a slow part


def bisect(nodes: Sequence[str], slow: Slow, *, places: Places | None = None) -> Bisection:
    """Find the nodes that make a group slow, with O(k log N) measured groups for k culprits.

    `slow` measures disjoint groups, all at once, and returns for each whether it is slow. Groups are halved between
    `places`, if they are ordered by them.
    """
    return _Search(slow, places or Places()).within(tuple(nodes))


class _Search:
    def __init__(self, slow: Slow, places: Places) -> None:
        self._places = places
        self._measure = slow
        self._good: list[str] = []

    def within(self, nodes: Hosts) -> Bisection:
        culprits: list[str] = []
        together: list[Hosts] = []
        alone: dict[Hosts, Hosts] = {}
        # Slow groups, and the size at which they were slow.
        slow_at = {nodes: len(nodes)}
        while slow_at:
            halves = {group: _halves(group, self._places) for group in slow_at}
            slow = self._test_halves(halves)
            sizes, slow_at = slow_at, {}
            for group, parts in halves.items():
                bad = {part: len(part) for part in parts if slow.get(part)}
                alone |= {part: group for part in parts if part not in slow and bad}
                bad = bad or dict.fromkeys(self._test_filled_up(parts, sizes[group]), sizes[group])
                culprits += [part[0] for part in bad if len(part) == 1]
                slow_at |= {part: size for part, size in bad.items() if len(part) > 1}
                if not bad:
                    together.append(group)
        late = self._test_singles(list(alone), self._good)
        culprits += [part[0] for part, is_slow in late.items() if is_slow]
        together += [group for part, group in alone.items() if part not in late]
        return Bisection(culprits=tuple(node for node in nodes if node in culprits), together=tuple(together))

    def _test_halves(self, halves: dict[Hosts, list[Hosts]]) -> dict[Hosts, bool]:
        """Measure all halves; a single node needs a good partner, and is left out until there is one."""
        slow = self._test([part for parts in halves.values() for part in parts if len(part) > 1])
        partners = list(self._good)
        for parts in halves.values():
            fast = [node for part in parts if slow.get(part) is False for node in part]
            # A slow sibling explains why the whole was slow, and so does one that waits for its measurement.
            if any(slow.get(part) for part in parts):
                self._good += fast
            if any(slow.get(part, True) for part in parts):
                partners += fast
        singles = [part for parts in halves.values() for part in parts if len(part) == 1]
        return slow | self._test_singles(singles, partners)

    def _test_singles(self, singles: Sequence[Hosts], partners: Sequence[str]) -> dict[Hosts, bool]:
        """Measure single nodes, each with a good partner."""
        slow: dict[Hosts, bool] = {}
        for first in range(0, len(singles) if partners else 0, len(partners) or 1):
            asked = dict(zip(singles[first : first + len(partners)], partners, strict=False))
            results = self._test([(*part, partner) for part, partner in asked.items()])
            slow |= dict(zip(asked, results.values(), strict=True))
        return slow

    def _test_filled_up(self, parts: Sequence[Hosts], size: int) -> list[Hosts]:
        """The parts of a slow group that are slow once good nodes fill them up to the size at which it was slow."""
        bad = []
        for part in parts:  # one after the other: the good nodes may be too few for both
            group = (*part, *self._good[: size - len(part)])
            # Alone, or as a pair, it was measured already.
            if len(group) > max(len(part), 2) and self._test([group])[group]:
                bad.append(part)
        return bad

    def _test(self, groups: Sequence[Hosts]) -> dict[Hosts, bool]:
        believed = dict.fromkeys(groups, True)
        for _ in range(_BELIEVE_AFTER):
            asked = [group for group, slow in believed.items() if slow]
            if asked:
                believed |= dict(zip(asked, self._measure(asked), strict=True))
        return believed


def _halves(group: Hosts, places: Places) -> list[Hosts]:
    """Cut a group in the middle, or at the outermost boundary in its middle half that is nearest to it."""
    middle = (len(group) + 1) // 2
    levels = ["", *places.levels]
    cuts = {
        cut: levels.index(places.boundary(group[cut - 1], group[cut]))
        for cut in range(max(1, len(group) // 4), 3 * len(group) // 4 + 1)
        if cut < len(group)
    }
    middle = max(cuts, key=lambda cut: (cuts[cut], -abs(cut - middle)), default=middle)
    return [half for half in (group[:middle], group[middle:]) if half]


def measure_whole(
    ground: MeasuredGroups, hosts: Sequence[str], floor: float | None, gpus: int, places: Places
) -> Report:
    """Measure an all_reduce of all nodes as one group, and bisect it where it is slow or fails.

    Their pairs are well; fewer than three are measured as pairs already. A group must reach the `floor`, GB/s; without
    one, only a failure counts. `gpus` counts those of each node.
    """
    if len(hosts) < _FEWEST:
        return Report()
    hosts = places.order(hosts)
    runs: list[GroupResult] = []

    def is_slow(result: GroupResult) -> bool:
        return result.busbw is None or (floor is not None and result.busbw < floor)

    def bad(groups: Sequence[Hosts]) -> list[bool]:
        # Rings through thousands of ranks would measure their hops.
        rounds = [[RankGroup(hosts=group, local_ranks=ground.local_ranks) for group in groups]]
        results = ground.play(rounds, "all_reduce").results
        runs.extend(results)
        return [is_slow(result) for result in results]

    is_bad = all(bad([tuple(hosts)])[0] for _ in range(_BELIEVE_AFTER))
    readings = [
        Reading(
            statistic="group_busbw", value=result.busbw, unit="GB/s", nodes=len(hosts), gpus=gpus * len(hosts),
            subject=f"attempt {number}" if number else "",
        )
        for number, result in enumerate(runs)
        if result.busbw is not None
    ]  # fmt: skip
    if not is_bad:
        return Report(readings=tuple(readings))
    reason = runs[-1].text
    search = bisect(hosts, bad, places=places)
    slow = [run for run in runs if is_slow(run)]
    findings = [_make_finding(host, reason, slow) for host in search.culprits]
    unjudged: dict[str, str] = {}
    for group in search.together:
        names = ", ".join(_name_places(group, places))
        message = f"only together: {names}; all {len(hosts)} nodes: {reason}; no part of this group is bad"
        action = "check what they share: switches, routing, and settings that depend on scale"
        #: finding slow_together: a group is slow although no part of it is
        findings.append(finding(None, names, "slow_together", Severity.CONFIGURE, message, action))
        unjudged |= dict.fromkeys(group, f"fails only as part of a group ({names}); no single node identified")
    bisection = [{"group": list(run.group.hosts), "busbw_gb_s": run.busbw, "why": run.reason} for run in runs]
    return Report(
        findings=tuple(findings),
        readings=tuple(readings),
        unjudged=unjudged,
        evidence={"bisection": bisection},
    )


def _name_places(group: Hosts, places: Places) -> list[str]:
    """The outermost places that a group consists of, and its other nodes."""
    left, names = {*group}, []
    for place in reversed([*places]):
        if left >= {*place.hosts}:
            left -= {*place.hosts}
            names.append(str(place))
    return [*reversed(names), *(host for host in group if host in left)]


def _make_finding(host: str, reason: str, slow: Sequence[GroupResult]) -> Finding:
    smallest = min((run for run in slow if host in run.group.hosts), key=lambda run: len(run.group.hosts))
    kind, severity, action = KINDS[smallest.fault]
    others = ", ".join(other for other in smallest.group.hosts if other != host)
    message = f"all nodes together: {reason}; halving the group leads to this one: with {others} {smallest.text}"
    return finding(host, "", kind, severity, message, action)
