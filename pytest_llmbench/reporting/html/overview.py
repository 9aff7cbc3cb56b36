"""The first screen of a report: how far each number is from its bound, and each check on each node."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pytest_llmbench.core.quantity import counted, listed
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.reporting.html.figures import CurveLine, Figure, LevelLine
from pytest_llmbench.reporting.html.rows import ORDER, VerdictRow, kind_of, worst

# A larger fleet is shown by the nodes with the worst verdicts; the others are counted.
_MOST_NODES = 128
# With fewer nodes, a column is a run.
_FEW_NODES = 5
_HIGHEST = 130.0  # percent of a bound; a higher one is drawn here
_STYLES = {"pass": "good", "fail": "bad", "error": "bad"}
_MOST_MARKED, _MOST_NAMED = 8, 26
TOGETHER, RUNS = "all together", "runs"


class Cell(NamedTuple):
    """The verdict of a check on a node; its kind is empty where the check is not about the node."""

    kind: str = ""
    reason: str = ""


class NodeMap(NamedTuple):
    """Checks, and all runs together, by nodes in the order of their names."""

    nodes: Sequence[str]
    prefix: str  # common beginning of their names
    ill: Mapping[str, str]  # the worst kind of each node that needs attention
    rows: Mapping[str, Sequence[Cell]]  # the cells of each check, one for each node
    together: Mapping[str, Cell]  # the verdicts of checks on all nodes together
    left_out: int


def node_map(checks: Mapping[str, HealthRecord], rows: Sequence[VerdictRow]) -> NodeMap | None:
    """The map of a session; None for a session without a check and with a single node."""
    cells: dict[str, dict[str, Cell]] = {}
    together: dict[str, Cell] = {}
    hosts: dict[str, None] = {}
    for name, check in checks.items():  # one at a time: with its evidence, a record may be large
        hosts |= dict.fromkeys(check.hosts)
        cells[name] = {host: _cell(check, slot) for slot, host in enumerate(check.hosts)}
        if (cell := _cell(check, None)).kind:
            together[name] = cell
    of_runs: dict[str, list[VerdictRow]] = defaultdict(list)
    for row in rows:
        if row.about == "run":
            for host in filter(None, row.hosts.split(",")):
                of_runs[host].append(row)
    hosts |= dict.fromkeys(of_runs)
    if of_runs and len(hosts) >= _FEW_NODES:
        cells[RUNS] = {
            host: Cell(worst(own), "; ".join(row.name for row in own if row.kind == worst(own)))
            for host, own in of_runs.items()
        }
    if not cells:
        return None
    kinds = {host: _rank(own[host] for own in cells.values() if host in own) for host in hosts}
    shown = {*sorted(hosts, key=kinds.__getitem__)[:_MOST_NODES]}
    nodes = sorted(shown, key=_natural)
    worst_first = sorted(cells, key=lambda name: _rank(cells[name].values()))
    return NodeMap(
        nodes=nodes,
        prefix=_common(nodes),
        ill={node: [*ORDER][kinds[node]] for node in nodes if kinds[node] <= ORDER["inconclusive"]},
        rows={name: [cells[name].get(node, Cell()) for node in nodes] for name in worst_first},
        together=together,
        left_out=len(hosts) - len(nodes),
    )


def _rank(cells: Iterable[Cell]) -> int:
    return min((ORDER[cell.kind] for cell in cells if cell.kind), default=len(ORDER))


def against_bounds(rows: Sequence[VerdictRow], node_map: NodeMap | None) -> Figure | None:
    """Each measured number as a share of its bound, by node, or by run on few nodes; None without such a number."""
    judged = [row for row in rows if row.about == "run" and row.share is not None]
    if not judged:
        return None
    nodes = node_map.nodes if node_map is not None else ()
    by_node = len(nodes) >= _FEW_NODES
    columns = nodes if by_node else sorted(dict.fromkeys(row.subject for row in judged), key=_natural)
    places = {name: at + 0.5 for at, name in enumerate(columns)}
    drawn = [(row, name) for row in judged for name in _columns(row, by_node=by_node) if name in places]
    curves = []
    for kind in sorted({row.kind for row, _ in drawn}, key=lambda kind: -ORDER[kind]):
        own = [(row, name, 100.0 * (row.share or 0.0)) for row, name in drawn if row.kind == kind]
        curves.append(
            CurveLine(
                name=kind, x=[places[name] for _, name, _ in own],
                y=[min(share, _HIGHEST) for _, _, share in own],
                texts=[f"{name}: {row.name} {share:.4g} %" for row, name, share in own],
                style=_STYLES.get(kind, "second"), dots=True,
            )
        )  # fmt: skip
    if not curves:
        return None
    ranges = [(places[name], row.shares) for row, name in drawn if row.shares is not None]
    whiskers = CurveLine(
        name="interval", x=[x for x, _ in ranges for _ in range(3)], style="range",
        y=[y for _, (low, high) in ranges for y in (min(100.0 * low, _HIGHEST), min(100.0 * high, _HIGHEST), None)],
    )  # fmt: skip
    heights = [y for curve in curves for y in curve.y if y is not None]
    low, high = min(*heights, 100.0), max(*heights, 100.0)
    space = max(0.12 * (high - low), 1.0)
    missed = sorted((row for row in judged if row.kind == "fail"), key=lambda row: row.share or 0.0)
    lowest = min(judged, key=lambda row: row.share or 0.0)
    marked = dict.fromkeys(name for row in missed for name in _columns(row, by_node=by_node) if name in places)
    slow = [f"{row.hosts.replace(',', ', ')} {100.0 * (row.share or 0.0):.3g} % ({row.subject})" for row in missed]
    caption = f"{counted(len(judged), 'number')} of {counted(len({row.subject for row in judged}), 'run')}. " + (
        f"Below its bound: {listed(slow, 4)}"
        if slow else f"None misses its bound; closest {lowest.subject}, {lowest.statistic} {lowest.margin}"
    )  # fmt: skip
    return Figure(
        title=f"Measured against its bound, by {'node' if by_node else 'run'}",
        caption=f"{caption}.",
        curves=[*([whiskers] if ranges else []), *curves],
        levels=[LevelLine(value=100.0, words="bound")],
        stretches=[(places[name] - 0.5, places[name] + 0.5, name) for name in [*marked][:_MOST_MARKED]],
        ends=(0.0, float(len(columns) + (by_node and node_map is not None and bool(node_map.together)))),
        ticks={} if by_node or len(columns) > _MOST_NAMED else {places[name]: name for name in columns},
        y_title="% of the bound", bottom=low - space, top=high + space, height=190,
    )  # fmt: skip


def _columns(row: VerdictRow, *, by_node: bool) -> Sequence[str]:
    return row.hosts.split(",") if by_node else (row.subject,)


def _cell(check: HealthRecord, slot: int | None) -> Cell:
    """The verdict of a check on the node of a slot, or, for None, on all together."""
    of_cluster = check.scope == "cluster"
    verdict, reason = check.state(slot)
    # A check of all nodes has a verdict on one node only if it has a finding about it.
    if (slot is None and not of_cluster) or (slot is not None and of_cluster and verdict is Verdict.PASS):
        return Cell()
    return Cell(kind_of(str(verdict), compared=not check.report.unbounded), " ".join(reason.split())[:200])


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that has n2 before n10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _common(names: Sequence[str]) -> str:
    """The common beginning of names, up to their first number that differs; empty if it is short."""
    first, last = min(names, default=""), max(names, default="")
    length = next((at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), 0)
    prefix = first[:length].rstrip("0123456789")
    return prefix if len(prefix) > 2 else ""
