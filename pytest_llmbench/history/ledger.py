"""The ledger: the recorded facts about nodes, GPUs and ports, and the nodes to avoid for their faults."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.quantity import counted
from pytest_llmbench.history.database import Connection, History

# As NVIDIA's resiliency extension remembers nodes.
DAYS, REPEATS = 14.0, 2
_DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A device: a `node`, a `gpu` (by its UUID, if known) or a `part` (by node and name), last seen on `node`.

    `first` and `last` are Unix times of records about it, `sessions` is the number of sessions that had it, `faults` of
    those with a fault of it or its node within the days of the query. `avoid` is the reason to avoid the node.
    """

    kind: str
    name: str
    node: str
    first: float
    last: float
    sessions: int
    faults: int
    avoid: str | None


def nodes_to_avoid(
    history: History, *, days: float = DAYS, repeats: int = REPEATS, now: float | None = None
) -> dict[str, str]:
    """The nodes to avoid, with the reason, for faults in `repeats` sessions of the last `days` before a Unix time.

    A node is avoided after faults of its own in several sessions: findings that ask for a repair, a reboot or a reset,
    a run that lost it or its GPUs, a group of nodes that was slower than the others. A fault that all nodes of a
    session have is taken for that of a setting. Simulated faults are left out.
    """
    with history.reading() as connection:
        return _select_faulty(_faults(connection, days, time.time() if now is None else now), days, repeats)


def list_devices(
    history: History, *, node: str | None = None, device: str | None = None, days: float = DAYS,
    repeats: int = REPEATS, now: float | None = None,
) -> list[Entry]:  # fmt: skip
    """The devices of the history, by node; or those of one node, or the one of this name.

    Raises:
        ConfigError: the node or the device is unknown.
    """
    now = time.time() if now is None else now
    column, wanted = ("node", node) if device is None else ("name", device)
    condition = "1 = 1" if wanted is None else f"d.{column} = :wanted"
    with history.reading() as connection:
        faults = _faults(connection, days, now)
        avoid = _select_faulty(faults, days, repeats)
        rows = connection.rows(
            "SELECT d.kind, d.name, d.node, min(i.time) AS first, max(i.time) AS last, "
            "count(DISTINCT r.session) AS sessions FROM llmbench_devices d "
            f"JOIN llmbench_sightings i ON i.device = d.id "
            f"JOIN llmbench_runs r ON r.id = i.run WHERE {condition} GROUP BY d.id, d.kind, d.name, d.node "
            "ORDER BY d.node, d.kind DESC, d.name",
            **({} if wanted is None else {"wanted": wanted}),
        )
        if not rows and wanted is not None:
            known = connection.column(f"SELECT DISTINCT {column} FROM llmbench_devices")
            raise ConfigError(unknown("node" if device is None else "device", wanted, known))
    return [Entry(**row, faults=len(faults.get(row["node"], {})), avoid=avoid.get(row["node"])) for row in rows]


def entries_of(history: History, name: str, *, limit: int = 100) -> list[dict[str, Any]]:
    """The newest entries of a device, or of a node and its parts, newest first."""
    with history.reading() as connection:
        return connection.rows(
            "SELECT i.time, r.session, r.about, r.name AS record, d.kind AS of, d.name AS device, i.kind, i.what, "
            "i.said, i.value, i.unit, i.blames FROM llmbench_sightings i JOIN llmbench_runs r ON r.id = i.run "
            "JOIN llmbench_devices d ON d.id = i.device "
            "WHERE i.device IN (SELECT id FROM llmbench_devices WHERE name = :name OR node = :name) "
            f"ORDER BY i.time DESC, i.run DESC, i.number LIMIT {limit}",
            name=name,
        )


def _faults(connection: Connection, days: float, now: float) -> Mapping[str, Mapping[str, str]]:
    """By node, the sessions of the last `days` with a fault of the node itself, newest first, and that fault."""
    rows = connection.rows(
        "SELECT d.node, r.session, i.said FROM llmbench_sightings i JOIN llmbench_devices d ON d.id = i.device "
        "JOIN llmbench_runs r ON r.id = i.run WHERE i.blames = :blames AND i.time >= :since AND r.simulated IS NULL "
        "ORDER BY i.time DESC, i.run, i.number",
        blames=True, since=now - days * _DAY_S,
    )  # fmt: skip
    faults: dict[str, dict[str, str]] = {}
    for row in rows:
        faults.setdefault(row["node"], {}).setdefault(row["session"], row["said"])
    return faults


def _select_faulty(faults: Mapping[str, Mapping[str, str]], days: float, repeats: int) -> dict[str, str]:
    reasons = {}
    for node, sessions in faults.items():
        if len(sessions) >= repeats:
            newest, fault = next(iter(sessions.items()))
            reasons[node] = (
                f"faults in {counted(len(sessions), 'session')} of the last {days:g} days, the newest in "
                f"{newest}: {' '.join(fault.split())}"
            )
    return reasons
