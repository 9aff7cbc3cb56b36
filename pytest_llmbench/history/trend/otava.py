"""Series as Apache Otava reads them: a CSV file of each, and the configuration that names them.

Each number has a file of its own: Otava reads no file in which a line lacks one.
"""

import csv
import datetime as dt
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from sqlalchemy import select

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import make_folder, write_text
from pytest_llmbench.history.store.database import History
from pytest_llmbench.history.store.queries import SeriesPoint, read_series
from pytest_llmbench.history.store.tables import METRICS, SERIES

CONFIGURATION = "otava.yaml"
_DIRECTIONS = {"higher": 1, "lower": -1}
# Names of statistics may be anybody's.
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_ATTRIBUTES = ("session", "run", "git_commit")


def export_otava(history: History, folder: Path, recipes: Sequence[str] = ()) -> list[Path]:
    """Write a CSV file for each number of each series, and `otava.yaml` next to them.

    Numbers whose direction nobody declares are left out: Otava would call each of their changes a regression or not.

    Args:
        history: the history.
        folder: gets the files; it is made.
        recipes: of these only; all where none is named.

    Returns:
        The written files, the configuration first.

    Raises:
        ConfigError: the history has no such recipe, or nothing to export.
        OSError: a file cannot be written.
    """
    series = _series(history)
    unknown = set(recipes) - {recipe for _, recipe in series}
    if unknown:
        known = ", ".join(sorted({recipe for _, recipe in series})) or "none"
        raise ConfigError(f"the history has no recipe {min(unknown)}; it has {known}")
    chosen = [(number, recipe) for number, recipe in series if not recipes or recipe in recipes]
    if not chosen:
        raise ConfigError(f"the history {history.shown} has no series to export")
    make_folder(folder)
    tests: dict[str, Any] = {}
    written = []
    for number, recipe in chosen:
        for metric in _metrics_of(history, number):
            try:
                points = read_series(history, recipe, metric, series=number)
            except ConfigError:  # all of its runs were simulated
                continue
            name = _UNSAFE.sub("_", f"{recipe}-{number}.{metric}")
            path = folder / f"{name}.csv"
            write_text(path, _table(metric, points))
            written.append(path)
            direction = _DIRECTIONS[str(points[-1].better)]
            tests[name] = {
                "type": "csv", "file": str(path.absolute()), "time_column": "time", "attributes": [*_ATTRIBUTES],
                "metrics": {metric: {"column": metric, "direction": direction, "scale": 1.0}},
            }  # fmt: skip
    if not written:
        raise ConfigError(f"the history {history.shown} has no measurement to export")
    configuration = folder / CONFIGURATION
    write_text(configuration, yaml.safe_dump({"tests": tests}, sort_keys=False))
    return [configuration, *written]


def _series(history: History) -> list[tuple[int, str]]:
    with history.reading() as connection:
        found = connection.execute(select(SERIES.c.id, SERIES.c.recipe).order_by(SERIES.c.recipe, SERIES.c.id))
        return [(number, recipe) for number, recipe in found]


def _metrics_of(history: History, series: int) -> list[str]:
    """Names of the numbers of a series that have a direction."""
    with history.reading() as connection:
        chosen = select(METRICS.c.name).where(METRICS.c.series == series, METRICS.c.better.isnot(None)).distinct()
        return sorted(connection.execute(chosen).scalars())


def _table(metric: str, points: Sequence[SeriesPoint]) -> str:
    """One line for each run, oldest first."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["time", *_ATTRIBUTES, metric])
    for point in points:
        at = dt.datetime.fromtimestamp(point.time, tz=dt.UTC).isoformat()
        writer.writerow([at, point.session, point.run, point.git_commit or "", repr(point.value)])
    return text.getvalue()
