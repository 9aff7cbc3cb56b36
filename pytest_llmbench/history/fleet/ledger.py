"""The ledger: everything that sessions said of a node, a GPU or a port, and which nodes to avoid for it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, or_, select

from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.quantity import counted
from pytest_llmbench.history.store.database import History
from pytest_llmbench.history.store.tables import DEVICES, RUNS, SIGHTINGS

# As NVIDIA's resiliency extension remembers nodes.
DAYS, REPEATS = 14.0, 2
_DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """When to avoid a node.

    Attributes:
        days: faults count for so long.
        repeats: sessions that found a fault of the node itself, from which on it is avoided.
    """

    days: float = DAYS
    repeats: int = REPEATS


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A device.

    Attributes:
        kind: `node`, `gpu` or `part`.
        name: of a node; UUID of a GPU where it is known; node and name of any other part.
        node: where it was seen last.
        first, last: Unix times of the first and the last record about it.
        sessions: how many had it.
        faults: sessions that found a fault of it, or of its node, within the rule's days.
        avoid: why to avoid the node; None where it may be used.
    """

    kind: str
    name: str
    node: str
    first: float
    last: float
    sessions: int
    faults: int
    avoid: str | None

    @property
    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {name: getattr(self, name) for name in Entry.__slots__}


def avoided(history: History, rule: Rule | None = None, now: float | None = None) -> dict[str, str]:
    """The nodes to avoid, each with the reason.

    A node is avoided after faults of its own in several sessions: findings that ask for a repair, a reboot or a reset,
    a run that lost it or its GPUs, a group of nodes that was slower than the others. What all nodes of a session have
    is taken for the fault of a setting. Simulated faults do not count.

    Args:
        history: the history.
        rule: when to avoid one.
        now: Unix time; by default that of the clock.
    """
    with history.reading() as connection:
        return _avoided(connection, rule or Rule(), time.time() if now is None else now)


def list_devices(
    history: History, *, node: str | None = None, device: str | None = None, rule: Rule | None = None,
    now: float | None = None,
) -> list[Entry]:  # fmt: skip
    """The devices of the history, by node.

    Args:
        history: the history.
        node: only those of this node.
        device: only the one of this name.
        rule: when to avoid a node.
        now: Unix time; by default that of the clock.

    Raises:
        ConfigError: there is no such node or device.
    """
    now = time.time() if now is None else now
    with history.reading() as connection:
        avoid = _avoided(connection, rule or Rule(), now)
        faults = _faults(connection, rule or Rule(), now)
        seen = (
            select(
                DEVICES.c.kind, DEVICES.c.name, DEVICES.c.node, func.min(SIGHTINGS.c.time), func.max(SIGHTINGS.c.time),
                func.count(RUNS.c.session.distinct()),
            )
            .join(SIGHTINGS, SIGHTINGS.c.device == DEVICES.c.id)
            .join(RUNS, RUNS.c.id == SIGHTINGS.c.run)
            .group_by(DEVICES.c.id, DEVICES.c.kind, DEVICES.c.name, DEVICES.c.node)
            .order_by(DEVICES.c.node, DEVICES.c.kind.desc(), DEVICES.c.name)
        )  # fmt: skip
        if node is not None:
            seen = seen.where(DEVICES.c.node == node)
        if device is not None:
            seen = seen.where(DEVICES.c.name == device)
        found = [
            Entry(
                kind=kind, name=name, node=where, first=first, last=last, sessions=sessions,
                faults=len(faults.get(where, {})), avoid=avoid.get(where),
            )
            for kind, name, where, first, last, sessions in connection.execute(seen)
        ]  # fmt: skip
        if not found and (node is not None or device is not None):
            column = DEVICES.c.node if device is None else DEVICES.c.name
            known = connection.execute(select(column).distinct()).scalars()
            raise ConfigError(unknown("node" if device is None else "device", device or node, known))
    return found


def entries_of(history: History, name: str, *, limit: int | None = None) -> list[dict[str, Any]]:
    """Everything that was said of a device, or of a node and its parts, newest first."""
    with history.reading() as connection:
        chosen = (
            select(
                SIGHTINGS.c.time, RUNS.c.session, RUNS.c.about, RUNS.c.name.label("record"), DEVICES.c.kind.label("of"),
                DEVICES.c.name.label("device"), SIGHTINGS.c.kind, SIGHTINGS.c.what, SIGHTINGS.c.said, SIGHTINGS.c.value,
                SIGHTINGS.c.unit, SIGHTINGS.c.blames,
            )
            .join(RUNS, RUNS.c.id == SIGHTINGS.c.run)
            .join(DEVICES, DEVICES.c.id == SIGHTINGS.c.device)
            .where(SIGHTINGS.c.device.in_(_ids(connection, name)))
            .order_by(SIGHTINGS.c.time.desc(), SIGHTINGS.c.run.desc(), SIGHTINGS.c.number)
            .limit(limit)
        )  # fmt: skip
        return [dict(row) for row in connection.execute(chosen).mappings()]


def _ids(connection: Connection, name: str) -> list[int]:
    found = select(DEVICES.c.id).where(or_(DEVICES.c.name == name, DEVICES.c.node == name))
    return [*connection.execute(found).scalars()]


def _faults(connection: Connection, rule: Rule, now: float) -> Mapping[str, Mapping[str, str]]:
    """Sessions that found a fault of a node itself within the rule's days, each with the fault, newest first."""
    chosen = (
        select(DEVICES.c.node, RUNS.c.session, SIGHTINGS.c.said)
        .join(DEVICES, DEVICES.c.id == SIGHTINGS.c.device)
        .join(RUNS, RUNS.c.id == SIGHTINGS.c.run)
        .where(SIGHTINGS.c.blames, SIGHTINGS.c.time >= now - rule.days * _DAY_S, RUNS.c.simulated.is_(None))
        .order_by(SIGHTINGS.c.time.desc(), SIGHTINGS.c.run, SIGHTINGS.c.number)
    )
    found: dict[str, dict[str, str]] = {}
    for node, session, said in connection.execute(chosen):
        found.setdefault(node, {}).setdefault(session, said)
    return found


def _avoided(connection: Connection, rule: Rule, now: float) -> dict[str, str]:
    told = {}
    for node, sessions in _faults(connection, rule, now).items():
        if len(sessions) >= rule.repeats:
            newest, said = next(iter(sessions.items()))
            told[node] = (
                f"faults in {counted(len(sessions), 'session')} of the last {rule.days:g} days, the newest in "
                f"{newest}: {' '.join(said.split())}"
            )
    return told
