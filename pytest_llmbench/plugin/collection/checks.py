"""Checks of the nodes become test cases: one per node, or one for the whole cluster."""

from collections.abc import Iterator, Sequence
from typing import Self, TypeVar

import pytest

from pytest_llmbench.checks.base import CHECKS, FAMILIES, Check, CheckSettings, all_checks, get_check
from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.extensions import ExtensionError
from pytest_llmbench.core.quantity import counted, listed
from pytest_llmbench.core.recipe.reference import check_statistics
from pytest_llmbench.core.record.health import Finding, HealthRecord, Reading, Severity
from pytest_llmbench.core.schema import validate
from pytest_llmbench.plugin.verdict.facts import known
from pytest_llmbench.reporting.table import NO_BOUND

_MOST_READINGS = 4
WaitedKey = TypeVar("WaitedKey", bound=str)


class CheckKey(str):
    """The parameter of our `health`: a check, and the slot of the node it is about."""

    __slots__ = ("check", "slot")
    check: str
    # 0-based number of the node among those of the session; None for a verdict on all of them together.
    slot: int | None

    def __new__(cls, check: str, slot: int | None = None) -> Self:
        """Name it as a test id does."""
        key = super().__new__(cls, check if slot is None else f"{check}-slot{slot}")
        key.check, key.slot = check, slot
        return key


def parametrize(metafunc: pytest.Metafunc, nodes: int) -> None:
    """Give a test that asks for `health` one case per check and node of the session.

    Raises ConfigError if the marker names an unknown check.
    """
    keys = [
        CheckKey(name, slot)
        for name, check in _chosen_checks(metafunc).items()
        for slot in (range(nodes) if check is not None and check.scope == "node" else (None,))
    ]
    metafunc.parametrize("health", keys, indirect=True, ids=list(keys))


def _chosen_checks(metafunc: pytest.Metafunc) -> dict[str, Check | None]:
    """The checks of a test by name; None for one that is unusable, which is refused where it is selected."""
    usable = all_checks()
    known = {**usable, **dict.fromkeys(CHECKS.broken())}
    marked = {name for marker in metafunc.definition.iter_markers("check") for name in marker.args}
    strangers = marked - known.keys() - set(FAMILIES)
    if strangers:
        raise ConfigError(f"{metafunc.function.__name__}: {unknown('check', min(strangers), [*known, *FAMILIES])}")
    named = {name for name, check in usable.items() if check.family in marked} | marked
    return {name: check for name, check in known.items() if not marked or name in named}


def key_of(item: pytest.Item, fixture: str, kind: type[WaitedKey]) -> WaitedKey | None:
    """The run or check that a test waits for, by our fixture for it; None for a test of another kind."""
    callspec = getattr(item, "callspec", None)
    key = callspec.params.get(fixture) if callspec else None
    return key if isinstance(key, kind) else None


def check_names(items: Sequence[pytest.Item]) -> list[str]:
    """The checks that collected tests wait for, in the order they run."""
    asked = {key.check for item in items if (key := key_of(item, "health", CheckKey)) is not None}
    # Checks are imported only in a session with tests of ours.
    return [name for name in (*all_checks(), *CHECKS.broken()) if name in asked] if asked else []


def refuse_unknown(system: str, validation: dict[str, CheckSettings]) -> None:
    """Check the settings of checks in a system's file against the checks there are.

    Raises ConfigError for an unknown check, option or statistic, or a bound in a unit of another kind.
    """
    for name, settings in validation.items():
        where = f"system {system}: validation: {name}"
        try:
            check = get_check(name)
        except ExtensionError:
            continue  # only a session that selects the check needs it
        except ConfigError as error:
            raise ConfigError(f"system {system}: validation: {error}") from error
        validate(check.options, settings.options, f"{where}: options")
        check_statistics(settings.references, check.statistics, f"{where}: ")


class Faults(tuple[Finding, ...]):
    """Findings that fail; pytest shows how many, below the explanation that has them in words."""

    gone_through = False  # whether a test looked at each by itself

    def __iter__(self) -> Iterator[Finding]:
        self.gone_through = True
        return super().__iter__()

    def __repr__(self) -> str:
        return counted(len(self), "fault")


class Health:
    """The result of a check for one node, or for all of them together.

    Attributes:
        record: the whole evidence.
        slot: the node's; None for all of them.
        faults: findings that keep the node from training; empty if it is fit.
        hints: findings with which the node may train.
    """

    def __init__(self, record: HealthRecord, slot: int | None) -> None:
        self.record = record
        self.slot = slot
        self.host = record.host(slot)
        findings = record.findings(slot)
        self._failing = [finding for finding in findings if finding.severity.fails]
        self.faults = Faults(self._failing)
        self.hints: tuple[Finding, ...] = tuple(finding for finding in findings if not finding.severity.fails)
        readings = record.report.readings
        self.readings: tuple[Reading, ...] = tuple(r for r in readings if self.host is None or r.host == self.host)

    @property
    def explanation(self) -> str:
        """The findings, the recommended actions, and the place of the evidence."""
        return "\n".join([*map(str, self._failing), f"health record: {self.record.path}"])

    def properties(self) -> dict[str, str]:
        """The properties of a test's report, in addition to its verdict."""
        shown = [f"{r.statistic} {r.quantity}{f' ({r.subject})' if r.subject else ''}" for r in self.readings]
        unbounded = self.record.report.unbounded
        worst = min(self._failing, key=lambda finding: list(Severity).index(finding.severity), default=None)
        return known(
            measured=listed(shown, _MOST_READINGS, "; ") if shown else None,
            bound=NO_BOUND if unbounded else "bounded" if shown else None,
            bounds=listed(self.record.report.bounds, _MOST_READINGS, "; ") if self.record.report.bounds else None,
            severity=None if worst is None else str(worst.severity),
            action=None if worst is None else worst.action,
            hints="; ".join(map(str, self.hints)) or None,
        )
