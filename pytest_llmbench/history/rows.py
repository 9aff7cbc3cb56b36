"""A record as rows of the history's tables: plain values, without anything of a database."""

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.health import Finding, HealthRecord, Reading, Severity
from pytest_llmbench.core.record.records import Record, RunRecord, Verdict
from pytest_llmbench.core.record.series import Step
from pytest_llmbench.engines.base import get_engine, statistics_of
from pytest_llmbench.judging.contradictions import contradictions
from pytest_llmbench.judging.statistics import Statistic
from pytest_llmbench.judging.telemetry import Better

# Of a recipe, what says how long it may take, what is expected of it, or what its words are: none makes it faster.
_NOT_TRAINED = {
    "name", "description", "source", "time_limit", "deadlines", "prepare", "references", "statistic_of_record", "steps",
    "end", "warm_up", "nodes", "gpus_per_node", "scale", "engine",
}  # fmt: skip
# A fault of the device itself; a wrong setting is none.
_BLAMES = {Severity.ISOLATE, Severity.REBOOT, Severity.RESET}
# Problems that a run of one node has because of that node.
_BLAMING_PROBLEMS = {"job_node_fail", "no_gpu", "wrong_hardware"}
_GPU = re.compile(r"GPU (\d+)(?: \((\S+)\))?")
_SESSION_TIME = re.compile(r"(\d{8}-\d{6})-")
_OF_VERDICT = {"test", "verdict", "statistic", "measured", "threshold", "reference", "reason"}
# A verdict on a group of nodes, against the other groups.
_OF_GROUP = "slower_than_others"


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """Properties that two runs share if their numbers may be compared.

    Attributes:
        hardware: device of the ranks; `unknown` where no rank got that far.
        setup: digest of what the recipe trains: model, batch, precision, options of the engine.
    """

    recipe: str
    engine: str
    scale: str
    system: str
    nodes: int
    gpus: int
    ranks: int
    hardware: str
    setup: str

    def differs_from(self, other: "Series") -> str:
        """In what two series of one recipe differ, in words."""
        names = ("engine", "scale", "system", "nodes", "gpus", "ranks", "hardware")
        told = [
            f"{name} {getattr(self, name)}, then {getattr(other, name)}"
            for name in names if getattr(self, name) != getattr(other, name)
        ]  # fmt: skip
        if self.setup != other.setup:
            told.append("the recipe itself was changed")
        return "; ".join(told)


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricRow:
    """One measured number of a run; attributes as of `Metric`.

    Attributes:
        better: direction of an improvement; None where neither is, or where the statistic declares none.
    """

    name: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    better: Better | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sighting:
    """Facts of a record about a device.

    Attributes:
        device: kind (`node`, `gpu`, `part`), name and node.
        kind: `use`, `number`, `finding` or `verdict`.
        what: statistic, kind of the finding, or word of the verdict.
        said: the rest in words.
        value, unit: of a number.
        blames: it is a fault of the device itself.
    """

    device: tuple[str, str, str]
    kind: str
    what: str
    said: str = ""
    value: float | None = None
    unit: str | None = None
    blames: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordRows:
    """One record.

    Attributes:
        about: `run` or `check`.
        name: key of the run, name of the check.
        series: of a run.
        time: Unix time at which it began.
        content: digest of the record.
        measurement: digest of its steps; None where it has none.
        problem: the reason that it cannot be judged; None of a sane one.
        version: of pytest-llmbench; None where the record does not say.
        verdicts: each test's, as plain values.
    """

    session: str
    about: str
    name: str
    series: Series | None
    system: str
    cluster: str
    time: float
    content: str
    measurement: str | None
    simulated: str | None
    replayed: bool
    problem: str | None
    git_commit: str | None
    version: str | None
    path: str
    metrics: tuple[MetricRow, ...] = ()
    verdicts: tuple[Mapping[str, Any], ...] = ()
    sightings: tuple[Sighting, ...] = field(default=())


def read_rows(path: Path, about: str, gpus: Mapping[tuple[str, str], str]) -> RecordRows:
    """Read the record in a file.

    Args:
        path: the record.
        about: `run` or `check`.
        gpus: of the session, as of `uuids_in`.

    Raises:
        ConfigError: it is damaged, contradicts itself, is of a newer schema, or none.
    """
    try:
        content = json.dumps(json.loads(path.read_bytes()), sort_keys=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    digest = hashlib.sha256(content.encode()).hexdigest()
    if about == "run":
        record = RunRecord.read(path)
        if against := [*contradictions(record, _statistics(record))]:
            more = "" if len(against) == 1 else f" ({len(against)} contradictions)"
            raise ConfigError(f"{path}: the record contradicts itself: {against[0]}{more}")
        return rows_of_run(record, digest, path)
    return _of_check(HealthRecord.read(path), digest, path, gpus)


def rows_of_run(record: RunRecord, content: str, path: Path) -> RecordRows:
    """A run record as rows.

    Args:
        record: the record.
        content: a digest of it.
        path: its file.

    Raises:
        ConfigError: neither it nor its session has a time.
    """
    return RecordRows(
        **_common(record, content, path),
        series=series_of(record),
        measurement=measurement_of(record.steps),
        simulated=record.simulated,
        replayed=record.replayed is not None or record.cluster == "replay",
        problem=None if record.problem is None else f"{record.problem.kind}: {record.problem.message}",
        git_commit=record.provenance.get("git_commit"),
        metrics=() if record.problem is not None else metrics_of(record),
        sightings=tuple(_of_hosts(record)),
    )  # fmt: skip


def _of_check(record: HealthRecord, content: str, path: Path, gpus: Mapping[tuple[str, str], str]) -> RecordRows:
    return RecordRows(
        **_common(record, content, path), series=None, measurement=None, simulated=None,
        replayed=record.cluster == "replay", problem=record.report.problem, git_commit=None,
        sightings=tuple(_of_nodes(record, gpus)),
    )  # fmt: skip


def _common(record: Record, content: str, path: Path) -> dict[str, Any]:
    times = record.timings
    known = (times.started, times.submitted, times.ended, _time_of(record.session))
    began = next((at for at in known if at is not None), None)
    if began is None:
        raise ConfigError(f"{path}: it has no time, and neither has the name of session {record.session}")
    return {
        "session": record.session, "about": record.about, "name": record.name, "system": record.system,
        "cluster": record.cluster, "time": began, "content": content, "path": str(path.absolute()),
        "verdicts": tuple(judgement.model_dump(mode="json", include=_OF_VERDICT) for judgement in record.judgements),
        "version": None if record.made_by is None else record.made_by.llmbench_version,
    }  # fmt: skip


def _time_of(session: str) -> float | None:
    """The time in a session's name, which is local time."""
    found = _SESSION_TIME.match(session)
    try:
        return time.mktime(time.strptime(found[1], "%Y%m%d-%H%M%S")) if found else None
    except (ValueError, OverflowError):
        return None


def series_of(record: RunRecord) -> Series:
    """The series that a run belongs to."""
    return Series(
        recipe=record.recipe.name, engine=record.recipe.engine, scale=record.recipe.scale, system=record.system,
        nodes=record.nodes, gpus=record.gpus, ranks=record.ranks, hardware=record.device or "unknown",
        setup=setup_of(record.recipe),
    )  # fmt: skip


def setup_of(recipe: Recipe) -> str:
    """Digest of what a recipe trains: two recipes that share it train the same at the same batch."""
    trained = recipe.model_dump(mode="json", exclude=_NOT_TRAINED)
    return hashlib.sha256(json.dumps(trained, sort_keys=True).encode()).hexdigest()


def measurement_of(steps: tuple[Step, ...]) -> str | None:
    """Digest of the steps of a run: no two runs have steps that took equally long to the last digit."""
    told = [(step.step, step.seconds, step.tokens, step.loss) for step in steps]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest() if told else None


def metrics_of(record: RunRecord) -> tuple[MetricRow, ...]:
    """The numbers of a run. Their direction is what their statistic declares, here or as a rate or a time."""
    statistics = _statistics(record)
    found = []
    for name, metric in record.metrics.items():
        by_sense: Better | None = {"rate": "higher", "time": "lower", None: None}[metric.sense]
        declared = statistics[name].better if name in statistics else None
        found.append(
            MetricRow(
                name=name, value=metric.value, unit=metric.unit, low=metric.low, high=metric.high,
                better=declared or by_sense,
            )
        )  # fmt: skip
    return tuple(found)


def _statistics(record: RunRecord) -> Mapping[str, Statistic]:
    try:
        return statistics_of(get_engine(record.recipe.engine))
    except ConfigError:  # of a package that is not installed here
        return {}


def _of_hosts(record: RunRecord) -> Iterator[Sighting]:
    """The nodes and GPUs of a run, and what came of it for each."""
    word, blames = "ran", False
    said = f"{record.key}: {record.recipe.name}"
    if record.problem is not None:
        word, said = record.problem.kind, f"{said}: {record.problem.message}"
        blames = record.problem.kind in _BLAMING_PROBLEMS and len(record.hosts) == 1 and record.simulated is None
    for host in record.lost_nodes:  # also of an attempt that another one followed, on other nodes
        yield Sighting(
            device=("node", host, host), kind="use", what="job_node_fail", said=f"{record.key}: it failed in this run",
            blames=record.simulated is None,
        )  # fmt: skip
    for host in record.hosts:
        blamed = blames and host not in record.lost_nodes
        yield Sighting(device=("node", host, host), kind="use", what=word, said=said, blames=blamed)
        for judgement in record.judgements:
            ill = judgement.statistic == _OF_GROUP and judgement.verdict is Verdict.FAIL and record.simulated is None
            told = " ".join(part for part in (judgement.statistic, judgement.measured, judgement.threshold) if part)
            yield Sighting(
                device=("node", host, host), kind="verdict", what=str(judgement.verdict),
                said=f"{judgement.test}: {told}" if told else judgement.test, blames=ill,
            )  # fmt: skip
    for rank in record.rank_info:
        if rank.gpu is not None:
            yield Sighting(device=("gpu", rank.gpu, rank.node or rank.host), kind="use", what=word, said=said)


def _of_nodes(record: HealthRecord, gpus: Mapping[tuple[str, str], str]) -> Iterator[Sighting]:
    """Findings of a check about nodes, their GPUs and other parts."""
    # What is wrong with every node is more likely the fault of a setting.
    per_kind: dict[str, set[str]] = {}
    for finding in record.report.findings:
        if finding.host is not None and finding.severity in _BLAMES:
            per_kind.setdefault(finding.kind, set()).add(finding.host)
    everywhere = {kind for kind, hosts in per_kind.items() if len(record.hosts) > 1 and hosts >= set(record.hosts)}
    for finding in record.report.findings:
        if finding.host is None:
            continue
        blames = finding.severity in _BLAMES and finding.kind not in everywhere
        said = f"{record.check}: {finding.subject + ': ' if finding.subject else ''}{finding.message}"
        what = f"{finding.severity} {finding.kind}"
        yield Sighting(device=("node", finding.host, finding.host), kind="finding", what=what, said=said, blames=blames)
        if finding.subject:
            yield Sighting(device=_part(finding, gpus), kind="finding", what=what, said=said)
    for reading in record.report.readings:
        if reading.host is None:
            continue
        device = _part(reading, gpus) if reading.subject else ("node", reading.host, reading.host)
        yield Sighting(
            device=device, kind="number", what=reading.statistic, said=f"{record.check}", value=reading.value,
            unit=reading.unit,
        )  # fmt: skip
    for slot, host in enumerate(record.hosts):
        verdict, _ = record.state(slot)
        yield Sighting(device=("node", host, host), kind="verdict", what=str(verdict), said=record.check)


def _part(told: Finding | Reading, gpus: Mapping[tuple[str, str], str]) -> tuple[str, str, str]:
    """The device of a subject: a GPU by its UUID where that is known, another part by its node and name."""
    host = told.host or ""
    gpu = _GPU.fullmatch(told.subject)
    if gpu is None:
        return "part", f"{host} {told.subject}", host
    uuid = gpus.get((host, gpu[2] or ""), gpus.get((host, gpu[1])))
    return "gpu", uuid or f"{host} GPU {gpu[1]}", host


def uuids_in(path: Path) -> dict[tuple[str, str], str]:
    """UUIDs of GPUs by node and bus, and by node and number, where the health record in a file lists them.

    A file that cannot be read has none; the import reports it.
    """
    try:
        listed = HealthRecord.read(path).report.evidence.get("gpus")
    except ConfigError:
        return {}
    found: dict[tuple[str, str], str] = {}
    for host, gpus in listed.items() if isinstance(listed, Mapping) else ():
        for index, told in enumerate(gpus if isinstance(gpus, list) else ()):
            *_, bus, uuid = ["", "", *str(told).split()]
            if uuid.startswith("GPU-"):
                found |= {(host, bus): uuid, (host, str(index)): uuid}
    return found
