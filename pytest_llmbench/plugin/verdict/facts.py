"""The facts that a test's report carries as properties: plain text and numbers, which cross xdist and become XML."""

from dataclasses import dataclass, fields
from typing import Any

from pytest_llmbench.cluster.runs import Declared, repeat_key
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import RunRecord


class ReportedFacts:
    """Base of facts: each field is a property, and one that is None is left out."""

    def properties(self) -> dict[str, Any]:
        """The properties by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class PlaceFacts(ReportedFacts):
    """The place of a test."""

    test: str
    """Node id of the test, by which pytest selects it."""
    file: str
    """File of the test, relative to pytest's root folder."""
    line: int | None = None
    """Line of the test's function."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VerdictFacts(ReportedFacts):
    """The verdict of a test."""

    verdict: str
    """`PASS`, `FAIL`, `INCONCLUSIVE`, `XFAIL`, `ERROR` or `SKIP`."""
    reason: str | None = None
    """First line of the reason, for any verdict but PASS."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts(ReportedFacts):
    """The run of a test. Those behind `simulated` are absent until it has run."""

    runs: str | None
    """Names of the runs that are judged together."""
    run: str
    """Name of the run; the first of several."""
    recipe: str
    """Recipe."""
    scale: str
    """`full` or `smoke`."""
    system: str
    """System."""
    cluster: str
    """`slurm`, `local`, `debug` or `replay`."""
    nodes: int
    """Nodes of the run."""
    ranks: int
    """Ranks in all."""
    gpus: int
    """GPUs in all."""
    simulated: str | None
    """The fault of `--llmbench-simulate`."""
    as_recorded: str | None
    """With `--replay as-recorded:SESSION`: how the recipe of the run differs from today's."""
    hosts: str | None = None
    """Host names."""
    job_id: str | None = None
    """Slurm job; locally the process id of the launcher."""
    run_record: str | None = None
    """Path of the run record."""
    record: str | None = None
    """Path of the run record, relative to the session's folder."""
    run_seconds: float | None = None
    """Seconds that the run took, without its wait in the queue."""
    log: str | None = None
    """Folder of the ranks' output, or of the replayed logs."""
    findings: str | None = None
    """[Findings](#findings) about the run."""
    unconfirmed: str | None = None
    """[Unconfirmed](#unconfirmed-numbers) facts."""
    settings: str | None = None
    """Settings that a framework's log prints: how many were compared with the recipe, and the unknown ones."""
    trained: str | None = None
    """As ranks counted them: linear layers by the precision of their products (`fp8` of engine `torch`), and the choice
    of `activation_checkpointing: auto`."""
    superseded: str | None = None
    """Reasons why earlier attempts were repeated (`--llmbench-retries`)."""
    early_verdict: str | None = None
    """The step that decided, or the reason for the whole run."""
    steps_done: int | None = None
    """Steps of the run."""
    steps_planned: int | None = None
    """Steps of the recipe."""
    hours_saved: str | None = None
    """Time of the steps that were not made, such as `0.5 GPU-hours`."""
    hours_spent: str | None = None
    """Time of the steps that were made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceFacts(ReportedFacts):
    """The threshold that a test applies, also without a measurement."""

    reference: str
    """Name of the reference, if the test has one."""
    statistic: str
    """The measured statistic; without a measurement, the reference's."""
    threshold: str
    """The bound or bounds, with unit."""
    floor: str | None
    """Machine that the bounds were set for, if they are only a floor here."""
    xfail: str | None
    """Last day on which a miss is expected, and the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberFacts(ReportedFacts):
    """The number that a test judged, and what judged it."""

    speed_judged: str | None = None
    """Statistics of speed that the test compared with a threshold that a slow run misses."""
    runs: str | None = None
    """Names of the runs that are judged together."""
    statistic: str | None = None
    """The measured statistic; without a measurement, the reference's."""
    value: float | None = None
    """The number; of several runs their mean, or that of the run that decided."""
    unit: str | None = None
    """Unit of the number."""
    energy: str | None = None
    """Energy of all GPUs for each token of the run, as `0.0913 J/token`, or `unknown: ` and the reason; absent without
    GPUs."""
    each_run: str | None = None
    """The number in each of `runs`."""
    threshold: str | None = None
    """The bound or bounds, with unit."""
    judged_by: str | None = None
    """`interval`, of the steady part of the run, `rule`, the statistic's own, or `golden` losses."""
    claim: str | None = None
    """Subject of the verdict: `system`, any run of it, or this `run`."""
    between_runs: str | None = None
    """Standard deviation between runs of the system, or `assumed`."""
    alpha: float | None = None
    """Probability that the interval is wrong, on each side."""
    interval_rule: str | None = None
    """Name and version of the rule of the interval."""
    steady_part: str | None = None
    """The judged number, if it is on the other side of the threshold than `value`."""
    low: float | None = None
    """Lower end of the interval, in `unit`."""
    high: float | None = None
    """Upper end of the interval, in `unit`."""
    steady: float | None = None
    """The number in the steady part of the run alone, in `unit`."""
    cause: str | None = None
    """Cause of a missed speed, its [kind](#causes) first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryFacts(ReportedFacts):
    """The comparison of a run with earlier ones."""

    baseline: str
    """Sessions that the run was compared with."""
    change: float
    """Difference from the mean of the baseline, %."""
    change_low: float | None = None
    """Lower end of the interval of `change`, %."""
    change_high: float | None = None
    """Upper end of the interval of `change`, %."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckFacts(ReportedFacts):
    """The check of a test, and its node. Those behind `nodes` are absent until it was made."""

    check: str
    """Check."""
    family: str
    """Family of the check."""
    slot: int | str
    """Number of the node in the session, from 0; empty for all nodes together."""
    host: str
    """The node; empty for all nodes together."""
    hosts: str
    """The node, or all of them."""
    system: str
    """System."""
    cluster: str
    """`slurm`, `local`, `debug` or `replay`."""
    nodes: int
    """1, or the number of all nodes."""
    job_id: str | None = None
    """Slurm job that holds the nodes."""
    health_record: str | None = None
    """Path of the [health record](validation.md#health-record)."""
    record: str | None = None
    """Path of the health record, relative to the session's folder."""
    run_seconds: float | None = None
    """Seconds that the check took for all nodes; a measurement that several checks share counts for each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthFacts(ReportedFacts):
    """The result of a check for a node, or for all of them."""

    measured: str | None
    """The first of the measured numbers, and how many more there are."""
    bound: str | None
    """`bounded`, or `no bound` where neither a reference nor physics has one: a PASS then leaves the speed unjudged."""
    bounds: str | None
    """The first of the bounds, and how many more there are."""
    severity: str | None
    """[Severity](validation.md#severities) of the worst finding."""
    action: str | None
    """Recommended action."""
    hints: str | None
    """Findings of severity `MONITOR`."""


def place_of(test: Declared) -> dict[str, Any]:
    """Properties of the place of a test."""
    return PlaceFacts(test=test.test, file=test.file, line=test.line).properties()


def facts_of_run(record: RunRecord, repeats: int = 1, *, made: bool = True) -> dict[str, Any]:
    """Properties of a test's report about its run, the first of `repeats` that are judged together.

    Those of its evidence are left out unless it was made.
    """
    runs = [repeat_key(record.key, number) for number in range(1, repeats + 1)]
    evidence: dict[str, Any] = {}
    if made:
        evidence = {
            "hosts": ",".join(record.hosts), "job_id": record.job_id or "", "run_record": str(record.path),
            "record": record.within_session, "run_seconds": round(record.took_s, 3) if record.took_s > 0.0 else None,
            "log": str(record.logs), "findings": "; ".join(record.findings),
            "unconfirmed": "; ".join(record.unconfirmed) or None, "settings": record.settings,
            "trained": record.trained, "superseded": "; ".join(record.superseded) or None,
        }  # fmt: skip
    if made and (early := record.early) is not None:
        evidence |= {
            "early_verdict": str(early), "steps_done": early.done, "steps_planned": early.planned,
            "hours_saved": f"{early.hours_saved:.4g} {early.unit}",
            "hours_spent": f"{early.hours_spent:.4g} {early.unit}",
        }  # fmt: skip
    facts = RunFacts(
        runs=",".join(runs) if repeats > 1 else None, run=record.key, recipe=record.recipe.name,
        scale=record.recipe.scale, system=record.system, cluster=record.cluster, nodes=record.nodes,
        ranks=record.ranks, gpus=record.gpus, simulated=record.simulated,
        as_recorded=record.as_recorded, **evidence,
    )  # fmt: skip
    return facts.properties()


def facts_of_check(record: HealthRecord, slot: int | None, *, made: bool = True) -> dict[str, Any]:
    """Properties of a test's report about its check, and its node or all of them.

    Those of its evidence are left out unless it was made.
    """
    host = record.host(slot)
    evidence: dict[str, Any] = {}
    if made:
        evidence = {
            "job_id": record.job_id or "", "health_record": str(record.path), "record": record.within_session,
            "run_seconds": round(record.took_s, 3) if record.took_s > 0.0 else None,
        }  # fmt: skip
    facts = CheckFacts(
        check=record.check, family=record.family, slot="" if slot is None else slot, host=host or "",
        hosts=host or ",".join(record.hosts), system=record.system, cluster=record.cluster,
        nodes=1 if slot is not None else len(record.hosts), **evidence,
    )  # fmt: skip
    return facts.properties()


def facts_of_reference(reference: Reference) -> dict[str, Any]:
    """Properties of a test's report about the threshold that it applies."""
    xfail = None if reference.xfail is None else str(reference.xfail)
    facts = ReferenceFacts(
        reference=reference.name, statistic=reference.statistic, threshold=reference.threshold,
        floor=reference.floor_for, xfail=xfail,
    )  # fmt: skip
    return facts.properties()
