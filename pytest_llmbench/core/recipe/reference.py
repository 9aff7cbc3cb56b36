"""References: thresholds as data, each with the hardware and the scale it is for."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from pytest_llmbench.core.errors import ConfigError, InconclusiveError, UnitError, unknown
from pytest_llmbench.core.gpus import may_be_gpu
from pytest_llmbench.core.quantity import PORTABLE_DIMENSIONS, USUAL_BETWEEN_RUNS, BetweenRuns, Quantity, counted
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.schema import Name, QuantityField, Strict


class AppliesTo(Strict):
    """The machine a number was set for. Every key given must match what the ranks report.

    On as many better GPUs, a bound on a recipe's speed counts as a floor.
    """

    gpu: Annotated[str, Field(min_length=1)] | None = None
    """GPU model, as far as the driver's name matters: `H100` is every H100, `H100 80GB HBM3` that card."""
    gpus: PositiveInt | None = None
    """Number of GPUs of the run on all nodes."""
    nodes: PositiveInt | None = None
    """Number of nodes of the run."""
    system: str | None = None
    """Name of the system."""

    @model_validator(mode="after")
    def _some_hardware(self) -> AppliesTo:
        if self.gpu is None and self.system is None:
            raise ValueError("name the hardware: gpu (with gpus and nodes), or system")
        return self

    def overlaps(self, other: AppliesTo) -> bool:
        """True if both may apply to one run: the same GPU or system, and no condition that contradicts."""
        pairs = {key: (getattr(self, key), getattr(other, key)) for key in type(self).model_fields}
        both = {key: pair for key, pair in pairs.items() if None not in pair}
        fit = all(may_be_gpu(one, two) if key == "gpu" else one == two for key, (one, two) in both.items())
        return fit and not both.keys().isdisjoint({"gpu", "system"})

    def __str__(self) -> str:
        gpus = f"{self.gpus} × {self.gpu}" if self.gpus and self.gpu else self.gpu or f"{self.gpus or ''} GPUs"
        parts = [gpus] if self.gpus or self.gpu else []
        parts += [counted(self.nodes, "node")] if self.nodes else []
        return ", ".join([*parts, *([f"system {self.system}"] if self.system else [])])


def _as_day(value: object) -> object:
    """Take a day alone: a number would be the seconds since 1970."""
    is_text = isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value, re.ASCII)
    if is_text or (isinstance(value, dt.date) and not isinstance(value, dt.datetime)):
        return value
    raise ValueError("must be a day, such as 2026-12-31")


class ExpectedFailure(Strict):
    """A bound that is known to be missed for some time: until then a miss does not fail, and a pass does."""

    reason: Annotated[str, Field(pattern=r"\S")]
    """Known cause of the miss, such as a ticket."""
    until: Annotated[dt.date, BeforeValidator(_as_day)]
    """Last day on which the miss is expected; a run that misses the bound later fails."""

    def __str__(self) -> str:
        return f"until {self.until}: {self.reason}"


def _as_clause(value: object) -> object:
    if isinstance(value, int | float):  # 4.10 would become 4.1
        raise ValueError(f'must be a text: write it in quotes, such as "{value}"')  # noqa: TRY004 - pydantic collects it
    return value


ClauseField = Annotated[str, BeforeValidator(_as_clause), Field(pattern=r"\S", max_length=100)]


class Reference(Strict):
    """A bound on one statistic of a run."""

    name: Name
    """Name of the reference, which is part of the test's name."""
    statistic: str
    """Statistic that is bounded: one of every engine's, or of the recipe's engine."""
    at_least: QuantityField | None = None
    """Lower bound, inclusive."""
    at_most: QuantityField | None = None
    """Upper bound, inclusive; a reference has one bound or both."""
    per_node: bool = False
    """The bounds, and `applies_to.gpus`, count for each node and are multiplied by the number of nodes."""
    claim: Literal["system", "run"] = "system"
    """Subject of the verdict: any run of the `system`, or this `run` alone, for a bound that contains the differences
    between runs, such as a calibrated one."""
    between_runs: QuantityField | None = None
    """Standard deviation between runs of one system, as a share of the mean; absent, 0.3 %, known from 5 runs."""
    runs: Annotated[int, Field(ge=2)] | None = None
    """Number of good runs of the system that `between_runs`, or a bound with `claim: run`, comes from, at least 2."""
    floor: bool = False
    """A run below it is broken, but one above it may be slow, so its speed stays unjudged. In a check, any
    other lower bound replaces physics."""
    xfail: ExpectedFailure | None = None
    """Known miss of the bound on this system, with its last day."""
    why: str
    """Reason for the number."""
    source: str
    """Document that states the number."""
    date: dt.date
    """Day on which the bound was set."""
    applies_to: AppliesTo | None = None
    """Hardware that the reference is for; without it the reference is portable, which only a fraction or a loss can be.

    A reference is always for the full scale, never for the smoke variant.
    """
    elsewhere: Literal["skip", "leave_out"] = "skip"
    """Treatment of the test on a system with other GPUs or none: it is skipped, or left out."""
    clause: ClauseField | None = None
    """Number or name of the contract's clause that demands the bound, for the certificate."""

    @model_validator(mode="after")
    def _consistent(self) -> Reference:
        bounds = self.bounds
        if not bounds:
            raise ValueError("give at_least, at_most, or both")
        if self.at_least is not None and self.at_most is not None:
            try:
                empty = self.at_least > self.at_most
            except UnitError as error:
                raise ValueError(str(error)) from error
            if empty:
                raise ValueError(f"no number is at least {self.at_least} and at most {self.at_most}")
        if self.xfail is not None and len(bounds) > 1:
            raise ValueError("xfail is about one bound: leave out the other, or put it into a reference of its own")
        if self.applies_to is None and bounds[0][1].dimension not in PORTABLE_DIMENSIONS:
            raise ValueError(
                f"a bound in {bounds[0][1].unit} belongs to a machine: add applies_to with gpu and gpus, or system"
            )
        spread = self.between_runs
        if spread is not None and (spread.dimension != "fraction" or spread.base <= 0):
            raise ValueError(f"between_runs: {spread} is not a share above 0: runs always differ")
        if self.claim == "run" and self.between_runs is not None:
            raise ValueError("claim: run leaves the differences between runs out: leave out between_runs")
        if self.claim == "system" and (self.between_runs is None) != (self.runs is None):
            raise ValueError("between_runs and runs belong together: a spread, and the number of runs that it is of")
        return self

    @property
    def between(self) -> BetweenRuns | None:
        """How runs differ, for a verdict about the system; without a spread, or None, for one about the run alone."""
        if self.runs is None:
            return None if self.claim == "run" else USUAL_BETWEEN_RUNS
        spread = 0.0 if self.between_runs is None else self.between_runs.base
        return BetweenRuns(spread=spread, freedom=self.runs - 1)

    def __repr__(self) -> str:
        """Write it as pytest and Allure show the parameter of a test."""
        return f"Reference({self.name}: {self.statistic} {self.asked})"

    def on(self, topology: Topology) -> Reference:
        """The reference with its bounds for this many nodes, where they depend on that."""
        if not self.per_node:
            return self
        names: dict[str, str] = {">=": "at_least", "<=": "at_most"}
        new: dict[str, Any] = {
            names[op]: Quantity(bound.value * topology.nodes, bound.unit) for op, bound in self.bounds
        }
        if self.applies_to is not None and self.applies_to.gpus is not None:
            new["applies_to"] = self.applies_to.model_copy(update={"gpus": self.applies_to.gpus * topology.nodes})
        return self.model_copy(update={**new, "per_node": False})

    @property
    def bounds(self) -> list[tuple[Literal[">=", "<="], Quantity]]:
        """The bounds given, as comparisons the measured value must meet."""
        both: tuple[tuple[Literal[">=", "<="], Quantity | None], ...] = ((">=", self.at_least), ("<=", self.at_most))
        return [(op, bound) for op, bound in both if bound is not None]

    @property
    def floor_for(self) -> str | None:
        """The machine that a floor was set for; None for any other bound."""
        return str(self.applies_to or "every machine") if self.floor else None

    @property
    def threshold(self) -> str:
        """The bounds as programs read them, such as `>= 200000 words/s`."""
        return " and ".join(f"{op} {bound.plain}" for op, bound in self.bounds)

    @property
    def asked(self) -> str:
        """The bounds as people read them, such as `>= 200,000 words/s`."""
        return " and ".join(f"{op} {bound}" for op, bound in self.bounds)

    def missed_by(self, measured: Quantity) -> tuple[Literal[">=", "<="], Quantity] | None:
        """Return the bound that `measured` misses, or None when it meets them all.

        Raises UnitError if `measured` is of another dimension than the bounds, and InconclusiveError if it is uncertain
        whether it meets all of them.
        """
        undecided = None
        for op, bound in self.bounds:
            try:
                if not measured.meets(op, bound, self.between):
                    return op, bound
            except InconclusiveError as error:
                undecided = error
        if undecided is not None:
            raise undecided
        return None

    def __contains__(self, measured: object) -> bool:
        """True if a measured quantity meets every bound: `assert measured in reference`."""
        if not isinstance(measured, Quantity):
            raise TypeError(f"{measured!r} is not a Quantity")
        return self.missed_by(measured) is None


def check_statistics(references: Iterable[Reference], units: Mapping[str, str], where: str) -> None:
    """Check that each reference bounds a statistic that there is, in a unit of its kind; `units` has those of all.

    Raises ConfigError, which begins with `where`, for an unknown statistic, or a bound in a unit of another kind.
    """
    for reference in references:
        place, statistic = f"{where}reference {reference.name}", reference.statistic
        if statistic not in units:
            raise ConfigError(f"{place}: {unknown('statistic', statistic, units)}")
        try:
            for _, bound in reference.bounds:
                bound.to(units[statistic])
        except ConfigError as error:
            raise ConfigError(f"{place}: {statistic} is in {units[statistic]}: {error}") from error


def refuse_contradictions(references: Sequence[Reference]) -> None:
    """Refuse references of one subject of which two share a name, or that no number can meet together.

    Raises ValueError with the names of the two.
    """
    names = [reference.name for reference in references]
    if len(set(names)) != len(names):
        raise ValueError(f"two references share a name: {', '.join(names)}")
    for lower, upper in permutations(references, 2):
        low, high = lower.at_least, upper.at_most
        if low is None or high is None or low.dimension != high.dimension or low <= high:
            continue
        one, other = lower.applies_to, upper.applies_to
        together = one is None or other is None or one.overlaps(other)
        if together and (lower.statistic, lower.per_node) == (upper.statistic, upper.per_node):
            raise ValueError(
                f"references {lower.name} and {upper.name} cannot both hold: no {lower.statistic} is at least {low} "
                f"and at most {high}; correct one of them"
            )
