"""The sections of a report: one for each run and each check, with everything that the page's templates show of it."""

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from pytest_llmbench.core.errors import UnitError
from pytest_llmbench.core.quantity import Quantity, counted, for_people
from pytest_llmbench.core.record.health import HealthRecord, Reading
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.wire import layout
from pytest_llmbench.reporting.html.check_figures import check_figures
from pytest_llmbench.reporting.html.figures import Figure
from pytest_llmbench.reporting.html.rank_figures import rank_figures, size_of_step_logs
from pytest_llmbench.reporting.html.rows import ORDER, VerdictRow, worst
from pytest_llmbench.reporting.html.step_figures import step_figures
from pytest_llmbench.reporting.html.texts import Excerpt, ShownTexts
from pytest_llmbench.session.folder import SessionFolder

# What all runs of a session may take together, so that 2,000 of them make no page that a browser struggles with.
_ALL_POINTS, _LEAST_POINTS, _MOST_POINTS = 48_000, 24, 600
_ALL_TEXT, _MOST_TEXT = 3_000_000, 6_000
_ALL_STEP_LOGS, _MOST_STEP_LOGS = 6_000_000, 2_000_000
# Of more runs than these, all but the worst third of this number have no figures by rank, and fewer numbers.
_MOST_WHOLE = 300
_LEAST_TEXT = 1_000
# Sections of more runs than these are made when they are opened: a browser takes seconds for so many elements.
_MOST_ELEMENTS = 50
# Of shorter tables every row is shown, of longer ones a line for each statistic.
_MOST_READINGS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSection:
    """A run.

    Attributes:
        name: its key.
        kind: the worst verdict on it.
        rows: its verdicts.
        records: those of all runs.
        broken: the reason why; empty where it can.
        headline: the statistic of record, in words.
        facts: name and text of what it was.
        figures: in the order of the page.
        environment: number of its set of versions, 0 for none.
        recipe: number of its recipe.
        log, script: excerpts.
        path: of its record.
        brief: whether it is one of very many runs, and none of the worst: less of it is shown.
        later: whether it becomes part of the page only when it is opened.
    """

    name: str
    kind: str
    rows: Sequence[VerdictRow]
    brief: bool = False
    later: bool = False
    records: Mapping[str, RunRecord] = field(default_factory=dict)
    broken: str = ""
    headline: str = ""
    facts: Sequence[tuple[str, str]] = ()
    figures: Sequence[Figure] = ()
    environment: int = 0
    recipe: int = 0
    log: Excerpt | None = None
    script: Excerpt | None = None
    path: str = ""

    @property
    def record(self) -> RunRecord | None:
        """Its record, read each time; None where that cannot be read."""
        return self.records.get(self.name)

    @property
    def metrics(self) -> Iterator[tuple[str, str, str]]:
        """Statistic, value and interval of each number; of a brief section those that were judged or have the last."""
        judged = {row.statistic for row in self.rows}
        record = self.record
        for name, metric in (record.metrics if record is not None else {}).items():
            between = ""
            if metric.low is not None and metric.high is not None:
                # A forecast from few and noisy steps reaches below 0, which no speed and no time does.
                low = metric.low if metric.sense is None else max(metric.low, 0.0)
                between = f"{for_people(low)} to {for_people(metric.high)}"
            if not self.brief or between or name in judged:
                yield name, str(metric.quantity), between


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckSection:
    """A check, likewise.

    Attributes:
        state: its verdict on all nodes together, and what that rests on.
        readings: statistic, number of values, lowest, median, highest, and where the lowest is; or each value alone.
        single: whether `readings` are single values: statistic, node, part, value.
    """

    name: str
    kind: str
    rows: Sequence[VerdictRow]
    record: HealthRecord | None = None
    broken: str = ""
    figures: Sequence[Figure] = ()
    readings: Sequence[Sequence[str]] = ()
    single: bool = True
    evidence: str = ""
    path: str = ""


class Sections:
    """Makes the sections of one session.

    Attributes:
        environments: sets of versions that runs have, each with the number under which it is shown.
        recipes: recipes as JSON, likewise, with their names.
        rules: how each statistic is computed.
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
            return RunSection(
                name=name, kind=kind, rows=rows, broken=self._session.broken["run", name], log=log, path=str(folder)
            )
        self.rules |= {metric: told.rule for metric, told in record.metrics.items()}
        statistic = record.recipe.statistic_of_record
        number = record.metrics.get(statistic)
        brief = len(self._session.runs) > _MOST_WHOLE and (passes or place >= _MOST_WHOLE // 3)
        by_rank = [] if brief else list(rank_figures(record, folder, self._may_read(folder)))
        return RunSection(
            name=name,
            kind=kind,
            rows=rows,
            brief=brief,
            later=place >= _MOST_ELEMENTS,
            records=self._session.runs,
            headline=f"{statistic} {number.quantity}" if number is not None else "",
            facts=list(_facts(record)),
            figures=[*step_figures(record, self._points), *by_rank],
            environment=_number(self.environments, tuple(record.versions.items())) if record.versions else 0,
            recipe=_number(self.recipes, (record.recipe.name, record.recipe.model_dump_json())),
            log=log,
            script=self._texts.script(folder, self._text) if self._text >= _LEAST_TEXT else None,
            path=str(folder),
        )

    def _may_read(self, folder: Path) -> int:
        """How much of a run's step logs may be read: the worst runs come first, and use it up."""
        size = size_of_step_logs(folder)
        if size > min(self._step_logs, _MOST_STEP_LOGS):
            return 0
        self._step_logs -= size
        return size

    def _check(self, name: str) -> CheckSection:
        rows, folder = self._rows.get(("check", name), []), self._session.places["check", name]
        record = self._session.checks.get(name)
        if record is None:
            broken = self._session.broken["check", name]
            return CheckSection(name=name, kind=worst(rows), rows=rows, broken=broken, path=str(folder))
        told = record.report.readings
        single = len(told) <= _MOST_READINGS
        evidence = _indented(record.report.evidence) if record.report.evidence else ""
        return CheckSection(
            name=name,
            kind=worst(rows),
            rows=rows,
            record=record,
            figures=list(check_figures(record)),
            readings=list(_each(told) if single else _summed(told)),
            single=single,
            evidence=evidence if len(evidence) <= _MOST_TEXT else "",
            path=str(folder),
        )


def utc(at: float | None) -> str:
    """A Unix time for people and programs; empty where it is not known, or none."""
    try:
        return dt.datetime.fromtimestamp(at or 0.0, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if at else ""
    except (OverflowError, ValueError, OSError):
        return f"{at} (no time)"


def _number(known: dict[tuple[str, str], int] | dict[tuple[tuple[str, str], ...], int], thing: object) -> int:
    return known.setdefault(thing, len(known) + 1)  # type: ignore[arg-type]  # one of both keys, by the caller


def _indented(data: object) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False, default=str)


def _facts(run: RunRecord) -> Iterator[tuple[str, str]]:
    """Yield what a run was, as far as it is known."""
    times = run.timings
    gpus = f"{run.gpus} × {run.device}" if run.gpus and run.device else (run.device or "unknown")
    told = {
        "device": gpus,
        "shape": f"{counted(run.nodes, 'node')}, {counted(run.ranks, 'rank')}",
        "hosts": ", ".join(run.hosts[:64]) + (f" and {len(run.hosts) - 64} more" if len(run.hosts) > 64 else ""),
        "job": run.job.strip(" ()"),
        "submitted": utc(times.submitted),
        "started": utc(times.started),
        "ended": utc(times.ended),
        "took": f"{for_people(run.took_s)} s" if run.took_s > 0.0 else "",
        "time outside of steps": _outside(run.outside_steps),
        "simulated fault": run.simulated or "",
        "replayed logs": run.replayed or "",
        "early verdict": str(run.early) if run.early is not None else "",
        "cut off": run.cut_off or "",
        "command": run.command or "",
        **{f"provenance: {name}": text for name, text in run.provenance.items()},
    }
    yield from ((name, text) for name, text in told.items() if text)


def _outside(parts: Mapping[str, float]) -> str:
    words = {"steps_s": "in steps", "before_s": "before the first", "around_s": "otherwise"}
    return ", ".join(f"{words.get(name, name)} {for_people(value, 3)} s" for name, value in parts.items())


def _each(readings: Sequence[Reading]) -> Iterator[Sequence[str]]:
    for reading in readings:
        yield reading.statistic, reading.host or "all nodes", reading.subject, _shown(reading.value, reading.unit)


def _summed(readings: Sequence[Reading]) -> Iterator[Sequence[str]]:
    """Yield a line for each statistic of many values."""
    by_name: dict[tuple[str, str], list[Reading]] = {}
    for reading in readings:
        by_name.setdefault((reading.statistic, reading.unit), []).append(reading)
    for (name, unit), found in by_name.items():
        values = [each.value for each in found]
        lowest = min(found, key=lambda each: each.value)
        where = " ".join(part for part in (lowest.host, lowest.subject) if part)
        low, middle, high = (_shown(value, unit) for value in (min(values), median(values), max(values)))
        yield name, str(len(found)), f"{low} ({where})" if where else low, middle, high


def _shown(value: float, unit: str) -> str:
    try:
        return str(Quantity(value, unit))
    except UnitError:
        return f"{value} {unit}"
