"""All nodes together, and where that is slow although all pairs are fast, which of them make it so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_llmbench.checks.base import finding
from pytest_llmbench.checks.network.bisection import bisect
from pytest_llmbench.checks.network.groups import GroupResult, MeasuredGroups, RankGroup
from pytest_llmbench.checks.network.tournament_findings import KINDS
from pytest_llmbench.core.record.health import Finding, Reading, Severity

_FEWEST = 3


@dataclass(kw_only=True, slots=True)
class Whole:
    """The result."""

    findings: list[Finding] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    unjudged: dict[str, str] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)


def measure_whole(ground: MeasuredGroups, hosts: Sequence[str], floor: float | None, gpus: int) -> Whole:
    """Measure all nodes as one group, and bisect it where it is slow or fails.

    Args:
        ground: the place of the measurement.
        hosts: nodes whose pairs are well; with fewer than three, their pairs have said it all.
        floor: the rate that a group must reach, GB/s; None where only a failure counts.
        gpus: of each node.
    """
    whole = Whole()
    if len(hosts) < _FEWEST:
        return whole
    runs: list[GroupResult] = []

    def bad(groups: Sequence[tuple[str, ...]]) -> list[bool | None]:
        asked = [RankGroup(hosts=each, local_ranks=ground.local_ranks) for each in groups]
        results = ground.play([asked]).results
        runs.extend(results)
        return [None if result.busbw is None else floor is not None and result.busbw < floor for result in results]

    # As with every group, one bad measurement is not believed.
    is_bad = all(bad([tuple(hosts)])[0] is not False for _ in range(2))
    whole.readings += [
        Reading(
            statistic="group_busbw", value=result.busbw, unit="GB/s", nodes=len(hosts), gpus=gpus * len(hosts),
            subject=f"attempt {number}" if number else "",
        )
        for number, result in enumerate(runs)
        if result.busbw is not None
    ]  # fmt: skip
    if is_bad:
        why = runs[-1].text
        found = bisect(hosts, bad)
        whole.findings += [_culprit(host, why, runs) for host in found.culprits]
        for group in found.together:
            names = ", ".join(group)
            message = f"only together: {names}; all {len(hosts)} nodes: {why}; no part of this group is bad"
            action = "check what they share: switches, routing, and settings that depend on scale"
            whole.findings.append(finding(None, names, "slow_together", Severity.CONFIGURE, message, action))
            for host in group:  #: finding slow_together: a group is slow although no part of it is
                whole.unjudged[host] = f"fails only as part of a group ({names}); no single node identified"
        whole.evidence["halvings"] = math.ceil(math.log2(len(hosts)))
        whole.evidence["bisection"] = [
            {"group": list(result.group.hosts), "busbw_gb_s": result.busbw, "why": result.why} for result in runs
        ]
    return whole


def _culprit(host: str, why: str, runs: Sequence[GroupResult]) -> Finding:
    smallest = min((each for each in runs if host in each.group.hosts), key=lambda each: len(each.group.hosts))
    kind, severity, action = KINDS[smallest.fault]
    others = ", ".join(other for other in smallest.group.hosts if other != host)
    message = f"all nodes together: {why}; halving the group leads to this one: with {others} {smallest.text}"
    return finding(host, "", kind, severity, message, action)
