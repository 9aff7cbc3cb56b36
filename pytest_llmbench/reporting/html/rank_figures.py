"""Figures of a run by rank: in which steps and phases each spent its time, and the state of its GPU meanwhile."""

import json
import statistics as stats
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_llmbench.core.quantity import counted, for_people, listed
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.record.telemetry import GpuTelemetry
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.step_events import PHASES
from pytest_llmbench.reporting.html import figures
from pytest_llmbench.reporting.html.figures import Figure
from pytest_llmbench.reporting.html.thinning import rounded

# More rows than these are no picture any more: then the ranks that stand out most are shown.
_MOST_RANKS = 64
_MOST_COLUMNS = 120
_RANKS = {"automargin": True, "autorange": "reversed", "showgrid": False}


def rank_figures(run: RunRecord, folder: Path, log_bytes: int) -> Iterator[Figure]:
    """Yield the figures by rank of a run, as far as its record and its step logs have what they need.

    Args:
        run: its record.
        folder: the folder in which it lies.
        log_bytes: how much of step logs may be read; 0 for none.
    """
    if (drawn := _phases(run)) is not None:
        yield drawn
    if (drawn := _telemetry(run.telemetry)) is not None:
        yield drawn
    if (drawn := over_steps(folder, log_bytes)) is not None:
        yield drawn


def size_of_step_logs(folder: Path) -> int:
    """Bytes of all step logs of a run."""
    return sum(path.stat().st_size for path in _logs(folder))


def over_steps(folder: Path, log_bytes: int) -> Figure | None:
    """Ranks by steps: the time of each that a rank did not wait for others; None without step logs, or too large ones.

    A rank that waits takes as long as the slowest one, so durations alone would show nothing.
    """
    if not log_bytes or size_of_step_logs(folder) > log_bytes:
        return None
    ranks = {path.stem: own for path in _logs(folder) if (own := _own_times(path))}
    if len(ranks) < 2:
        return None
    shown = _most_telling({name: stats.fmean(own.values()) for name, own in ranks.items()})
    steps = sorted({step for name in shown for step in ranks[name]})
    stretches = _stretches(steps)
    z = [
        [rounded(_mean([ranks[name][step] for step in part if step in ranks[name]]), 4) for part in stretches]
        for name in shown
    ]
    means = {name: stats.fmean(own.values()) for name, own in ranks.items()}
    slow, fast = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    told = (
        f"{counted(len(ranks), 'rank')} over {counted(len(steps), 'step')}: own time of a step, without waiting for "
        f"others. Longest on average {slow} with {for_people(means[slow])} s, shortest {fast} with "
        f"{for_people(means[fast])} s{_left_out(len(ranks), len(shown))}."
    )
    heights = max(150, 70 + 14 * len(shown))
    return Figure(
        title="Ranks over time",
        told=told,
        data=[figures.heat_map([part[0] for part in stretches], list(shown), z, "s")],
        # Few steps are told one by one, and none at its half.
        layout={
            "xaxis": {"title": {"text": "step"}, "showgrid": False, **({"dtick": 1} if len(steps) < 13 else {})},
            "yaxis": _RANKS,
        },
        height=heights,
        wide=True,
    )


def _phases(run: RunRecord) -> Figure | None:
    """Ranks by phases, in seconds of a typical step."""
    ranks = [each for each in (run.times.ranks if run.times is not None else ()) if each.phases]
    if not ranks or run.times is None:
        return None
    phases = [phase for phase in PHASES if any(phase in each.phases for each in ranks)]
    names = {f"rank {each.rank}": each for each in ranks}
    shown = _most_telling({name: each.phases.get("sync", 0.0) for name, each in names.items()})
    z = [[rounded(names[name].phases.get(phase), 4) for phase in phases] for name in shown]
    means = {phase: stats.fmean(each.phases.get(phase, 0.0) for each in ranks) for phase in phases}
    told = (
        f"Mean of {counted(len(ranks), 'rank')} over {counted(run.times.steps, 'typical step')}: "
        f"{', '.join(f'{phase} {for_people(mean, 3)} s' for phase, mean in means.items())}"
        f"{_left_out(len(ranks), len(shown))}."
    )
    return Figure(
        title="Time of a step by rank and phase",
        told=told,
        data=[figures.heat_map(phases, list(shown), z, "s")],
        layout={"xaxis": {"showgrid": False}, "yaxis": _RANKS},
        height=max(150, 70 + 14 * len(shown)),
    )


def _telemetry(told: Sequence[GpuTelemetry]) -> Figure | None:
    """Power, SM clock and temperature of each GPU in the judged steps, one below the other."""
    watched = [each for each in told if each.samples]
    if not watched:
        return None
    ranks = [each.rank for each in watched]
    series: list[tuple[str, str, list[float | None]]] = [
        ("power", "W", [each.power_w for each in watched]),
        ("SM clock", "MHz", [each.sm_clock_mhz for each in watched]),
        ("highest temperature", "°C", [each.temperature_max_degc for each in watched]),
    ]
    words = [_range_of(*each) for each in series]
    slowed = [each.rank for each in watched if each.throttled]
    words.append(f"slowed down by heat or power brake: rank {listed(slowed)}" if slowed else "none was slowed down")
    known = [each for each in series if any(value is not None for value in each[2])]
    data, axes = [], {}
    for number, (name, unit, values) in enumerate(known):
        axis = "" if number == 0 else str(number + 1)
        bottom = 1.0 - (number + 1) / len(known)
        axes[f"yaxis{axis}"] = {
            "rangemode": "tozero", "domain": [bottom + 0.04, bottom + 1.0 / len(known) - 0.04],
            "title": {"text": unit}, "nticks": 4,
        }  # fmt: skip
        colour = (figures.LINE, figures.SECOND, figures.BAD)[number]
        marker = {"color": colour, "size": 7, "symbol": ("circle", "square", "diamond")[number]}
        drawn = [rounded(value) for value in values]
        data.append(figures.line(ranks, drawn, mode="markers", name=f"{name}, {unit}", marker=marker, yaxis=f"y{axis}"))
    return Figure(
        title="GPUs in the judged steps: power, SM clock, temperature",
        told=f"{counted(len(watched), 'GPU')}: {'; '.join(words)}.",
        data=data,
        layout={"xaxis": {"title": {"text": "rank"}, "anchor": data[-1]["yaxis"] if data else "y"}, **axes},
        height=320,
    )


def _range_of(name: str, unit: str, values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{name} {for_people(min(known))} to {for_people(max(known))} {unit}" if known else f"{name} unknown"


def _logs(folder: Path) -> list[Path]:
    """The step logs of a run, by rank."""
    return sorted((folder / layout.STEPS).glob("*.jsonl"))


def _own_times(path: Path) -> dict[int, float]:
    """The seconds of each step that a rank did not wait for others; a line that cannot be read has none."""
    found = {}
    with path.open("rb") as file:
        for line in file:
            if b'"event":"step"' not in line:
                continue
            try:
                told: Mapping[str, Any] = json.loads(line)
                found[int(told["step"])] = _own_time(told)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
    return found


def _own_time(told: Mapping[str, Any]) -> float:
    phases = (told.get("spent") or {}).get("phases") or {}
    # On a GPU the host's wait is for its own GPU as well, and nothing can be taken off.
    wait = 0.0 if "device" in phases else float(phases.get("sync", 0.0))
    return max(float(told["seconds"]) - wait, 0.0)


def _stretches(steps: Sequence[int]) -> list[Sequence[int]]:
    width = -(-len(steps) // _MOST_COLUMNS)
    return [steps[at : at + width] for at in range(0, len(steps), width)]


def _most_telling(values: Mapping[str, float]) -> list[str]:
    """The names to show, in their order: all, or those furthest from the median."""
    if len(values) <= _MOST_RANKS:
        return list(values)
    middle = stats.median(values.values())
    kept = set(sorted(values, key=lambda name: -abs(values[name] - middle))[:_MOST_RANKS])
    return [name for name in values if name in kept]


def _left_out(ranks: int, shown: int) -> str:
    return f"; drawn are the {shown} that differ most of {ranks}" if shown < ranks else ""


def _mean(values: Sequence[float]) -> float | None:
    return stats.fmean(values) if values else None
