"""Small files and folders of the kernel and the system, which may not be there."""

from __future__ import annotations

import os
from pathlib import Path


def text_of(path: Path) -> str | None:
    """The text of a file without the space around it; None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def names_in(folder: Path) -> list[str]:
    """Names in a folder; empty if there is no such folder, or if it cannot be read."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names are wanted, not paths
    except OSError:
        return []
