"""The arithmetic of figures, which the template `figures.html.j2` draws: axes and paths."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_llmbench.reporting.html.figures import CurveLine, Figure, HeatMap, LevelLine

_DIGITS = 5
_MOST_TICKS, _MOST_NAMES = 5, 26
_LONGEST_ROW = 60  # characters of all names below a figure; more of them are turned
# From low to high values, readable on light and dark pages.
_COLOURS = ("#21528a", "#4b7eb4", "#74a9dd", "#a9c6e2", "#dee2e6", "#e7c3a1", "#f0a35c", "#cc6b35", "#a8320e")


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """The ends of a figure's axes, in the units of its numbers, with their names."""

    left: float
    right: float
    bottom: float
    top: float
    levels: Sequence[LevelLine] = ()  # those between bottom and top
    values: tuple[float, float] = (0.0, 1.0)  # the lowest and the highest of a heat map
    rows: Sequence[tuple[float, str]]  # names on the vertical axis, by place
    columns: Sequence[tuple[float, str]]  # those on the horizontal axis

    @property
    def turned(self) -> str:
        """Class of names that are too long to stand side by side."""
        longest = max((len(name) for _, name in self.columns), default=0)
        return " turned" if longest * len(self.columns) > _LONGEST_ROW else ""


def frame_of(figure: Figure) -> Frame | None:
    """The frame of a figure; None of curves without a finite value."""
    if (heat := figure.heat) is not None:
        step, rows = -(-len(heat.x) // _MOST_NAMES), len(heat.y)
        values = [value for row in heat.z for value in row if value is not None and math.isfinite(value)]
        return Frame(
            left=0.0, right=len(heat.x), bottom=0.0, top=rows,
            values=(min(values, default=0.0), max(values, default=1.0)),
            rows=[(rows - at - 0.5, name) for at, name in enumerate(heat.y)],
            columns=[(at + 0.5, name) for at, name in enumerate(heat.x) if not at % step],
        )  # fmt: skip
    values = [value for curve in figure.curves for value in curve.y if value is not None and math.isfinite(value)]
    places = [place for curve in figure.curves for place in curve.x]
    if not values:
        return None
    margin = 0.02 * (max(places) - min(places)) or 0.5
    left, right = figure.ends or (min(places) - margin, max(places) + margin)
    low, high = min(values), max(values)
    bottom = low - 0.08 * (high - low or abs(low) or 1.0) if figure.bottom is None else min(figure.bottom, low)
    top = high + 0.08 * (high - bottom or 1.0) if figure.top is None else figure.top
    whole = {at: f"{at:g}" for at in _round_numbers(left, right) if at.is_integer()}
    names: Mapping[float, str] = whole if figure.ticks is None else figure.ticks
    return Frame(
        left=left, right=right, bottom=bottom, top=top,
        levels=[level for level in figure.levels if bottom <= level.value <= top],
        rows=[(tick, f"{tick:,.6g}") for tick in _round_numbers(bottom, top)], columns=[*names.items()],
    )  # fmt: skip


def path_of(curve: CurveLine) -> str:
    """The commands of a curve's path; dots are lines of no length with round ends."""
    commands, command = [], "M"
    for x, y in zip(curve.x, curve.y, strict=True):
        if y is None or not math.isfinite(y):
            command = "M"
            continue
        commands.append(f"{command}{number(x)} {number(y)}{'h0' if curve.dots else ''}")
        command = "M" if curve.dots else "L"
    return "".join(commands)


def _round_numbers(low: float, high: float) -> Iterator[float]:
    """Yield at most six round numbers between two ends."""
    rough = (high - low) / _MOST_TICKS
    if not 0.0 < rough < math.inf:
        return
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if power * factor >= rough * 0.999)
    for at in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1):
        yield float(f"{at * step:.10g}")


def shades_of(heat: HeatMap, low: float, high: float) -> dict[str, str]:
    """The commands of a path for each colour of a heat map of values between two ends, by colour."""
    cells: dict[str, list[str]] = defaultdict(list)
    for y, row in enumerate(reversed(heat.z)):
        for x, value in enumerate(row):
            if value is not None and math.isfinite(value):
                share = (value - low) / (high - low) if high > low else 0.0
                colour = _COLOURS[round((1.0 - share if heat.low_is_bad else share) * (len(_COLOURS) - 1))]
                cells[colour].append(f"M{x} {y}h1v1h-1z")
    return {colour: "".join(commands) for colour, commands in cells.items()}


def data_of(heat: HeatMap) -> dict[str, object]:
    """The names and numbers of a heat map for a script of a page; a number that is not finite is missing."""
    z = [[None if value is None or not math.isfinite(value) else number(value) for value in row] for row in heat.z]
    return {"x": heat.x, "y": heat.y, "z": z}


def number(value: float) -> str:
    """A number with five digits, as short as they allow."""
    short = float(f"{value:.{_DIGITS}g}") if not float(value).is_integer() else value
    return f"{int(short)}" if float(short).is_integer() else f"{short}"


def percent(part: float, whole: float) -> str:
    """A part of a length for CSS, between none and all of it."""
    return f"{min(100.0, max(0.0, 100.0 * part / whole)):.4g}%"
