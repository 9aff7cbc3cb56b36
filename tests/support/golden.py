"""Golden files: what a test expects is a file that changes on purpose only."""

import difflib
import os
from pathlib import Path

import pytest


def assert_golden(path: Path, text: str, test: str) -> None:
    """Fail with the difference where a golden file has another text, and tell how the `test` file accepts the new."""
    #: test variable LLMBENCH_ACCEPT_GOLDEN: golden files are rewritten
    if os.environ.get("LLMBENCH_ACCEPT_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    expected = path.read_text() if path.exists() else ""
    if text != expected:
        lines = difflib.unified_diff(expected.splitlines(True), text.splitlines(True), str(path), "this code")
        pytest.fail(f"{''.join(lines)}\nIf that is meant: LLMBENCH_ACCEPT_GOLDEN=1 pytest {test}", pytrace=False)
