"""benchmarks/gpu/losses/compare.py: what it says of trainings that do not end; that they agree is `test_same_loss`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.docs.documents import CHECKOUT


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there: these ranks are CPU ranks")
def test_a_training_that_takes_too_long_is_no_agreement(tmp_path: Path) -> None:
    """Each row says that the time was up, in the record too, and the status is 1."""
    record = tmp_path / "losses.json"
    done = subprocess.run(
        [sys.executable, CHECKOUT / "benchmarks/gpu/losses/compare.py", "--smoke", "--timeout=1", "--record", record],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    rows = json.loads(record.read_text())["rows"]
    assert done.returncode == 1, done.stdout + done.stderr
    assert {row["engine"] for row in rows} >= {"torch"}
    assert all(row["failed"].startswith("ended after --timeout 1 s: ") and "within" not in row for row in rows)
    assert done.stdout.splitlines()[-1].startswith(f"0 of {len(rows)} agree with the reference")
