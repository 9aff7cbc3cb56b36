"""The command `llmbench` in this process, in an empty folder."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pytest_llmbench.cli.app import app


@pytest.fixture
def llmbench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, list(words), catch_exceptions=True)

    return run
