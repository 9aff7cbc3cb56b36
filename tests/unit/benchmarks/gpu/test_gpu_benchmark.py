"""The benchmark of engines, run for real at its smoke shapes on CPU ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.training.records import Record, read_record
from tests.docs.documents import CHECKOUT

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there: these ranks are CPU ranks")
needs_megatron = pytest.mark.skipif(find_spec("megatron") is None, reason="needs Megatron-Core")


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program of benchmarks/gpu to its end."""
    command = [sys.executable, str(CHECKOUT / "benchmarks" / "gpu" / program), *map(str, arguments)]
    # On a loaded machine, threads that wait for one another would spin.
    env = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300, cwd="/")


def engines(folder: Path, *arguments: object) -> tuple[int, Record]:
    """Run the benchmark; returns its exit status and its record."""
    file = folder / "record.json"
    done = run("training/engines.py", "--smoke", "--steps", 7, "--record", file, *arguments)
    assert file.exists(), done.stdout + done.stderr
    return done.returncode, read_record(file)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Record]:
    """Engine torch and plain_torch on one rank each, and a variant that cannot be."""
    return engines(
        tmp_path_factory.mktemp("alone"), "--rows", "opt125m", "--variants", "torch", "plain_torch", "torch:split",
        "--repeats", 1, "--option", "torch:split.parallelism.tensor=2",
    )  # fmt: skip


def test_plain_torch_trains_as_engine_torch_does(alone: tuple[int, Record]) -> None:
    """Both have a rate, a ratio and the same losses."""
    _, record = alone
    ours, other, _ = record.table
    assert (ours.error, other.error) == (None, None)
    assert ours.agrees
    assert ours.ratio is not None
    losses = [launch.losses for launch in record.launches]
    assert len(losses[0]) == 7
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert all(launch.startup_s is not None and launch.startup_s < launch.seconds for launch in record.launches[:2])
    assert record.versions["torch"] == torch.__version__


def test_a_record_is_held_against_a_plain_training(alone: tuple[int, Record], tmp_path: Path) -> None:
    """Of each launch the largest difference, from the record alone; one that learns otherwise shows."""
    _, record = alone
    first, second, *others = record.launches
    worse = second.model_copy(update={"losses": (second.losses[0], 1.01 * second.losses[1], *second.losses[2:])})
    file = tmp_path / "record.json"
    file.write_text(record.model_copy(update={"launches": (first, worse, *others)}).model_dump_json())
    done = run("losses/true_shape.py", file, "--row", "opt125m", "--steps", 2, "--record", tmp_path / "found.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())["launches"]
    assert [launch["variant"] for launch in found] == ["torch", "plain_torch"]
    assert found[0]["loss"] < 2e-5  # a few roundings, in an order that the number of threads decides
    assert found[0]["norm"] < 5e-5
    assert found[1]["loss"] == pytest.approx(0.01, rel=1e-2)


def test_a_row_that_is_not_in_the_record_is_named(alone: tuple[int, Record], tmp_path: Path) -> None:
    """And nothing is trained."""
    file = tmp_path / "record.json"
    file.write_text(alone[1].model_dump_json())
    done = run("losses/true_shape.py", file, "--row", "opt1.3b", "--record", tmp_path / "found.json")
    assert done.returncode == 2
    assert "no launch of opt1.3b on 1 GPUs has 3 steps in these records" in done.stderr


def test_a_variant_that_cannot_run_says_why(alone: tuple[int, Record]) -> None:
    """Its line has the reason, and the program's end is no success."""
    status, record = alone
    assert status == 1
    assert "no tensor parallelism" in (record.table[2].error or "")


@needs_megatron
def test_shared_layers_start_alike(alone: tuple[int, Record], tmp_path: Path) -> None:
    """Shared by two ranks, Megatron-Core's layers train as a whole model; at smoke scale all rows are alike."""
    status, record = engines(
        tmp_path, "--rows", "slice175b", "--gpus", 2, "--variants", "megatron_core", "--repeats", 1
    )
    assert status == 0
    shared, whole = record.launches[0], alone[1].launches[1]
    assert shared.losses == pytest.approx(whole.losses, rel=1e-4)
    assert shared.grad_norms == pytest.approx(whole.grad_norms, rel=1e-3)


def test_a_launch_that_hangs_is_killed_once(tmp_path: Path) -> None:
    """At its deadline a launch ends as an error with its logs kept, and is not started again."""
    archive = tmp_path / "logs.tar.gz"
    status, record = engines(
        tmp_path, "--rows", "opt125m", "--variants", "torch", "--repeats", 2, "--deadline-s", 0.5, "--logs", archive
    )
    (launch,) = record.launches
    assert status == 1
    assert "killed at its deadline" in (launch.error or "")
    assert launch.tokens_per_s is None
    with tarfile.open(archive) as packed:
        assert f"{launch.log}/rank-0.log" in packed.getnames()


def test_a_rank_that_fails_is_quoted(tmp_path: Path) -> None:
    """An error has the rank's own words, here that it has no GPU."""
    status, record = engines(
        tmp_path, "--rows", "opt125m", "--variants", "torch", "--repeats", 1, "--device", "cuda",
        "--option", "torch.micro_batch_size=1",
    )  # fmt: skip
    assert status == 1
    assert "needs GPU 0" in (record.table[0].error or "")


def test_without_time_nothing_starts(tmp_path: Path) -> None:
    """A budget that is spent leaves a record in which every line says so."""
    status, record = engines(tmp_path, "--rows", "opt125m", "--variants", "torch", "plain_torch", "--budget-s", 0)
    assert (status, record.complete, record.launches) == (1, False, ())
    assert {line.error for line in record.table} == {"not started: the time was up"}
