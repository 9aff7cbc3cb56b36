"""Figures as plain data: what plotly.js draws, and a sentence that says the same numbers.

Texts in a figure are read by plotly.js as HTML of its own, so foreign ones are escaped in addition. Colours are names
that the page's script replaces by those of the light or the dark page.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_llmbench.core.text import harmless
from pytest_llmbench.reporting.html.thinning import rounded

# Named colours of the page, see `report.css`.
LINE, SECOND, BAD = "@line", "@second", "@bad"
_LONGEST = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One figure.

    Attributes:
        title: its subject in a few words.
        told: the numbers in words, for those who do not see it.
        data: the traces of plotly.js.
        layout: its layout, but for what all figures share.
        height: in pixels.
        wide: whether it takes the whole width of the page.
    """

    title: str
    told: str
    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any] = field(default_factory=dict)
    height: int = 230
    wide: bool = False

    @property
    def json(self) -> dict[str, Any]:
        """The input of the page's script."""
        return {"data": list(self.data), "layout": dict(self.layout)}


def label(text: str) -> str:
    """A foreign text as a figure may show it."""
    plain = harmless(text)
    return html.escape(plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}…", quote=False)


def line(x: Iterable[Any], y: Iterable[Any], **changes: Any) -> dict[str, Any]:
    """A curve."""
    return {"type": "scatter", "mode": "lines", "x": list(x), "y": list(y), **changes}


def level(y: float, words: str, colour: str = BAD, *, dash: str = "dash", below: bool = False) -> dict[str, Any]:
    """A horizontal line across the figure, with words above or below it; the page's script completes it."""
    told = {"text": label(words)} if words else {}
    return {
        "is": "level",
        "at": rounded(y, 6),
        "color": colour,
        "dash": dash,
        **told,
        **({"below": 1} if below else {}),
    }


def band(y0: float, y1: float) -> dict[str, Any]:
    """A range of values across the figure."""
    return {"is": "band", "y0": rounded(y0, 6), "y1": rounded(y1, 6)}


def stretch(x0: float, x1: float, words: str, corner: str = "top left") -> dict[str, Any]:
    """A range of steps from the bottom to the top of the figure, with words."""
    return {"is": "stretch", "x0": x0, "x1": x1, "label": {"text": label(words), "textposition": corner}}


def heat_map(
    x: Sequence[Any], y: Sequence[str], z: Sequence[Sequence[float | None]], unit: str, *, reverse: bool = False
) -> dict[str, Any]:
    """Values by two names; a missing one is a gap, and never a 0."""
    return {
        "type": "heatmap", "x": list(x), "y": [label(each) for each in y], "z": [list(row) for row in z],
        "colorscale": "@reversed" if reverse else "@scale", "colorbar": {"ticksuffix": f" {unit}"},
        "hovertemplate": f"%{{y}}, %{{x}}: %{{z}} {unit}<extra></extra>",
    }  # fmt: skip


def sentence(parts: Iterable[str]) -> str:
    """Parts of a text alternative as one sentence; empty ones are left out."""
    text = "; ".join(part for part in parts if part)
    return f"{text[:1].upper()}{text[1:]}."
