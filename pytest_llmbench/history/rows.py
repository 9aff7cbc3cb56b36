"""A record as rows of the history's tables, in plain values."""

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.health import Finding, HealthRecord, Reading, Severity
from pytest_llmbench.core.record.records import RunRecord, Verdict
from pytest_llmbench.core.record.series import Step
from pytest_llmbench.engines.base import known_statistics
from pytest_llmbench.judging.telemetry import Better

# Parts of a recipe without effect on how fast it trains.
_NOT_TRAINED = {
    "name", "description", "source", "time_limit", "deadlines", "prepare", "references", "statistic_of_record", "steps",
    "end", "warm_up", "nodes", "gpus_per_node", "scale", "engine",
}  # fmt: skip
# Severities of a fault of the device itself, as opposed to a wrong setting.
_BLAMES = {Severity.ISOLATE, Severity.REBOOT, Severity.RESET}
# Problems that a run of one node has because of that node.
_BLAMING_PROBLEMS = {"job_node_fail", "no_gpu", "wrong_hardware"}
_GPU = re.compile(r"GPU (\d+)(?: \((\S+)\))?")
# Statistic of a verdict on a group of nodes, against the other groups.
_OF_GROUP = "slower_than_others"


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """Properties that two runs share if their numbers may be compared.

    `hardware` is the device of the ranks, or `unknown`; `setup` a digest of what the recipe trains (model, batch,
    precision, options of the engine).
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
        """The properties in which two series of one recipe differ, in words."""
        names = ("engine", "scale", "system", "nodes", "gpus", "ranks", "hardware")
        both = [(name, getattr(self, name), getattr(other, name)) for name in names]
        words = [f"{name} {one}, then {two}" for name, one, two in both if one != two]
        return "; ".join([*words, *(["the recipe itself was changed"] if self.setup != other.setup else [])])


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricRow:
    """One measured number of a run, with its interval, both in `unit`; `better` is the direction of an improvement.

    `steps` is the number of judged steps in the steady part of the run; None if that is unknown.
    """

    name: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    better: Better | None = None
    steps: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FiledRecord:
    """A record in its file, ready for the history.

    `content` is a digest of the record, `time` the Unix time at which the run or check began.
    """

    record: RunRecord | HealthRecord
    path: Path
    content: str
    time: float

    @property
    def run_row(self) -> dict[str, Any]:
        """The row in the table of runs and checks, without id, `series` and `counts`."""
        record = self.record
        row = {
            "session": record.session, "about": record.about, "name": record.name, "time": self.time,
            "content": self.content, "path": str(self.path.absolute()), "replayed": record.cluster == "replay",
            "measurement": None, "simulated": None, "problem": None, "git_commit": None,
        }  # fmt: skip
        if isinstance(record, HealthRecord):
            return row | {"problem": record.report.problem}
        return row | {
            "replayed": record.replayed is not None or record.cluster == "replay",
            "measurement": measurement_of(record.steps),
            "simulated": record.simulated,
            "problem": problem_of(record),
            "git_commit": record.provenance.get("git_commit"),
        }


def read_record(path: Path, about: str) -> FiledRecord:
    """Read the record of a `run` or a `check` in a file.

    Raises:
        ConfigError: the record has another schema version, or is damaged.
    """
    try:
        content = json.dumps(json.loads(path.read_bytes()), sort_keys=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    record = RunRecord.read(path) if about == "run" else HealthRecord.read(path)
    return file_record(record, path, hashlib.sha256(content.encode()).hexdigest())


def file_record(record: RunRecord | HealthRecord, path: Path, content: str) -> FiledRecord:
    """A record with the time at which it began, which its session's name has if the record lacks it.

    Raises:
        ConfigError: both lack a time.
    """
    times, began = record.timings, None
    with suppress(ValueError, OverflowError):
        began = time.mktime(time.strptime(record.session[:15], "%Y%m%d-%H%M%S"))  # local time
    began = next((at for at in (times.started, times.submitted, times.ended, began) if at is not None), None)
    if began is None:
        raise ConfigError(f"{path}: it has no time, and neither has the name of session {record.session}")
    return FiledRecord(record=record, path=path, content=content, time=began)


def problem_of(record: RunRecord) -> str | None:
    """The problem of an unjudged run in words; None of a sane one."""
    return None if record.problem is None else f"{record.problem.kind}: {record.problem.message}"


def series_of(record: RunRecord) -> Series:
    """The series of a run."""
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
    """Digest of the steps of a run, equal only for the same run: durations differ in their last digits."""
    facts = [(step.step, step.seconds, step.tokens, step.loss) for step in steps]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest() if facts else None


def metrics_of(record: RunRecord) -> tuple[MetricRow, ...]:
    """The numbers of a run. The statistic declares their direction; else rates should rise, and times fall."""
    statistics = known_statistics(record.recipe)
    by_sense: dict[str | None, Better | None] = {"rate": "higher", "time": "lower", None: None}
    return tuple(
        MetricRow(
            name=name, value=metric.value, unit=metric.unit, low=metric.low, high=metric.high,
            better=(statistics[name].better if name in statistics else None) or by_sense[metric.sense],
            steps=record.steady_steps,
        ) for name, metric in record.metrics.items()
    )  # fmt: skip


def _sighting(
    device: tuple[str, str, str], kind: str, what: str, said: str, *, blames: bool = False,
    value: float | None = None, unit: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    return {
        "device": device, "kind": kind, "what": what, "said": said, "blames": blames, "value": value, "unit": unit,
    }  # fmt: skip


def sightings_of(record: RunRecord | HealthRecord, gpus: Mapping[tuple[str, str], str]) -> Iterator[dict[str, Any]]:
    """Yield a row for each fact about a device: `device` has its kind, name and node; `blames` marks a fault of it.

    `gpus` are the UUIDs of `gpu_uuids` of all checks of the session.
    """
    yield from _sightings_of_run(record) if isinstance(record, RunRecord) else _sightings_of_check(record, gpus)


def _sightings_of_run(record: RunRecord) -> Iterator[dict[str, Any]]:
    outcome, words, blames = "ran", f"{record.key}: {record.recipe.name}", False
    is_real = record.simulated is None
    if record.problem is not None:
        outcome, words = record.problem.kind, f"{words}: {record.problem.message}"
        blames = record.problem.kind in _BLAMING_PROBLEMS and len(record.hosts) == 1 and is_real
    for host in record.lost_nodes:  # also of an attempt that another one followed, on other nodes
        lost = f"{record.key}: it failed in this run"
        yield _sighting(("node", host, host), "use", "job_node_fail", lost, blames=is_real)
    for host in record.hosts:
        node = ("node", host, host)
        yield _sighting(node, "use", outcome, words, blames=blames and host not in record.lost_nodes)
        for judgement in record.judgements:
            is_slow = judgement.statistic == _OF_GROUP and judgement.verdict is Verdict.FAIL and is_real
            parts = (judgement.statistic, judgement.measured, judgement.threshold)
            numbers = " ".join(part for part in parts if part)
            said = f"{judgement.test}: {numbers}" if numbers else judgement.test
            yield _sighting(node, "verdict", str(judgement.verdict), said, blames=is_slow)
    for rank in record.rank_info:
        if rank.gpu is not None:
            yield _sighting(("gpu", rank.gpu, rank.node or rank.host), "use", outcome, words)


def _sightings_of_check(record: HealthRecord, gpus: Mapping[tuple[str, str], str]) -> Iterator[dict[str, Any]]:
    # A fault that every node has is more likely that of a setting.
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
        yield _sighting(("node", finding.host, finding.host), "finding", what, said, blames=blames)
        if finding.subject:
            yield _sighting(_device_of(finding, gpus), "finding", what, said)
    for reading in record.report.readings:
        if reading.host is not None:
            yield _sighting(
                _device_of(reading, gpus), "number", reading.statistic, record.check, value=reading.value,
                unit=reading.unit,
            )  # fmt: skip
    for slot, host in enumerate(record.hosts):
        verdict, _ = record.state(slot)
        yield _sighting(("node", host, host), "verdict", str(verdict), record.check)


def _device_of(fact: Finding | Reading, gpus: Mapping[tuple[str, str], str]) -> tuple[str, str, str]:
    """The device of a subject: a GPU by its UUID, if known, another part by its node and name."""
    host = fact.host or ""
    if not fact.subject:
        return "node", host, host
    gpu = _GPU.fullmatch(fact.subject)
    if gpu is None:
        return "part", f"{host} {fact.subject}", host
    uuid = gpus.get((host, gpu[2] or ""), gpus.get((host, gpu[1])))
    return "gpu", uuid or f"{host} GPU {gpu[1]}", host


def gpu_uuids(record: HealthRecord) -> dict[tuple[str, str], str]:
    """UUIDs of GPUs by node and bus, and by node and number, as a check's evidence lists them."""
    listed = record.report.evidence.get("gpus")
    uuids: dict[tuple[str, str], str] = {}
    for host, gpus in listed.items() if isinstance(listed, Mapping) else ():
        for index, text in enumerate(gpus if isinstance(gpus, list) else ()):
            *_, bus, uuid = ["", "", *str(text).split()]
            if uuid.startswith("GPU-"):
                uuids |= {(host, bus): uuid, (host, str(index)): uuid}
    return uuids
