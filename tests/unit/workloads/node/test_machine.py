"""What a rank finds on its machine."""

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from types import SimpleNamespace

import pytest

from pytest_llmbench.core.errors import RunError
from pytest_llmbench.workloads.node import machine
from pytest_llmbench.workloads.rank.context import RankContext


def see_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    cuda = SimpleNamespace(device_count=lambda: count)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


@pytest.mark.parametrize(("visible", "local_rank", "index"), [(8, 5, 5), (1, 5, 0), (1, 0, 0)])
def test_a_rank_takes_its_own_gpu(monkeypatch: pytest.MonkeyPatch, visible: int, local_rank: int, index: int) -> None:
    see_gpus(monkeypatch, visible)
    assert machine.gpu_index(local_rank) == index


@pytest.mark.parametrize(
    ("visible", "local_rank", "given", "advice"),
    [(0, 0, "", "ask Slurm"), (2, 2, "0,1", "ask Slurm"), (0, 0, "0,1", "run nvidia-smi")],
)
def test_too_few_gpus_are_an_error_with_numbers(
    monkeypatch: pytest.MonkeyPatch, visible: int, local_rank: int, given: str, advice: str
) -> None:
    """Slurm gave eight to a rank that saw none, and the message sent the user to Slurm; the cause was the driver."""
    see_gpus(monkeypatch, visible)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    message = rf"needs GPU {local_rank}, but its process sees {visible} of them \(CUDA_VISIBLE_DEVICES='{given}'\)"
    with pytest.raises(RunError, match=f"{message}: .*{advice}"):
        machine.gpu_index(local_rank)


def test_a_cpu_rank_is_named_cpu(context: RankContext) -> None:
    assert machine.device_name(context) == "cpu"


@pytest.mark.parametrize(
    ("environ", "threads"),
    [
        pytest.param({}, 4, id="cores_are_shared"),
        pytest.param({"SLURM_CPUS_PER_TASK": "6"}, 6, id="slurm_gave_a_share"),
        pytest.param({"SLURM_CPUS_PER_TASK": "64"}, 8, id="never_more_than_usable"),
        pytest.param({"SLURM_CPUS_PER_TASK": "6", "SUBMITIT_EXECUTOR": "local"}, 4, id="local_in_a_slurm_job"),
    ],
)
def test_threads_follow_the_cores(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], threads: int) -> None:
    """Of 8 usable cores, 2 ranks get what Slurm gave each of them, and half otherwise."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for name in ("SLURM_CPUS_PER_TASK", "SUBMITIT_EXECUTOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert machine.cpu_threads(2) == threads


def test_a_rank_names_its_software() -> None:
    """What it runs with and what the machine runs, without a framework being imported for it."""
    code = (
        "import json, sys; from pytest_llmbench.workloads.node.machine import versions; found = versions();"
        "frameworks = {'torch', 'megatron', 'deepspeed', 'transformers'};"
        "print(json.dumps([found, [*frameworks & {*sys.modules}]]))"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    found, imported = json.loads(run.stdout)
    assert imported == []
    assert (found["python"], found["kernel"]) == (platform.python_version(), platform.release())
    assert found["torch"].startswith(version("torch"))
    there = {name for name in ("megatron-core", "deepspeed", "transformers") if name in found}
    assert {name: found[name] for name in there} == {name: version(name) for name in there}
    assert there == {name for name in ("megatron-core", "deepspeed", "transformers") if is_installed(name)}


def test_a_rank_of_a_gpu_names_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    nccl, cudnn = SimpleNamespace(version=lambda: (2, 27, 5)), SimpleNamespace(version=lambda: 91002)
    of_cuda = SimpleNamespace(
        version=SimpleNamespace(cuda="12.8"), cuda=SimpleNamespace(nccl=nccl), backends=SimpleNamespace(cudnn=cudnn)
    )
    monkeypatch.setitem(sys.modules, "torch", of_cuda)
    monkeypatch.setattr(machine, "installed", dict)
    found = machine.versions()
    assert (found["nccl"], found["cudnn"]) == ("2.27.5", "9.10.2")


@pytest.mark.parametrize(("number", "name"), [(8902, "8.9.2"), (90100, "9.1.0"), (91900, "9.19.0")])
def test_cudnn_numbers(number: int, name: str) -> None:
    """The number has another meaning from version 9 on."""
    assert machine._cudnn(number) == name


def is_installed(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False
