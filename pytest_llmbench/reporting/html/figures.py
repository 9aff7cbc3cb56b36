"""Figures as plain data for plotly.js, each with its numbers in a sentence.

`step_figures.py`, `rank_figures.py` and `check_figures.py` build them with full precision; `Figure.json` rounds. The
page's script fills in what all figures share and replaces named colours by those of the light or the dark page.
plotly.js reads texts as HTML of its own, so foreign ones are escaped in addition.
"""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_llmbench.core.text import harmless

# Named colours of the page, see `report.css`.
LINE, SECOND, BAD = "@line", "@second", "@bad"
_LONGEST = 80
_DIGITS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One figure.

    Attributes:
        title: its subject in a few words.
        caption: its numbers in words.
        data: the traces of plotly.js.
        layout: its layout, without what all figures share.
        height: in pixels.
        wide: it takes the whole width of the page.
    """

    title: str
    caption: str
    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any] = field(default_factory=dict)
    height: int = 230
    wide: bool = False

    @property
    def json(self) -> Any:
        """The input of the page's script, with few digits."""
        return _rounded({"data": self.data, "layout": self.layout})


def _rounded(data: Any) -> Any:
    """Plain data as JSON has it; a number that is not finite becomes null."""
    if isinstance(data, float):
        if not math.isfinite(data):
            return None
        short = float(f"{data:.{_DIGITS}g}")
        return int(short) if short.is_integer() else short
    if isinstance(data, Mapping):
        return {str(key): _rounded(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_rounded(value) for value in data]
    return data


def thinned(values: Sequence[float | None], most: int) -> list[int]:
    """Positions of the values to draw: the lowest and the highest of each stretch, and both ends.

    Args:
        values: in order; one that is None or not finite is left out, unless all are few enough.
        most: the number of points, at least 4.
    """
    count = len(values)
    if count <= most:
        return [*range(count)]
    stretches = max(1, (most - 2) // 2)
    kept = {0, count - 1}
    for number in range(stretches):
        first, last = count * number // stretches, count * (number + 1) // stretches
        finite = [
            (value, at) for at in range(first, last) if (value := values[at]) is not None and math.isfinite(value)
        ]
        if finite:
            kept |= {min(finite)[1], max(finite)[1]}
    return sorted(kept)


def label(text: str) -> str:
    """A foreign text as a figure may show it."""
    plain = harmless(text)
    return html.escape(plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}…", quote=False)


def line(x: Iterable[Any], y: Iterable[Any], **changes: Any) -> dict[str, Any]:
    """A curve."""
    return {"type": "scatter", "mode": "lines", "x": [*x], "y": [*y], **changes}


def level(y: float, words: str, colour: str = BAD, *, dash: str = "dash", below: bool = False) -> dict[str, Any]:
    """A horizontal line across the figure, with words above or below it."""
    text = {"text": label(words)} if words else {}
    return {"is": "level", "at": y, "color": colour, "dash": dash, **text, **({"below": 1} if below else {})}


def band(y0: float, y1: float) -> dict[str, Any]:
    """A range of values across the figure."""
    return {"is": "band", "y0": y0, "y1": y1}


def stretch(x0: float, x1: float, words: str, corner: str = "top left") -> dict[str, Any]:
    """A range of steps from the bottom to the top of the figure, with words."""
    return {"is": "stretch", "x0": x0, "x1": x1, "label": {"text": label(words), "textposition": corner}}


def heat_map(
    x: Sequence[Any], y: Sequence[str], z: Sequence[Sequence[float | None]], unit: str, *, reverse: bool = False
) -> dict[str, Any]:
    """Values by two names; a missing one is a gap, and never a 0."""
    return {
        "type": "heatmap", "x": x, "y": [label(name) for name in y], "z": z,
        "colorscale": "@reversed" if reverse else "@scale", "colorbar": {"ticksuffix": f" {unit}"},
        "hovertemplate": f"%{{y}}, %{{x}}: %{{z}} {unit}<extra></extra>",
    }  # fmt: skip


def sentence(parts: Iterable[str]) -> str:
    """Parts of a caption as one sentence; empty ones are left out."""
    text = "; ".join(part for part in parts if part)
    return f"{text[:1].upper()}{text[1:]}."
