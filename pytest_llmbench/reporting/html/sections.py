"""The sections of the report: one for each run and each check, as the templates show it."""

import datetime as dt
import json
import os
import re
import shlex
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import NamedTuple

from pytest_llmbench.core.errors import UnitError
from pytest_llmbench.core.quantity import Quantity, counted, for_people, listed
from pytest_llmbench.core.record.health import HealthRecord, Reading
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.text import harmless
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.driver import read_report
from pytest_llmbench.core.wire.foreign import redacted
from pytest_llmbench.judging.telemetry import energy_of
from pytest_llmbench.reporting.html.figures import Figure, check_figures, rank_figures, size_of_step_logs, step_figures
from pytest_llmbench.reporting.html.rows import ORDER, VerdictRow, interval, worst
from pytest_llmbench.session.ending import log_to_read
from pytest_llmbench.session.folder import SessionFolder
from pytest_llmbench.workloads.node.secret_filter import secret_values

# Limits for all runs of a session together, so that a browser shows a page of 2,000 runs.
_ALL_POINTS, _LEAST_POINTS, _MOST_POINTS = 48_000, 24, 600
_ALL_TEXT, _MOST_TEXT = 3_000_000, 6_000
_ALL_STEP_LOGS, _MOST_STEP_LOGS = 6_000_000, 2_000_000
# Beyond this number of runs, only the worst third of it has figures by rank and all numbers.
_MOST_WHOLE = 300
_LEAST_TEXT = 1_000
# Sections of further runs are made when they are opened: a browser takes seconds for so many elements.
_MOST_ELEMENTS = 50
# Beyond this number of readings, the table has a line for each statistic.
_MOST_READINGS = 32
_EXPORT = re.compile(r"^(?:export )?(\w+)=(.*)$", re.MULTILINE)
_LONGEST_SCRIPT = 1 << 20


class Excerpt(NamedTuple):
    """A part of a text file; the note names the omitted part, or the reason for an empty text."""

    place: str
    text: str = ""
    note: str = ""


class ShownTexts:
    """Reads scripts and logs of runs for a report, and removes secrets.

    Secrets are those in this process's environment, those that scripts of the session export, and those that the driver
    of a run marked.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self._known = secret_values(dict(os.environ), ())
        for folder in folders:
            for script in _scripts(folder):
                for name, text in _EXPORT.findall(_head(script)):
                    try:
                        value = next(iter(shlex.split(text)), "")
                    except ValueError:  # quotes that are not closed
                        value = text
                    self._known |= secret_values({name: value}, ())

    def script(self, folder: Path, most: int) -> Excerpt | None:
        """The script of a run; None without one, as for the ranks of a Slurm step."""
        scripts = _scripts(folder)
        if not scripts:
            return None
        text = _head(scripts[0])
        return self._excerpt(scripts[0], text[:most], folder, "its end is left out" if len(text) > most else "")

    def log_tail(self, folder: Path, logs: Path, most: int) -> Excerpt:
        """The end of the log to read first."""
        path = log_to_read(logs)
        if not path.is_file():
            return Excerpt(str(path), note="there is no log with anything in it")
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - most))
                data = file.read(most)
        except OSError as error:
            return Excerpt(str(path), note=f"it cannot be read: {error.strerror}")
        text = data.decode("utf-8", errors="replace")
        if size > most:
            # The first line may hold half a secret, which the redaction would miss: it is left out.
            text = text.partition("\n")[2]
        return self._excerpt(path, text, folder, f"the last {most:,} of {size:,} bytes" if size > most else "")

    def _excerpt(self, path: Path, text: str, folder: Path, note: str) -> Excerpt:
        driver = read_report(folder)
        marks = driver.secrets if driver is not None else ()
        return Excerpt(str(path), redacted(harmless(text), self._known, marks), note)


def _scripts(folder: Path) -> list[Path]:
    """Scripts that started a run, the framework's first."""
    own = folder / layout.SCRIPT
    return [path for path in (own, *sorted((folder / layout.LOGS).glob("*.sh"))) if path.is_file()]


def _head(script: Path) -> str:
    try:
        with script.open("rb") as file:
            return file.read(_LONGEST_SCRIPT).decode("utf-8", errors="replace")
    except OSError:
        return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSection:
    """A run on the page."""

    name: str
    kind: str  # kind of the worst verdict on it
    rows: Sequence[VerdictRow]
    brief: bool = False  # a shorter section, for the better ones of very many runs
    later: bool = False  # True if the page's script makes its elements when it is opened
    broken: str = ""  # the damage of its record; empty if it is readable
    headline: str = ""  # the statistic of record, in words
    metrics: Sequence[tuple[str, str, str]] = ()  # statistic, value and interval of each number
    facts: Sequence[tuple[str, str]] = ()
    figures: Sequence[Figure] = ()
    # Numbers of its versions and its recipe on the page; 0 without them
    environment: int = 0
    recipe: int = 0
    log: Excerpt | None = None
    script: Excerpt | None = None
    path: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckSection:
    """A check on the page."""

    name: str
    kind: str  # kind of the worst verdict on it
    rows: Sequence[VerdictRow]
    record: HealthRecord | None = None
    broken: str = ""  # the damage of its record; empty if it is readable
    figures: Sequence[Figure] = ()
    readings: Sequence[Sequence[str]] = ()  # a table: its titles, then its rows; many values of a statistic are one row
    evidence: str = ""  # JSON; empty if it is too long for the page
    path: str = ""


class Sections:
    """Makes the sections of one session.

    Attributes:
        environments: page number of each set of versions.
        recipes: page number of each recipe, by name and JSON.
        rules: rule of computation of each statistic.
    """

    def __init__(self, session: SessionFolder, rows: Sequence[VerdictRow]) -> None:
        self.environments: dict[tuple[tuple[str, str], ...], int] = {}
        self.recipes: dict[tuple[str, str], int] = {}
        self.rules: dict[str, str] = {}
        self._session = session
        self._rows: dict[tuple[str, str], list[VerdictRow]] = {}
        for row in rows:
            self._rows.setdefault((row.about, row.subject), []).append(row)
        folders = [place for (about, _), place in session.places.items() if about == "run"]
        self._texts = ShownTexts(folders)
        count = max(1, len(folders))
        self._points = min(_MOST_POINTS, max(_LEAST_POINTS, _ALL_POINTS // count))
        self._text = min(_MOST_TEXT, _ALL_TEXT // count)
        self._step_logs = _ALL_STEP_LOGS

    def runs(self) -> list[RunSection]:
        """All runs, the worst first."""
        names = [name for about, name in self._session.places if about == "run"]
        kinds = {name: worst(self._rows.get(("run", name), [])) for name in names}
        worst_first = sorted(names, key=lambda name: ORDER[kinds[name]])
        return [self._run(name, kinds[name], place) for place, name in enumerate(worst_first)]

    def checks(self) -> list[CheckSection]:
        """All checks, in their order."""
        return [self._check(name) for about, name in self._session.places if about == "check"]

    def _run(self, name: str, kind: str, place: int) -> RunSection:
        rows, folder = self._rows.get(("run", name), []), self._session.places["run", name]
        record = self._session.runs.get(name)
        logs = Path(record.replayed) if record is not None and record.replayed else folder / layout.LOGS
        passes = kind in {"pass", "skip", "unbounded"}
        most = self._text // 2 if passes else self._text
        log = self._texts.log_tail(folder, logs, most) if most >= _LEAST_TEXT else None
        if record is None:
            broken = self._session.broken["run", name]
            return RunSection(name=name, kind=kind, rows=rows, broken=broken, log=log, path=str(folder))
        self.rules |= {statistic: metric.rule for statistic, metric in record.metrics.items()}
        brief = len(self._session.runs) > _MOST_WHOLE and (passes or place >= _MOST_WHOLE // 3)
        versions, recipe = tuple(record.versions.items()), (record.recipe.name, record.recipe.model_dump_json())
        size = 0 if brief else size_of_step_logs(folder)
        if fits := size <= min(self._step_logs, _MOST_STEP_LOGS):  # the worst runs come first
            self._step_logs -= size
        by_rank = () if brief else rank_figures(record, folder if fits else None)
        by_step = islice(step_figures(record, self._points), 1 if brief else None)
        return RunSection(
            name=name,
            kind=kind,
            rows=rows,
            brief=brief,
            later=place >= _MOST_ELEMENTS,
            headline=_headline(record),
            metrics=[*_metrics(record, {row.statistic for row in rows} if brief else None)],
            # The recipe at the end of the page has it for further runs.
            facts=[*([("work", "; ".join(record.work.values()))] if place < _MOST_ELEMENTS else []), *_facts(record)],
            figures=[*by_step, *by_rank],
            environment=self.environments.setdefault(versions, len(self.environments) + 1) if versions else 0,
            recipe=self.recipes.setdefault(recipe, len(self.recipes) + 1),
            log=log,
            script=self._texts.script(folder, self._text) if self._text >= _LEAST_TEXT else None,
            path=str(folder),
        )

    def _check(self, name: str) -> CheckSection:
        rows, folder = self._rows.get(("check", name), []), self._session.places["check", name]
        record = self._session.checks.get(name)
        if record is None:
            broken = self._session.broken["check", name]
            return CheckSection(name=name, kind=worst(rows), rows=rows, broken=broken, path=str(folder))
        evidence = format_json(record.report.evidence) if record.report.evidence else ""
        return CheckSection(
            name=name,
            kind=worst(rows),
            rows=rows,
            record=record.without_evidence(),
            figures=[*check_figures(record)],
            readings=[*_readings(record.report.readings)],
            evidence=evidence if len(evidence) <= _MOST_TEXT else "",
            path=str(folder),
        )


def utc(at: float | None) -> str:
    """A Unix time as text; empty if it is unknown."""
    try:
        return dt.datetime.fromtimestamp(at or 0.0, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if at else ""
    except (OverflowError, ValueError, OSError):
        return f"{at} (no time)"


def format_json(data: object) -> str:
    """JSON for people."""
    return json.dumps(data, indent=1, ensure_ascii=False, default=str)


def _headline(run: RunRecord) -> str:
    """The statistic of record and the energy."""
    of_record, energy = run.metrics.get(run.recipe.statistic_of_record), energy_of(run)
    parts = [] if of_record is None else [f"{run.recipe.statistic_of_record} {of_record.quantity}"]
    return ", ".join(parts if energy is None else [*parts, f"energy {energy}"])


def _metrics(run: RunRecord, judged: Container[str] | None) -> Iterator[tuple[str, str, str]]:
    """Yield statistic, value and interval of each number, or only of those that have an interval or were judged."""
    for name, metric in run.metrics.items():
        between = ""
        if metric.low is not None and metric.high is not None:
            between = interval(metric.low, metric.high, metric.unit)
        if judged is None or between or name in judged:
            yield name, str(metric.quantity), between
    if (energy := energy_of(run)) is not None and "energy_per_token" not in run.metrics:
        yield "energy_per_token", energy, ""


def _facts(run: RunRecord) -> Iterator[tuple[str, str]]:
    times, words = run.timings, {"steps_s": "in steps", "before_s": "before the first", "around_s": "otherwise"}
    facts = {
        "device": f"{run.gpus} × {run.device}" if run.gpus and run.device else (run.device or "unknown"),
        "shape": f"{counted(run.nodes, 'node')}, {counted(run.ranks, 'rank')}",
        "hosts": listed(run.hosts, most=64),
        "job": run.job.strip(" ()"),
        "submitted": utc(times.submitted),
        "started": utc(times.started),
        "ended": utc(times.ended),
        "took": f"{for_people(run.took_s)} s" if run.took_s > 0.0 else "",
        "time outside of steps": ", ".join(
            f"{words.get(name, name)} {for_people(value, 3)} s" for name, value in run.outside_steps.items()
        ),
        "simulated fault": run.simulated or "",
        "replayed logs": run.replayed or "",
        "early verdict": str(run.early) if run.early is not None else "",
        "cut off": run.cut_off or "",
        "command": run.command or "",
        **{f"provenance: {name}": text for name, text in run.provenance.items()},
    }
    yield from ((name, text) for name, text in facts.items() if text)


def _readings(readings: Sequence[Reading]) -> Iterator[tuple[str, ...]]:
    """Yield titles and rows of a table: a row for each reading, or of many readings for each statistic."""
    if readings and len(readings) <= _MOST_READINGS:
        yield "Statistic", "Node", "Part", "Value"
        for reading in readings:
            value = _format_value(reading.value, reading.unit)
            yield reading.statistic, reading.host or "all nodes", reading.subject, value
    elif readings:
        yield "Statistic", "Values", "Lowest", "Median", "Highest"
        by_name: dict[tuple[str, str], list[Reading]] = {}
        for reading in readings:
            by_name.setdefault((reading.statistic, reading.unit), []).append(reading)
        for (name, unit), of_name in by_name.items():
            values, lowest = [reading.value for reading in of_name], min(of_name, key=lambda reading: reading.value)
            where = " ".join(part for part in (lowest.host, lowest.subject) if part)
            low, middle, high = (_format_value(value, unit) for value in (lowest.value, median(values), max(values)))
            yield name, str(len(values)), f"{low} ({where})" if where else low, middle, high


def _format_value(value: float, unit: str) -> str:
    try:
        return str(Quantity(value, unit))
    except UnitError:
        return f"{value} {unit}"
