"""The sections of the report: one for each run and each check, as the templates show it."""

import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from statistics import median
from typing import NamedTuple

from pytest_llmbench.core.files import open_regular
from pytest_llmbench.core.quantity import counted, for_people, listed, utc
from pytest_llmbench.core.record.health import HealthRecord, Reading
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.text import harmless
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.driver import read_report
from pytest_llmbench.core.wire.foreign import redacted
from pytest_llmbench.judging.telemetry import energy_of
from pytest_llmbench.reporting.html.figures import Figure, check_figures, rank_figures, step_figures
from pytest_llmbench.reporting.html.rows import ORDER, VerdictRow, shown, worst
from pytest_llmbench.session.ending import log_to_read
from pytest_llmbench.session.folder import SessionFolder
from pytest_llmbench.workloads.node.secret_filter import secret_values

# Limits for all runs of a session together, so that a browser shows a page of 2,000 runs.
_ALL_POINTS, _LEAST_POINTS, _MOST_POINTS = 48_000, 24, 600
_ALL_TEXT, _MOST_TEXT = 3_000_000, 6_000
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

    def __init__(self, scripts: Iterable[Path]) -> None:
        self._known, exports = secret_values(dict(os.environ), ()), list[tuple[str, str]]()
        for script in scripts:
            with suppress(OSError), script.open("rb") as file:
                exports += _EXPORT.findall(file.read(_LONGEST_SCRIPT).decode("utf-8", errors="replace"))
        for name, text in exports:
            try:
                value = next(iter(shlex.split(text)), "")
            except ValueError:  # quotes that are not closed
                value = text
            self._known |= secret_values({name: value}, ())

    def excerpt(self, folder: Path, path: Path, most: int, *, end: bool = False) -> Excerpt:
        """The first bytes of a text file of a run's folder, or the last ones, in whole lines."""
        try:
            with open_regular(path) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - most) if end else 0)
                text = file.read(most).decode("utf-8", errors="replace")
        except FileNotFoundError:
            return Excerpt(str(path), note="no log has a line")
        except OSError as error:
            return Excerpt(str(path), note=f"it cannot be read: {error.strerror}")
        note = ""
        if size > most:
            # The line that is cut may hold half a secret, which the redaction would miss: it is left out.
            text = text.partition("\n")[2] if end else text.rpartition("\n")[0]
            note = f"the last {most:,} of {size:,} bytes" if end else "its end is left out"
        driver = read_report(folder)
        marks = driver.secrets if driver is not None else ()
        return Excerpt(str(path), redacted(harmless(text), self._known, marks), note)


def scripts_of(folder: Path) -> list[Path]:
    """The scripts that started a run, the framework's first; none for the ranks of a Slurm step."""
    own = folder / layout.SCRIPT
    return [path for path in (own, *sorted((folder / layout.LOGS).glob("*.sh"))) if path.is_file()]


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordSection:
    """A run or a check on the page."""

    name: str
    kind: str  # kind of the worst verdict on it
    rows: Sequence[VerdictRow]
    path: str
    broken: str = ""  # the damage of its record; empty if it is readable
    figures: Sequence[Figure] = ()
    record: RunRecord | HealthRecord | None = None  # without series and evidence
    # Of a run:
    brief: bool = False  # a shorter section, for the better ones of very many runs
    later: bool = False  # True if the page's script makes its elements when it is opened
    energy: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    versions: tuple[tuple[str, str], ...] = ()
    recipe: str = ""  # JSON
    log: Excerpt | None = None
    script: Excerpt | None = None
    # Of a check:
    readings: Sequence[Sequence[str]] = ()  # a table: its titles, then its rows; many values of a statistic are one row
    evidence: str = ""  # JSON; empty if it is too long for the page


def run_sections(
    session: SessionFolder, rows: Mapping[tuple[str, str], Sequence[VerdictRow]]
) -> Iterator[RecordSection]:
    """Yield all runs, the worst first, with their verdicts by `run` and name."""
    folders = {name: folder for (about, name), folder in session.places.items() if about == "run"}
    kinds = {name: worst(rows.get(("run", name), ())) for name in folders}
    scripts = {name: scripts_of(folder) for name, folder in folders.items()}
    texts = ShownTexts(chain.from_iterable(scripts.values()))
    count = max(1, len(folders))
    points, room = min(_MOST_POINTS, max(_LEAST_POINTS, _ALL_POINTS // count)), min(_MOST_TEXT, _ALL_TEXT // count)
    for place, name in enumerate(sorted(folders, key=lambda name: ORDER[kinds[name]])):
        folder, record = folders[name], session.runs.get(name)
        passes = kinds[name] in {"pass", "skip", "unbounded"}
        logs, most = folder / layout.LOGS, room // 2 if passes else room
        if record is not None and record.replayed:
            logs = Path(record.replayed)
        section = RecordSection(
            name=name, kind=kinds[name], rows=rows.get(("run", name), ()), path=str(folder),
            log=texts.excerpt(folder, log_to_read(logs), most, end=True) if most >= _LEAST_TEXT else None,
        )  # fmt: skip
        if record is None:
            yield replace(section, broken=session.broken["run", name])
            continue
        brief = len(session.runs) > _MOST_WHOLE and (passes or place >= _MOST_WHOLE // 3)
        by_rank = () if brief else rank_figures(record)
        # For further runs, the recipe at the end of the page says it.
        work = {"work": "; ".join(record.work.values())} if place < _MOST_ELEMENTS else {}
        yield replace(
            section,
            record=record.model_copy(update={"steps": (), "telemetry": (), "times": None, "rank_info": ()}),
            brief=brief,
            later=place >= _MOST_ELEMENTS,
            energy=energy_of(record),
            facts=work | _facts(record),
            figures=[*islice(step_figures(record, points), 1 if brief else None), *by_rank],
            versions=tuple(record.versions.items()),
            recipe=record.recipe.model_dump_json(),
            script=texts.excerpt(folder, scripts[name][0], room) if scripts[name] and room >= _LEAST_TEXT else None,
        )


def check_sections(
    session: SessionFolder, rows: Mapping[tuple[str, str], Sequence[VerdictRow]]
) -> Iterator[RecordSection]:
    """Yield all checks, in their order, with their verdicts by `check` and name."""
    for (about, name), folder in session.places.items():
        if about != "check":
            continue
        own, record = rows.get((about, name), ()), session.checks.get(name)
        section = RecordSection(name=name, kind=worst(own), rows=own, path=str(folder))
        if record is None:
            yield replace(section, broken=session.broken[about, name])
            continue
        evidence = format_json(record.report.evidence) if record.report.evidence else ""
        yield replace(
            section,
            record=record.without_evidence(),
            figures=[*check_figures(record)],
            readings=[*_readings(record.report.readings)],
            evidence=evidence if len(evidence) <= _MOST_TEXT else "",
        )


def format_json(data: object) -> str:
    """JSON for people."""
    return json.dumps(data, indent=1, ensure_ascii=False, default=str)


def _facts(run: RunRecord) -> dict[str, str]:
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
    return {name: text for name, text in facts.items() if text}


def _readings(readings: Sequence[Reading]) -> Iterator[tuple[str, ...]]:
    """Yield titles and rows of a table: a row for each reading, or of many readings for each statistic."""
    if readings and len(readings) <= _MOST_READINGS:
        yield "Statistic", "Node", "Part", "Value"
        for reading in readings:
            yield reading.statistic, reading.host or "all nodes", reading.subject, shown(reading.value, reading.unit)
    elif readings:
        yield "Statistic", "Values", "Lowest", "Median", "Highest"
        by_name: dict[tuple[str, str], list[Reading]] = {}
        for reading in readings:
            by_name.setdefault((reading.statistic, reading.unit), []).append(reading)
        for (name, unit), of_name in by_name.items():
            values, lowest = [reading.value for reading in of_name], min(of_name, key=lambda reading: reading.value)
            where = " ".join(part for part in (lowest.host, lowest.subject) if part)
            low, middle, high = (shown(value, unit) for value in (lowest.value, median(values), max(values)))
            yield name, str(len(values)), f"{low} ({where})" if where else low, middle, high
