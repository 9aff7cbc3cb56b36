"""What `benchmarks/gpu/prepare.sh` carries to a machine without a network is all that Python 3.12 needs there."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.real.conftest import REPOSITORY

GPU = REPOSITORY / "benchmarks" / "gpu"


def test_only_pytorch_is_missing_where_the_carried_folder_is_installed(tmp_path: Path) -> None:
    python = shutil.which("python3.12")
    if python is None or subprocess.run([python, "--version"], capture_output=True, check=False).returncode:
        pytest.skip("python3.12 is not on PATH")
    subprocess.run([GPU / "prepare.sh", tmp_path / "carried"], check=True)
    subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True)
    pip: list[str | Path] = [tmp_path / "venv" / "bin" / "python", "-m", "pip"]
    wheels = sorted((tmp_path / "carried" / "wheels").glob("*.whl"))
    assert sum(wheel.stat().st_size for wheel in wheels) < 50 * 2**20
    subprocess.run([*pip, "install", "-q", "--no-index", "--no-deps", *wheels], check=True)
    lacking = subprocess.run([*pip, "check"], capture_output=True, text=True, check=False).stdout.splitlines()
    assert [line.partition(" requires ")[2] for line in lacking] == ["torch, which is not installed."] * 2
    visit: list[str | Path] = [GPU / "visit.sh", tmp_path / "carried", tmp_path / "results", "--rehearse", "2"]
    env = {**os.environ, "PYTHON": str(tmp_path / "venv" / "bin" / "python")}
    done = subprocess.run(visit, env=env, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[1:] == [
        "- Python packages torch: benchmarks/gpu/visit.sh installs what prepare.sh made"
    ]
