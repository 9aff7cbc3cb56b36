"""Where shipped files are."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from pytest_llmbench.core import paths


@pytest.mark.parametrize("kind", ["recipes", "systems"])
def test_shipped_files_are_found(kind: Literal["recipes", "systems"]) -> None:
    """However the package was installed, its recipes and systems are there."""
    assert list(paths.shipped(kind).glob("*.yaml"))


def test_a_wheel_comes_before_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the wheel carries is taken; without it, `suites` beside the package is."""
    package = tmp_path / "pytest_llmbench"
    monkeypatch.setattr(paths, "_PACKAGE", package)
    assert paths.shipped("recipes") == tmp_path / "suites/recipes"
    (package / "shipped/recipes").mkdir(parents=True)
    assert paths.shipped("recipes") == package / "shipped/recipes"
