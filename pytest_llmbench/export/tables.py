"""CSV and Parquet: the statistics, steps, verdicts and readings of a session, a table each."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import make_folder, write_text
from pytest_llmbench.core.record.records import Record
from pytest_llmbench.core.text import harmless
from pytest_llmbench.reporting.base import FinishedSession

# Columns of each table with their types.
_ABOUT = {"session": str, "system": str}
COLUMNS: Mapping[str, Mapping[str, type]] = {
    "statistics": {
        **_ABOUT, "run": str, "recipe": str, "nodes": int, "gpus": int, "statistic": str, "value": float, "unit": str,
        "low": float, "high": float,
    },
    "steps": {
        **_ABOUT, "run": str, "step": int, "interval": int, "seconds": float, "tokens": int, "samples": int,
        "loss": float, "grad_norm": float, "peak_memory_bytes": int,
    },
    "verdicts": {
        **_ABOUT, "about": str, "name": str, "test": str, "verdict": str, "statistic": str, "measured": str,
        "value": float, "unit": str, "low": float, "high": float, "threshold": str, "at_least": float, "at_most": float,
        "reference": str, "reason": str, "cause": str,
    },
    "readings": {
        **_ABOUT, "check": str, "node": str, "subject": str, "statistic": str, "value": float, "unit": str,
        "nodes": int, "gpus": int,
    },
}  # fmt: skip


def write_csv(session: FinishedSession, folder: Path) -> list[Path]:
    """Write each table as CSV with a head line, in UTF-8. A number that is missing is an empty field.

    Raises:
        OSError: it cannot be written.
    """
    written = []
    for name, columns in COLUMNS.items():
        text = io.StringIO()
        writer = csv.DictWriter(text, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows_of(session, name))
        written.append(folder / f"{name}.csv")
        write_text(written[-1], text.getvalue())
    return written


def write_parquet(session: FinishedSession, folder: Path) -> list[Path]:
    """Write each table as Parquet. A number that is missing is null.

    Raises:
        ConfigError: the extra `export` is not installed.
        OSError: it cannot be written.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415  # an extra, and slow
        from pyarrow import parquet  # noqa: PLC0415  # likewise
    except ImportError as error:
        raise ConfigError(f"Parquet needs pip install pytest-llmbench[export]: {error}") from error
    types = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    make_folder(folder)
    written = []
    for name, columns in COLUMNS.items():
        schema = pa.schema([(column, types[kind]) for column, kind in columns.items()])
        table = pa.Table.from_pylist(list(rows_of(session, name)), schema=schema)
        target = folder / f"{name}.parquet"
        whole = target.with_name(f".{target.name}.part")
        parquet.write_table(table, whole)
        whole.replace(target)
        written.append(target)
    return written


def rows_of(session: FinishedSession, table: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table; text of others has no control characters."""
    rows = {"statistics": _statistics, "steps": _steps, "verdicts": _verdicts, "readings": _readings}[table](session)
    for row in rows:
        yield {name: harmless(value) if isinstance(value, str) else value for name, value in row.items()}


def _about(record: Record) -> dict[str, Any]:
    return {"session": record.session, "system": record.system}


def _statistics(session: FinishedSession) -> Iterator[dict[str, Any]]:
    for record in session.runs.values():
        run = {"run": record.key, "recipe": record.recipe.name, "nodes": record.nodes, "gpus": record.gpus}
        for name, metric in record.metrics.items():
            told = {"value": metric.value, "unit": metric.unit, "low": metric.low, "high": metric.high}
            yield {**_about(record), **run, "statistic": name, **told}


def _steps(session: FinishedSession) -> Iterator[dict[str, Any]]:
    wanted = [name for name in COLUMNS["steps"] if name not in {"session", "system", "run"}]
    for record in session.runs.values():
        for step in record.steps:
            yield {**_about(record), "run": record.key, **{name: getattr(step, name) for name in wanted}}


def _verdicts(session: FinishedSession) -> Iterator[dict[str, Any]]:
    records: Sequence[Record] = [*session.runs.values(), *session.checks.values()]
    for record in records:
        for judgement in record.judgements:
            told = judgement.model_dump(mode="json")
            yield {**_about(record), "about": record.about, "name": record.name, **told}


def _readings(session: FinishedSession) -> Iterator[dict[str, Any]]:
    for record in session.checks.values():
        for reading in record.report.readings:
            told = reading.model_dump(exclude={"host"})
            yield {**_about(record), "check": record.check, "node": reading.host, **told}
