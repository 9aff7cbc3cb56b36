"""A record as rows of the history's tables, in plain values."""

import hashlib
import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import read_regular
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.record.series import Step
from pytest_llmbench.engines.base import known_statistics
from pytest_llmbench.judging.statistics import Better

# Parts of a recipe without effect on how fast it trains.
_NOT_TRAINED = {
    "name", "description", "source", "time_limit", "deadlines", "prepare", "references", "statistic_of_record", "steps",
    "end", "warm_up", "nodes", "gpus_per_node", "scale", "engine",
}  # fmt: skip


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

    `steps` is the number of judged steps in the steady part of the run, `scatter` their standard deviation as a share
    of the mean; None if unknown.
    """

    name: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    better: Better | None = None
    steps: int | None = None
    scatter: float | None = None


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
        record, run = self.record, self.record if isinstance(self.record, RunRecord) else None
        return {
            "session": record.session, "about": record.about, "name": record.name, "time": self.time,
            "content": self.content, "path": str(self.path.absolute()), "problem": problem_of(record),
            "replayed": record.cluster == "replay" or (run is not None and run.replayed is not None),
            "measurement": run and measurement_of(run.steps), "simulated": run and run.simulated,
            "git_commit": run and run.provenance.get("git_commit"),
        }  # fmt: skip


def file_record(record: RunRecord | HealthRecord, path: Path, content: str = "") -> FiledRecord:
    """A record with the time at which it began, which its session's name has if the record lacks it.

    Raises ConfigError if both lack a time, or its file, whose digest is taken without `content`, cannot be read.
    """
    times, began = record.timings, None
    with suppress(ValueError, OverflowError):
        began = time.mktime(time.strptime(record.session[:15], "%Y%m%d-%H%M%S"))  # local time
    began = next((at for at in (times.started, times.submitted, times.ended, began) if at is not None), None)
    if began is None:
        raise ConfigError(f"{path}: it has no time, and neither has the name of session {record.session}")
    if not content:
        try:
            content = _digest(json.loads(read_regular(path)))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from error
    return FiledRecord(record=record, path=path, content=content, time=began)


def _digest(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def problem_of(record: RunRecord | HealthRecord) -> str | None:
    """The problem of an unjudged run or check in words; None of a sane one."""
    if isinstance(record, HealthRecord):
        return record.report.problem
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
    return _digest(recipe.model_dump(mode="json", exclude=_NOT_TRAINED))


def measurement_of(steps: tuple[Step, ...]) -> str | None:
    """Digest of the steps of a run, equal only for the same run: durations differ in their last digits."""
    facts = [(step.step, step.seconds, step.tokens, step.loss) for step in steps]
    return _digest(facts) if facts else None


def metrics_of(record: RunRecord) -> tuple[MetricRow, ...]:
    """The numbers of a run. The statistic declares their direction; else rates should rise, and times fall."""
    statistics = known_statistics(record.recipe)
    by_sense: dict[str | None, Better | None] = {"rate": "higher", "time": "lower", None: None}
    return tuple(
        MetricRow(
            name=name, value=metric.value, unit=metric.unit, low=metric.low, high=metric.high,
            better=(statistics[name].better if name in statistics else None) or by_sense[metric.sense],
            steps=record.steady_steps, scatter=None if record.steady is None else record.steady.scatter,
        ) for name, metric in record.metrics.items()
    )  # fmt: skip
