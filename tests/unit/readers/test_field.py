"""Inputs that people have reported or published, each with its right answer and the program that compares them."""

import subprocess
import sys
from pathlib import Path

from tests.support.samples import sample

ROOT = Path(__file__).parents[3]


def test_every_case_from_the_field_is_right() -> None:
    """Readers, checks of GPUs, words of Slurm, and replays; plugins that call tests again have a test of their own."""
    done = subprocess.run(
        [sys.executable, sample("field_2026_11/check.py"), ROOT], capture_output=True, text=True, check=False,
        timeout=300, cwd="/",
    )  # fmt: skip
    *cases, total = done.stdout.splitlines()
    assert [case for case in cases if not case.startswith(("right ", "not run reruns "))] == [], done.stderr
    assert total == "23 of 23 right"
