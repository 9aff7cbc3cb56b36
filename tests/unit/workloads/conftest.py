"""Tiny trainings, as real rank processes or inside the test process."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.series import StepSeries
from pytest_llmbench.core.schema import merge, validate
from pytest_llmbench.readers.steps.step_log import read_steps
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.steplog import StepLog
from pytest_llmbench.workloads.training import matmul
from tests.conftest import known
from tests.support.warm.asking import Forked
from tests.support.warm.serving import SMALL_CEILING

RANK = "pytest_llmbench.workloads.rank.main"

TINY: Mapping[str, Any] = {
    "name": "tiny", "engine": "torch", "gpus_per_node": 0,
    "model": {"layers": 2, "hidden_size": 32, "attention_heads": 2, "vocab_size": 256, "dropout": 0.0},
    "sequence_length": 32, "global_batch_size": 8, "micro_batch_size": 2, "precision": "fp32",
    "optimizer": {"learning_rate": 1e-2, "warmup_steps": 5}, "steps": 12, "time_limit": "00:05:00",
    "deadlines": {"startup_s": 60},
}  # fmt: skip

MakeRecipe = Callable[..., Recipe]
Launch = Callable[..., list["subprocess.Popen[bytes]"]]
_Process = TypeVar("_Process", "subprocess.Popen[bytes]", Forked)
Fork = Callable[..., list[Forked]]
TrainAlone = Callable[[Recipe], StepSeries]


def losses(series: StepSeries) -> list[float]:
    return [known(step.loss) for step in series.steps]


def norms(series: StepSeries) -> list[float]:
    return [known(step.grad_norm) for step in series.steps]


def close(values: Sequence[float], rel: float = 1e-4) -> object:
    """Equal but for the order in which fp32 numbers were added."""
    return pytest.approx(values, rel=rel)


@pytest.fixture(scope="session")
def make_recipe() -> MakeRecipe:
    """Build the tiny recipe with some of its values replaced."""
    return lambda **changes: validate(Recipe, merge(TINY, changes), "tiny")


@pytest.fixture(scope="session")
def launch() -> Iterator[Launch]:
    """Start the ranks of a run on this machine, as submitit's local executor does; ended with the session."""
    with ExitStack() as started:
        yield _launcher(started, _start_rank)


@pytest.fixture(scope="session")
def fork() -> Iterator[Fork]:
    """The same for ranks that train, without the seconds in which each would import PyTorch.

    A test of each engine has `launch`: what a rank of a new Python lacks, a forked one may have imported already.
    """
    with ExitStack() as started:
        yield _launcher(started, _fork_rank)


def _launcher(
    started: ExitStack, start_rank: Callable[[Path, Mapping[str, str], Path], _Process]
) -> Callable[..., list[_Process]]:
    def start(folder: Path, entry: str, *, ranks: int = 2, **task: object) -> list[_Process]:
        data = {
            "entry": entry, "config": {}, "nodes": 1, "ranks_per_node": ranks, "device": "cpu", **task,
        }  # fmt: skip
        (folder / "task.json").write_text(json.dumps(data))
        places = [{**os.environ, **_place(folder, rank, ranks)} for rank in range(ranks)]
        processes = [start_rank(folder, env, folder / f"output-{rank}") for rank, env in enumerate(places)]
        for process in processes:
            started.enter_context(process)
            started.callback(process.kill)
        return processes

    return start


def _place(folder: Path, rank: int, ranks: int) -> dict[str, str]:
    return {
        "SUBMITIT_EXECUTOR": "local",
        "SUBMITIT_LOCAL_GLOBALID": str(rank),
        "SUBMITIT_LOCAL_LOCALID": str(rank),
        "SUBMITIT_LOCAL_NTASKS": str(ranks),
        "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
        "PYTHONPATH": str(folder),  # tests put entry functions of their own there
        SMALL_CEILING: "1",
    }


def _fork_rank(folder: Path, env: Mapping[str, str], output: Path) -> Forked:
    with output.open("wb") as file:
        return Forked([RANK, str(folder)], folder, env, file, imported="torch")


def _start_rank(folder: Path, env: Mapping[str, str], output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return subprocess.Popen([sys.executable, "-m", RANK, str(folder)], env=env, stdout=file, stderr=file)


@pytest.fixture
def train_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrainAlone]:
    """Train with a single rank in this process and read back what it logged."""
    import torch.distributed as dist  # noqa: PLC0415 - PyTorch takes seconds to import

    from pytest_llmbench.engines.torch.ranks.run import train  # noqa: PLC0415

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(matmul, "measure", lambda *_: 1e9)
    runs = 0

    def run(recipe: Recipe) -> StepSeries:
        nonlocal runs
        runs += 1
        folder = tmp_path / str(runs)
        folder.mkdir()
        context = alone(folder, recipe.model_dump(mode="json"))
        with StepLog(context) as log:
            train(context, log)
        return read_steps(folder)

    yield run
    if dist.is_initialized():  # a training that raised leaves its group behind: its process would have ended
        dist.destroy_process_group()


def alone(folder: Path, config: Mapping[str, Any]) -> RankContext:
    return RankContext(
        rank=0, world_size=1, local_rank=0, ranks_per_node=1, nodes=1, folder=folder, config=config, device="cpu",
    )  # fmt: skip


@pytest.fixture
def context(tmp_path: Path) -> RankContext:
    return alone(tmp_path, {})
