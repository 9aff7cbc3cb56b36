"""The numbers of a session for other programs: OpenMetrics text for Prometheus, and CSV tables.

Used by `llmbench report --format`.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from pytest_llmbench import __version__
from pytest_llmbench.core.errors import UnitError
from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.quantity import UNITS, Quantity
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import Record, RunRecord, SessionVerdicts, Verdict
from pytest_llmbench.core.text import harmless
from pytest_llmbench.core.wire import layout
from pytest_llmbench.judging.telemetry import energy_of
from pytest_llmbench.reporting.base import FinishedSession

# The suffix of a metric's name by the dimension of its unit. Values are in the dimension's base unit.
_SUFFIXES = {
    "token rate": "tokens_per_second", "token rate per GPU": "tokens_per_second_per_gpu",
    "sample rate": "samples_per_second", "time": "seconds", "compute rate": "flop_per_second",
    "compute rate per GPU": "flop_per_second_per_gpu", "size": "bytes", "bandwidth": "bytes_per_second",
    "operation rate": "operations_per_second", "power": "watts", "energy per token": "joules_per_token",
    "tokens per energy": "tokens_per_joule", "temperature": "celsius", "frequency": "hertz", "fraction": "ratio",
    "loss": "nats",
}  # fmt: skip
_STEP_COLUMNS = ("step", "interval", "seconds", "tokens", "samples", "loss", "grad_norm", "peak_memory_bytes")
# The columns of each CSV table.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "statistics": (
        "session", "system", "run", "recipe", "nodes", "gpus", "statistic", "value", "unit", "low", "high", "reason",
    ),
    "steps": ("session", "system", "run", *_STEP_COLUMNS),
    "verdicts": (
        "session", "system", "about", "name", "test", "verdict", "statistic", "measured", "value", "unit", "low",
        "high", "threshold", "at_least", "at_most", "reference", "floor", "reason", "cause",
    ),
    "readings": (
        "session", "system", "check", "node", "subject", "statistic", "value", "unit", "nodes", "gpus",
    ),
}  # fmt: skip


class Sample(NamedTuple):
    """One number of OpenMetrics."""

    name: str  # of its family, without the unit
    unit: str  # suffix of the name, such as `seconds`; empty for a count
    help: str  # meaning of the family
    value: float  # finite, in that unit
    labels: Mapping[str, str]  # of its run, check or node


def openmetrics(samples: Iterable[Sample]) -> str:
    """Samples as OpenMetrics text without times, as the textfile collector of node-exporter takes it."""
    from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415  # few sessions export
    from prometheus_client.openmetrics.exposition import generate_latest  # noqa: PLC0415

    families: dict[tuple[str, str], GaugeMetricFamily] = {}
    for name, unit, about, value, labels in samples:
        if (name, unit) not in families:
            families[name, unit] = GaugeMetricFamily(name, about, labels=[*labels], unit=unit)
        families[name, unit].add_metric([*labels.values()], value)
    text: bytes = generate_latest(SimpleNamespace(collect=families.values))  # type: ignore[no-untyped-call]
    return text.decode()


def samples_of(session: FinishedSession) -> list[Sample]:
    """Each measured number of a session, once."""
    samples = [*_session_samples(session)]
    for run in session.runs.values():
        labels = {"run": run.key, "recipe": run.recipe.name, "system": run.system}
        judged = "Whether a run could be judged: it finished, is sane and was measured."
        samples.append(Sample("llmbench_run_judged", "", judged, int(run.problem is None), labels))
        for name, metric in run.metrics.items():
            about = f"Statistic {name} of a run."
            samples += _in_base_unit(f"llmbench_run_{name}", about, metric.value, metric.unit, labels)
        samples += _bounds(run, labels)
        if reason := _why_no_energy(run):
            about = "1 for a run on GPUs whose energy is unknown, with the reason."
            samples.append(Sample("llmbench_run_energy_unknown", "", about, 1, {**labels, "reason": reason}))
    for check in session.checks.values():
        for reading in check.report.readings:
            labels = {"check": check.check, "node": reading.host or "", "subject": reading.subject}
            labels["system"] = check.system
            about = f"Measured {reading.statistic} of a check."
            samples += _in_base_unit(f"llmbench_check_{reading.statistic}", about, reading.value, reading.unit, labels)
    systems = {check.system for check in session.checks.values()}
    for host, fit in fitness(session.checks).items():
        about = "Whether a node may train according to every check: 1, or 0."
        samples.append(Sample("llmbench_node_fit", "", about, int(fit), {"node": host, "system": min(systems)}))
    unique = {}
    for sample in samples:
        labels = {name: harmless(text) for name, text in sample.labels.items()}
        unique[sample.name, sample.unit, *labels.values()] = sample._replace(labels=labels)
    return [*unique.values()]


def _bounds(run: RunRecord, labels: Mapping[str, str]) -> Iterator[Sample]:
    for judgement in run.judgements:
        for side, bound in (("at_least", judgement.at_least), ("at_most", judgement.at_most)):
            if bound is not None and judgement.unit is not None and judgement.verdict != Verdict.SKIP:
                name, about = f"llmbench_bound_{judgement.statistic}", f"Bound of a test on {judgement.statistic}."
                own = {**labels, "test": judgement.test, "side": side}
                yield from _in_base_unit(name, about, bound, judgement.unit, own)


def fitness(checks: Mapping[str, HealthRecord]) -> dict[str, bool]:
    """True for each fully judged node that may train, by name."""
    hosts = {host for check in checks.values() for host in check.hosts}
    unfit = {host for check in checks.values() for host in check.unfit()}
    judged: set[str] = set()
    if all(check.report.problem is None for check in checks.values()):
        for check in checks.values():
            judged |= set(check.hosts) - set(check.report.skipped) if check.report.skip is None else set()
    return {host: host not in unfit for host in sorted(judged | (unfit & hosts))}


def _session_samples(session: FinishedSession) -> Iterator[Sample]:
    records: list[Record] = [*session.runs.values(), *session.checks.values()]
    for system, cluster in sorted({(record.system, str(record.cluster)) for record in records}):
        labels = {"session": session.id, "system": system, "cluster": cluster, "version": __version__}
        yield Sample("llmbench_session", "", "The session that the other numbers are of.", 1, labels)
    verdicts = {judgement.test: str(judgement.verdict) for record in records for judgement in record.judgements}
    counts = Counter([*verdicts.values(), *(row["verdict"] for row in _unrecorded(session))])
    for verdict in map(str, Verdict):
        yield Sample(
            "llmbench_tests", "", "Tests of the session by their verdict.", counts[verdict], {"verdict": verdict}
        )
    ends = [record.timings.ended for record in records if record.timings.ended is not None]
    if ends:
        about = "Unix time at which the last run or check of the session ended."
        yield Sample("llmbench_session_end_timestamp", "seconds", about, max(ends), {})


def _unrecorded(session: FinishedSession) -> Iterator[dict[str, str]]:
    """Yield the verdicts outside of records, of tests and INCOMPLETE clauses; a test that lacks one is an ERROR."""
    rows: dict[str, Mapping[str, object]] = {test.test: {} for test in session.planned.tests}
    if (path := session.folder / layout.VERDICTS).exists():
        judged = SessionVerdicts.read(path)
        rows |= {str(row.get("test")): row for row in judged.tests}
        rows |= {
            f"requirements::{clause.name}": clause.model_dump(mode="json") for clause in judged.clauses
            if clause.verdict is Verdict.INCOMPLETE
        }  # fmt: skip
    records: list[Record] = [*session.runs.values(), *session.checks.values()]
    recorded = {judgement.test for record in records for judgement in record.judgements}
    for test, row in rows.items():
        if test not in recorded:
            verdict, reason = row.get("verdict"), row.get("reason")
            known = str(verdict) if verdict in {*Verdict} else "ERROR"
            yield {"test": test, "verdict": known, "reason": str(reason or ("" if row else "no verdict is on record"))}


def _why_no_energy(run: RunRecord) -> str:
    """The reason why the energy of a run on GPUs is unknown; empty if it is known, or without GPUs."""
    _, unknown, reason = (energy_of(run) or "").partition("unknown: ")
    return reason if unknown else ""


def _in_base_unit(name: str, about: str, value: float, unit: str, labels: Mapping[str, str]) -> Iterator[Sample]:
    try:
        base, suffix = Quantity(value, unit).base, _SUFFIXES[UNITS[unit][0]]
    except (UnitError, KeyError):
        return  # infinite, NaN, or a unit without a base
    plain = re.sub("[^a-z0-9_]", "_", name.lower())
    # A name that ends with its unit keeps one of both.
    plain = re.sub(rf"_{suffix}$", "", re.sub(r"_per_s(_|$)", r"_per_second\1", plain)) or plain
    yield Sample(plain, suffix, about, base, labels)


def write_csv(session: FinishedSession, folder: Path) -> list[Path]:
    """Write each table of `COLUMNS` as CSV with a head line, in UTF-8. A missing number is an empty field.

    Raises OSError if writing failed.
    """
    texts = {name: io.StringIO() for name in COLUMNS}
    writers = {name: csv.DictWriter(texts[name], columns, lineterminator="\n") for name, columns in COLUMNS.items()}
    for writer in writers.values():
        writer.writeheader()
    for table, row in _rows(session):
        writers[table].writerow({key: harmless(cell) if isinstance(cell, str) else cell for key, cell in row.items()})
    for name, text in texts.items():
        write_text(folder / f"{name}.csv", text.getvalue())
    return [folder / f"{name}.csv" for name in COLUMNS]


def _rows(session: FinishedSession) -> Iterator[tuple[str, dict[str, Any]]]:
    for run in session.runs.values():
        about = {"session": run.session, "system": run.system, "run": run.key}
        machine = {"recipe": run.recipe.name, "nodes": run.nodes, "gpus": run.gpus}
        for name, metric in run.metrics.items():
            numbers = metric.model_dump(include={"value", "unit", "low", "high"})
            yield "statistics", {**about, **machine, "statistic": name, **numbers}
        if reason := _why_no_energy(run):
            unknown = {"statistic": "energy_per_token", "unit": "J/token", "reason": reason}
            yield "statistics", {**about, **machine, **unknown}
        for step in run.steps:
            yield "steps", {**about, **{name: getattr(step, name) for name in _STEP_COLUMNS}}
    for check in session.checks.values():
        for reading in check.report.readings:
            about = {"session": check.session, "system": check.system, "check": check.check, "node": reading.host or ""}
            yield "readings", {**about, **reading.model_dump(exclude={"host"})}
    records: list[Record] = [*session.runs.values(), *session.checks.values()]
    for record in records:
        about = {"session": record.session, "system": record.system, "about": record.about, "name": record.name}
        for judgement in record.judgements:
            yield "verdicts", {**about, **judgement.model_dump(mode="json")}
    yield from (("verdicts", {"session": session.id, **row}) for row in _unrecorded(session))
