"""What the programs of benchmarks/gpu say of a machine and of trainings that do not end; the path itself needs GPUs."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.whole_path.evidence import counted, pack, ways_of_nccl
from benchmarks.gpu.whole_path.host import Machine, write_systems
from pytest_llmbench.checks.base import get_check, options_of
from pytest_llmbench.cluster.system import load_system
from tests.docs.documents import CHECKOUT

GPU = Path(__file__).parents[4] / "benchmarks" / "gpu" / "whole_path"


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the script's folder, as the script is."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=GPU, env=env, capture_output=True, text=True, check=False, timeout=60
    )


def test_all_that_is_missing_is_said_at_once(tmp_path: Path) -> None:
    done = python("-S", "walk.py", str(tmp_path / "out"), "--slurm", str(tmp_path / "absent.tar.xz"))
    assert done.returncode == 2
    assert "- Python packages numpy, pydantic, pytest, submitit, torch, typer, yaml" in done.stderr
    assert f"- --slurm: there is no {tmp_path}/absent.tar.xz" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_stage_that_there_is_not_is_refused(tmp_path: Path) -> None:
    done = python("walk.py", str(tmp_path), "--stages", "local,both")
    assert done.returncode == 2
    assert "no stage both; there are up, local, split, one_host, whole" in done.stderr


@pytest.mark.parametrize("name", ["split", "whole"])
def test_the_systems_say_nothing_that_no_check_knows(name: str) -> None:
    """Every check and every option of theirs exists."""
    system = load_system(str(GPU / "systems" / f"{name}.yaml"), [])
    assert system.validation
    for check, settings in system.validation.items():
        known = get_check(check)
        options_of(known, settings, known.options)


def test_what_cannot_be_told_of_a_gpu_as_a_node_is_left_out_with_the_reason() -> None:
    system = load_system(str(GPU / "systems" / "split.yaml"), [])
    skipped = {name for name, settings in system.validation.items() if settings.skip}
    assert skipped == {"dcgm", "gpu_inventory", "gpu_processes", "host_device_bandwidth", "storage"}


def test_nodes_become_one_host_by_one_variable(tmp_path: Path) -> None:
    write_systems(tmp_path / "systems", Machine(gpus=4, rehearsed=True))
    split, one_host = (load_system(str(tmp_path / "systems" / f"{name}.yaml"), []) for name in ("split", "one_host"))
    assert one_host.env == {"NCCL_HOSTID": "one"}
    assert one_host.model_copy(update={"name": "split", "env": {}}) == split


def test_evidence_is_counted_and_packed(tmp_path: Path) -> None:
    """Counts of tests, NCCL's ways, and an archive without pickles and large files."""
    stage = tmp_path / "split"
    (stage / "nccl").mkdir(parents=True)
    (stage / "junit.xml").write_text(
        '<testsuites><testsuite tests="9" failures="1" errors="2" skipped="3"/></testsuites>', encoding="utf-8"
    )
    lines = (
        "n1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0",
        "n1:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] via P2P/CUMEM",
        "n1:1:2 [0] NCCL INFO Channel 02/0 : 0[0] -> 1[0] via P2P/CUMEM",
    )
    (stage / "nccl" / "n1-1.txt").write_text("\n".join(lines), encoding="utf-8")
    (stage / "job.pkl").write_bytes(b"0")
    (stage / "large.log").write_bytes(bytes(2**20 + 1))
    assert counted(stage / "junit.xml") == ["9 tests: 3 passed, 1 failed, 2 errors, 3 skipped"]
    assert counted(stage / "absent.xml") == []
    assert ways_of_nccl(stage / "nccl") == ["NCCL went via P2P/CUMEM (2), NET/Socket (1)"]
    pack(stage, tmp_path / "split.tar.gz")
    with tarfile.open(tmp_path / "split.tar.gz") as archive:
        files = {member.name for member in archive.getmembers() if member.isfile()}
    assert files == {"split/junit.xml", "split/nccl/n1-1.txt"}


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
