"""Nodes by checks: which node passed which check, in one table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.reporting.html.rows import ORDER, kind_of

# Of a fleet, nodes with something to say are shown first, and those that passed every check are counted.
_MOST_NODES = 128


@dataclass(frozen=True, slots=True)
class MapCell:
    """One node in one check.

    Attributes:
        kind: one of `rows.KINDS`, or empty where the check does not tell of the node.
        why: the reason, in one line.
    """

    kind: str = ""
    why: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeMap:
    """All nodes.

    Attributes:
        checks: names of the checks, in their order.
        nodes: a row for each node that is shown, by its name; `all nodes together` is one of them.
        left_out: how many nodes with nothing but passes are not shown.
    """

    checks: Sequence[str]
    nodes: Mapping[str, Sequence[MapCell]]
    left_out: int


def node_map(checks: Mapping[str, HealthRecord]) -> NodeMap | None:
    """The map of a session with checks; None of one without."""
    told = list(checks.values())
    hosts = list(dict.fromkeys(host for check in told for host in check.hosts))
    rows = {host: [_cell(check, host) for check in told] for host in hosts}
    together = [_together(check) for check in told]
    if not told or not (rows or any(cell.kind for cell in together)):
        return None
    worst_first = sorted(rows, key=lambda host: min((ORDER[c.kind] for c in rows[host] if c.kind), default=len(ORDER)))
    shown = set(worst_first[:_MOST_NODES])
    nodes = {host: cells for host, cells in rows.items() if host in shown}
    if any(cell.kind for cell in together):
        nodes["all nodes together"] = together
    return NodeMap(checks=[*checks], nodes=nodes, left_out=len(rows) - len(shown))


def _cell(check: HealthRecord, host: str) -> MapCell:
    """The verdict of a check on one node; a check of all nodes has one only if it has a finding about that node."""
    if host not in check.hosts:
        return MapCell()
    verdict, why = check.state(check.hosts.index(host))
    if check.scope == "cluster" and verdict is Verdict.PASS:
        return MapCell()
    return _of(check, verdict, why)


def _together(check: HealthRecord) -> MapCell:
    return _of(check, *check.state(None)) if check.scope == "cluster" else MapCell()


def _of(check: HealthRecord, verdict: Verdict, why: str) -> MapCell:
    kind = kind_of(str(verdict), compared=not check.report.unbounded)
    return MapCell(kind, " ".join(why.split())[:200])
