"""Where the recipes and systems that come with the package are."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).parents[1]


def shipped(kind: Literal["recipes", "systems"]) -> Path:
    """The folder of shipped YAML files: inside the wheel, or in `suites/` of a checkout."""
    installed = _PACKAGE / "shipped" / kind
    return installed if installed.is_dir() else _PACKAGE.parent / "suites" / kind
