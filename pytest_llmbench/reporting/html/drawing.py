"""Draws figures as markup that needs no script: they are on the page as soon as it is, and on paper.

A curve is an SVG path in the units of its numbers, which the page's script reads back for the table below a figure. The
drawing is stretched over its place. Names and ticks are texts around it, which keep their size.
"""

import base64
import json
import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape

from pytest_llmbench.core.text import harmless
from pytest_llmbench.reporting.html.figures import CurveLine, Figure, HeatMap

_LONGEST = 80
_DIGITS = 5
_MOST_TICKS, _MOST_NAMES = 5, 26
# From low to high values, readable on light and dark pages.
_COLOURS = ((33, 82, 138), (116, 169, 221), (222, 226, 230), (240, 163, 92), (168, 50, 14))


def draw(figure: Figure, identity: str) -> str:
    """The figure as an HTML element; `identity` is unique on the page."""
    inside = "".join(_heat_map(figure.heat, figure) if figure.heat else _curves(figure))
    title, low = _text(figure.title), " bare" if figure.ticks == {} else ""
    return (
        f"<figure{' class=full' if figure.wide else ''}><h3>{title}</h3>{_legend(figure)}"
        f'<div class="plot{low}" role="img" aria-label="{title}" aria-describedby="{identity}" '
        f'style="height:{figure.height}px">{inside}</div>'
        f'<figcaption id="{identity}">{_text(figure.caption, whole=True)}</figcaption></figure>'
    )


def _legend(figure: Figure) -> str:
    names = [f'<span class="{curve.style}">{_text(curve.name)}</span>' for curve in figure.curves]
    many = "".join(names) if len(names) > 1 else ""
    return f'<p class="axis">{_text(figure.y_title)}{many}</p>'


def _curves(figure: Figure) -> Iterator[str]:
    values = [value for curve in figure.curves for value in curve.y if value is not None and math.isfinite(value)]
    places = [place for curve in figure.curves for place in curve.x]
    if not values:
        return
    margin = 0.02 * (max(places) - min(places)) or 0.5
    left, right = figure.ends or (min(places) - margin, max(places) + margin)
    low, high = min(values), max(values)
    bottom = low - 0.08 * (high - low or abs(low) or 1.0) if figure.bottom is None else min(figure.bottom, low)
    top = high + 0.08 * (high - bottom or 1.0) if figure.top is None else figure.top
    width, height = right - left, top - bottom
    levels = [level for level in figure.levels if bottom <= level.value <= top]
    ticks = list(_round_numbers(bottom, top))
    yield (
        f'<svg viewBox="{_number(left)} {_number(-top)} {_number(width)} {_number(height)}" '
        'preserveAspectRatio="none" aria-hidden="true"><g transform="scale(1 -1)">'
    )
    for start, end, _ in figure.stretches:
        yield _box("edge", max(start, left), bottom, min(end, right), top)
    for start, end in figure.bands:
        yield _box("band", left, max(start, bottom), right, min(end, top))
    yield _path("grid", (f"M{_number(left)} {_number(tick)}H{_number(right)}" for tick in ticks))
    for level in levels:
        yield _path(f"level {level.style}", (f"M{_number(left)} {_number(level.value)}H{_number(right)}",))
    for curve in figure.curves:
        names = f' data-n="{escape(json.dumps(curve.texts))}"' if curve.texts else ""
        name = f' data-name="{_text(curve.name)}"{names}'
        yield _path(f"{'dots' if curve.dots else 'curve'} {curve.style}", _moves(curve), name)
    yield "</g></svg>"
    for tick in ticks:
        yield f'<i class="y" style="bottom:{_percent(tick - bottom, height)}">{tick:,.6g}</i>'
    yield from _names(
        {at: f"{at:g}" for at in _whole(left, right)} if figure.ticks is None else figure.ticks, left, width
    )
    for start, end, words in figure.stretches:
        place = f"left:{_percent(max(start, left) - left, width)};width:{_percent(end - start, width)}"
        yield f'<b class="edge" style="{place}">{_text(words)}</b>'
    for level in levels:
        if level.words:
            place = f"bottom:{_percent(level.value - bottom, height)}"
            yield f'<b class="{level.style}" style="{place}">{_text(level.words)}</b>'
    yield f"<em>{_text(figure.x_title)}</em>"


def _moves(curve: CurveLine) -> Iterator[str]:
    """Yield the commands of a path; dots are lines of no length with round ends."""
    command = "M"
    for x, y in zip(curve.x, curve.y, strict=True):
        if y is None or not math.isfinite(y):
            command = "M"
            continue
        yield f"{command}{_number(x)} {_number(y)}{'h0' if curve.dots else ''}"
        command = "M" if curve.dots else "L"


def _heat_map(heat: HeatMap, figure: Figure) -> Iterator[str]:
    values = [value for row in heat.z for value in row if value is not None and math.isfinite(value)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    rows = [[_colour(value, low, high, reverse=heat.low_is_bad) for value in row] for row in heat.z]
    image = base64.b64encode(_png(rows)).decode("ascii")
    yield f'<img alt="" src="data:image/png;base64,{image}">'
    for place, name in enumerate(heat.y):
        yield f'<i class="y" style="bottom:{_percent(len(heat.y) - place - 0.5, len(heat.y))}">{_text(name)}</i>'
    step = -(-len(heat.x) // _MOST_NAMES)
    yield from _names({at + 0.5: name for at, name in enumerate(heat.x) if not at % step}, 0.0, len(heat.x))
    yield f"<em>{_text(figure.x_title)}</em>"
    ends = [f"{value:,.4g} {heat.unit}" for value in (low, high)]
    yield f'<u class="{"bad-low" if heat.low_is_bad else ""}"><s>{ends[0]}</s><s>{ends[1]}</s></u>'
    data = {"x": heat.x, "y": heat.y, "z": [[value and float(_number(value)) for value in row] for row in heat.z]}
    text = json.dumps(data, separators=(",", ":")).replace("<", r"\u003c").replace("--", r"-\u002d")
    yield f'<script type="application/json">{harmless(text)}</script>'


def _names(names: Mapping[float, str], left: float, width: float) -> Iterator[str]:
    longest = max(map(len, names.values()), default=0)
    turned = " turned" if longest * len(names) > 60 else ""
    for at, name in names.items():
        yield f'<i class="x{turned}" style="left:{_percent(at - left, width)}">{_text(name)}</i>'


def _round_numbers(low: float, high: float) -> Iterator[float]:
    """Yield at most six round numbers between two ends."""
    rough = (high - low) / _MOST_TICKS
    if not rough > 0.0:
        return
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if power * factor >= rough * 0.999)
    for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1):
        yield float(f"{number * step:.10g}")


def _whole(low: float, high: float) -> Iterable[float]:
    return (number for number in _round_numbers(low, high) if number.is_integer())


def _box(style: str, left: float, bottom: float, right: float, top: float) -> str:
    size = f'width="{_number(max(0.0, right - left))}" height="{_number(max(0.0, top - bottom))}"'
    return f'<rect class="{style}" x="{_number(left)}" y="{_number(bottom)}" {size}/>'


def _path(style: str, commands: Iterable[str], more: str = "") -> str:
    return f'<path class="{style}"{more} d="{"".join(commands)}"/>'


def _colour(value: float | None, low: float, high: float, *, reverse: bool) -> bytes:
    if value is None or not math.isfinite(value):
        return bytes(4)
    share = (value - low) / (high - low) if high > low else 0.0
    place = (1.0 - share if reverse else share) * (len(_COLOURS) - 1)
    first = min(int(place), len(_COLOURS) - 2)
    pairs = zip(_COLOURS[first], _COLOURS[first + 1], strict=True)
    return bytes([*(round(one + (two - one) * (place - first)) for one, two in pairs), 255])


def _png(rows: Sequence[Sequence[bytes]]) -> bytes:
    """Pixels of four bytes as a PNG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = struct.pack(">2I5B", max(map(len, rows), default=0), len(rows), 8, 6, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + b"".join(row) for row in rows), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def _number(value: float) -> str:
    short = float(f"{value:.{_DIGITS}g}") if not float(value).is_integer() else value
    return f"{int(short)}" if float(short).is_integer() else f"{short}"


def _percent(part: float, whole: float) -> str:
    return f"{min(100.0, max(0.0, 100.0 * part / whole)):.4g}%"


def _text(text: str, *, whole: bool = False) -> str:
    """A foreign text for the page, without control characters; shortened unless it is to stay whole."""
    plain = harmless(text)
    return escape(plain if whole or len(plain) <= _LONGEST else f"{plain[:_LONGEST]}…")
