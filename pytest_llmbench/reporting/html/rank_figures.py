"""Figures of a run by rank: its own time in each step and phase, and the state of its GPU."""

import json
import statistics as stats
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_llmbench.core.quantity import counted, for_people, listed
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.record.telemetry import GpuTelemetry
from pytest_llmbench.core.record.times import RunTimes
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.step_events import PHASES
from pytest_llmbench.reporting.html.figures import BAD, LINE, SECOND, Figure, heat_map, line

# Of more ranks, those that stand out most are drawn.
_MOST_RANKS = 64
_MOST_COLUMNS = 120


def rank_figures(run: RunRecord, folder: Path, log_bytes: int) -> Iterator[Figure]:
    """Yield the figures by rank of a run, as far as its record and its step logs have what they need.

    Args:
        run: its record.
        folder: the folder of its logs.
        log_bytes: the most bytes of step logs to read; 0 for none.
    """
    if run.times is not None and any(rank.phases for rank in run.times.ranks):
        yield _phases(run.times)
    if watched := [gpu for gpu in run.telemetry if gpu.samples]:
        yield _telemetry(watched)
    if log_bytes and size_of_step_logs(folder) <= log_bytes:
        ranks = {path.stem: own for path in _logs(folder) if (own := _own_times(path))}
        if len(ranks) > 1:
            yield _over_steps(ranks)


def size_of_step_logs(folder: Path) -> int:
    """Bytes of all step logs of a run."""
    return sum(path.stat().st_size for path in _logs(folder))


def _over_steps(ranks: Mapping[str, Mapping[int, float]]) -> Figure:
    """Ranks by steps, without the time that a rank waited: a rank that waits takes as long as the slowest one."""
    means = {name: stats.fmean(own.values()) for name, own in ranks.items()}
    shown = _most_different(means)
    steps = sorted({step for name in shown for step in ranks[name]})
    width = -(-len(steps) // _MOST_COLUMNS)
    parts = [steps[at : at + width] for at in range(0, len(steps), width)]
    own = {
        (name, part[0]): [ranks[name][step] for step in part if step in ranks[name]] for name in shown for part in parts
    }
    z = [[stats.fmean(cell) if (cell := own[name, part[0]]) else None for part in parts] for name in shown]
    slow, fast = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    caption = (
        f"{counted(len(ranks), 'rank')} over {counted(len(steps), 'step')}: own time of a step, without waiting for "
        f"others. Longest on average {slow} with {for_people(means[slow])} s, shortest {fast} with "
        f"{for_people(means[fast])} s{_left_out(len(ranks), len(shown))}."
    )
    # Few steps have a mark each, and none between them.
    axis = {"title": {"text": "step"}, "showgrid": False, **({"dtick": 1} if len(steps) < 13 else {})}
    return _by_rank("Ranks over time", caption, [part[0] for part in parts], shown, z, axis, wide=True)


def _phases(times: RunTimes) -> Figure:
    """Ranks by phases, in seconds of a typical step."""
    ranks = {f"rank {rank.rank}": rank.phases for rank in times.ranks if rank.phases}
    phases = [phase for phase in PHASES if any(phase in rank for rank in ranks.values())]
    shown = _most_different({name: rank.get("sync", 0.0) for name, rank in ranks.items()})
    means = {phase: stats.fmean(rank.get(phase, 0.0) for rank in ranks.values()) for phase in phases}
    caption = (
        f"Mean of {counted(len(ranks), 'rank')} over {counted(times.steps, 'typical step')}: "
        f"{', '.join(f'{phase} {for_people(mean, 3)} s' for phase, mean in means.items())}"
        f"{_left_out(len(ranks), len(shown))}."
    )
    z = [[ranks[name].get(phase) for phase in phases] for name in shown]
    return _by_rank("Time of a step by rank and phase", caption, phases, shown, z, {"showgrid": False})


def _by_rank(
    title: str,
    caption: str,
    x: Sequence[Any],
    ranks: Sequence[str],
    z: Sequence[Sequence[float | None]],
    axis: Mapping[str, Any],
    *,
    wide: bool = False,
) -> Figure:
    layout = {"xaxis": axis, "yaxis": {"automargin": True, "autorange": "reversed", "showgrid": False}}
    data, height = [heat_map(x, ranks, z, "s")], max(150, 70 + 14 * len(ranks))
    return Figure(title=title, caption=caption, data=data, layout=layout, height=height, wide=wide)


def _telemetry(gpus: Sequence[GpuTelemetry]) -> Figure:
    """Power, SM clock and temperature of each GPU in the judged steps, one below the other."""
    series: dict[tuple[str, str], list[float | None]] = {
        ("power", "W"): [gpu.power_w for gpu in gpus],
        ("SM clock", "MHz"): [gpu.sm_clock_mhz for gpu in gpus],
        ("highest temperature", "°C"): [gpu.temperature_max_degc for gpu in gpus],
    }
    words, data, axes = [], list[dict[str, Any]](), {}
    drawn = {key: values for key, values in series.items() if any(value is not None for value in values)}
    for (name, unit), values in series.items():
        known = [value for value in values if value is not None]
        ends = f"{for_people(min(known))} to {for_people(max(known))} {unit}" if known else "unknown"
        words.append(f"{name} {ends}")
    for number, ((name, unit), values) in enumerate(drawn.items()):
        axis = "" if number == 0 else str(number + 1)
        bottom = 1.0 - (number + 1) / len(drawn)
        axes[f"yaxis{axis}"] = {
            "rangemode": "tozero", "domain": [bottom + 0.04, bottom + 1.0 / len(drawn) - 0.04],
            "title": {"text": unit}, "nticks": 4,
        }  # fmt: skip
        symbol, colour = (("circle", LINE), ("square", SECOND), ("diamond", BAD))[number]
        marker, ranks = {"color": colour, "size": 7, "symbol": symbol}, [gpu.rank for gpu in gpus]
        data.append(line(ranks, values, mode="markers", name=f"{name}, {unit}", marker=marker, yaxis=f"y{axis}"))
    slowed = [gpu.rank for gpu in gpus if gpu.throttled]
    words.append(f"slowed down by heat or power brake: rank {listed(slowed)}" if slowed else "none was slowed down")
    return Figure(
        title="GPUs in the judged steps: power, SM clock, temperature",
        caption=f"{counted(len(gpus), 'GPU')}: {'; '.join(words)}.",
        data=data,
        layout={"xaxis": {"title": {"text": "rank"}, "anchor": data[-1]["yaxis"] if data else "y"}, **axes},
        height=320,
    )


def _logs(folder: Path) -> list[Path]:
    """The step logs of a run, by rank."""
    return sorted((folder / layout.STEPS).glob("*.jsonl"))


def _own_times(path: Path) -> dict[int, float]:
    """The seconds of each step that a rank did not wait for others; a line that cannot be read is left out."""
    own = {}
    with path.open("rb") as file:
        for line_of_log in file:
            if b'"event":"step"' not in line_of_log:
                continue
            try:
                event: Mapping[str, Any] = json.loads(line_of_log)
                phases = (event.get("spent") or {}).get("phases") or {}
                # On a GPU the host's wait is for its own GPU as well, and nothing can be taken off.
                wait = 0.0 if "device" in phases else float(phases.get("sync", 0.0))
                own[int(event["step"])] = max(float(event["seconds"]) - wait, 0.0)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
    return own


def _most_different(values: Mapping[str, float]) -> list[str]:
    """The names to draw, in their order: all, or those furthest from the median."""
    if len(values) <= _MOST_RANKS:
        return [*values]
    middle = stats.median(values.values())
    kept = {*sorted(values, key=lambda name: -abs(values[name] - middle))[:_MOST_RANKS]}
    return [name for name in values if name in kept]


def _left_out(ranks: int, shown: int) -> str:
    return f"; drawn are the {shown} that differ most of {ranks}" if shown < ranks else ""
