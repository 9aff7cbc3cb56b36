"""Figures of the speed of a session's recipes over earlier sessions, from the history."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.quantity import counted, for_people
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.history.database import open_history
from pytest_llmbench.history.queries import SeriesPoint, read_series
from pytest_llmbench.reporting.html.figures import CurveLine, Figure

_MOST_RUNS, _MOST_FIGURES = 200, 6


def trend_figures(place: Path | str | None, session: str, runs: Iterable[RunRecord]) -> list[Figure]:
    """The statistic of record of each recipe over sessions; empty without a history, or without an earlier session."""
    if place is None:
        return []
    latest: dict[tuple[str, str, str, int], list[RunRecord]] = {}
    for run in runs:
        if run.recipe.statistic_of_record in run.metrics:
            key = (run.recipe.name, run.recipe.statistic_of_record, run.system, run.nodes)
            latest.setdefault(key, []).append(run)
    with contextlib.suppress(ConfigError):
        history = open_history(place)
        figures: list[Figure] = []
        for (recipe, statistic, system, nodes), own in latest.items():
            alike = (system, nodes, own[0].recipe.scale, own[0].metrics[statistic].unit)
            with contextlib.suppress(ConfigError):  # a recipe without a past
                points = read_series(history, recipe, statistic, last=_MOST_RUNS)
                past = [
                    point for point in points
                    if (point.system, point.nodes, point.scale, point.unit) == alike and point.session != session
                ]  # fmt: skip
                figures += [_figure(recipe, statistic, past, own)] if past else []
        return figures[:_MOST_FIGURES]
    return []


def _figure(recipe: str, statistic: str, past: list[SeriesPoint], own: list[RunRecord]) -> Figure:
    sessions = {name: place for place, name in enumerate(dict.fromkeys(point.session for point in past), 1)}
    now, values = len(sessions) + 1, [run.metrics[statistic].value for run in own]
    known = [*(point.value for point in past), *values]
    unit = own[0].metrics[statistic].unit
    return Figure(
        title=f"{recipe}: {statistic} over {counted(now, 'session')}",
        caption=f"{counted(len(known), 'run')} of {counted(now, 'session')}, {for_people(min(known))} to "
        f"{for_people(max(known))} {unit}; this session {', '.join(map(for_people, values[:8]))} {unit}.",
        curves=[
            CurveLine(
                name="earlier sessions", x=[sessions[point.session] for point in past],
                y=[point.value for point in past], dots=True,
                texts=[f"{point.session}, {point.run}: {for_people(point.value)} {unit}" for point in past],
            ),
            CurveLine(
                name="this session", x=[now] * len(values), y=values, dots=True, style="second",
                texts=[f"{run.key}: {for_people(run.metrics[statistic].value)} {unit}" for run in own],
            ),
        ],
        x_title="session", y_title=unit, bottom=None,
    )  # fmt: skip
