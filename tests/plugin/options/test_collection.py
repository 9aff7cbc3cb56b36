"""Collecting the shipped suites is quick and imports nothing heavy: it happens on login nodes, in editors, in CI."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

CHECKOUT = Path(__file__).parents[3]
WATCHER = """
import sys

def pytest_sessionfinish():
    print("\\nIMPORTED", sorted({"torch", "submitit", "numpy", "megatron", "deepspeed"} & set(sys.modules)))
"""


def test_the_suites_are_collected_without_their_engines(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """All recipes with all references; neither torch nor submitit is imported for it."""
    (tmp_path / "watcher.py").write_text(WATCHER)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "watcher", "--collect-only", "-q", "-s",
         "--cluster", "local", "suites"],
        cwd=CHECKOUT, env={**env, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    seconds = time.monotonic() - began
    record_property("collection_s", f"{seconds:.2f}")
    print(f"the whole process took {seconds:.2f} s")
    assert done.returncode == 0, done.stdout
    assert "IMPORTED []" in done.stdout
    names = re.findall(r"^suites/training/test_training.py::test_reference\[(.+)\]$", done.stdout, re.MULTILINE)
    assert len(names) == len(set(names)) >= 21
    assert {"opt125m-azure_200k", "opt175b-loss_falls"} <= set(names)
