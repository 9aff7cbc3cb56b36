"""Where a task stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmbench.workloads.node.standing import run_in


def test_a_task_stands_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And whoever called it stands where it stood, whatever came of the task."""
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    assert run_in(str(there), lambda name: Path.cwd() / name, "x") == there / "x"
    with pytest.raises(ValueError, match="no"):
        run_in(str(there), int, "no number")
    assert Path.cwd() == here
