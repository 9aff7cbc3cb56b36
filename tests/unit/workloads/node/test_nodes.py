"""The nodes of a run: their names, GPUs, and an srun that stays on them. Programs that answer stand for Slurm's."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.workloads.node.nodes import environment_of, gpus_of, hosts_of_this_job
from pytest_llmbench.workloads.node.shared_files import exists_now

HOSTS = ("n1", "n2")
# Variables of the driver as a step of a job of 8 nodes.
STEP = {
    "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-8]", "SLURM_NNODES": "8", "SLURM_STEP_ID": "3",
    "SLURM_STEP_NODELIST": "n1", "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_CPU_BIND": "none",
    "SLURM_MEM_PER_NODE": "5", "SLURM_GPUS_ON_NODE": "4", "SUBMITIT_EXECUTOR": "slurm", "PMIX_RANK": "0",
    "SLURM_JOB_PARTITION": "gpu",
}  # fmt: skip


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str, str], dict[str, str]]:
    """Put a shell script first on PATH under a name, and return the environment."""
    (tmp_path / "path").mkdir()

    def write(name: str, script: str) -> dict[str, str]:
        path = tmp_path / "path" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return {"PATH": f"{path.parent}:{os.environ['PATH']}"}

    return write


def test_outside_of_slurm_it_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert hosts_of_this_job() == (os.uname().nodename,)
    for name, value in {**STEP, "SUBMITIT_EXECUTOR": "local"}.items():
        monkeypatch.setenv(name, value)
    assert hosts_of_this_job() == (os.uname().nodename,)


def test_slurm_names_jobs_nodes(monkeypatch: pytest.MonkeyPatch, program: Callable[[str, str], dict[str, str]]) -> None:
    """A list in Slurm's notation is Slurm's to read; when it does not, that is an error."""
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)
    said = 'test "$*" = "show hostnames n[1-8]" && printf "n1\\nn2\\n"; echo careful >&2'
    monkeypatch.setenv("PATH", program("scontrol", said)["PATH"])
    assert hosts_of_this_job() == HOSTS
    program("scontrol", "exit 1")
    with pytest.raises(ClusterError, match=r"scontrol show hostnames 'n\[1-8\]' ended with status 1"):
        hosts_of_this_job()


def test_a_script_sees_a_job_of_its_own_nodes(tmp_path: Path, program: Callable[[str, str], dict[str, str]]) -> None:
    """Nothing is left of the step that the driver is, and srun stays on the run's nodes."""
    env = environment_of({**STEP, **program("srun", 'echo "$@"')}, HOSTS, 4, tmp_path)
    assert {name: value for name, value in env.items() if name.startswith(("SLURM", "SUBMITIT", "PMI"))} == {
        "SLURM_JOB_ID": "7", "SLURM_JOB_PARTITION": "gpu", "SLURM_JOB_NODELIST": "n1,n2", "SLURM_NODELIST": "n1,n2",
        "SLURM_NNODES": "2", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "8", "SLURM_NPROCS": "8",
        "SLURM_NTASKS_PER_NODE": "4",
    }  # fmt: skip
    done = subprocess.run(
        ["srun", "--nodes=2", "a b"], env={**env, "LLMBENCH_HOSTS": "n1,n2"}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "--overlap --mem=0 --nodelist=n1,n2 --nodes=2 a b\n"


def test_outside_of_slurm_the_environment_stays(tmp_path: Path, program: Callable[[str, str], dict[str, str]]) -> None:
    env = {"HOME": "/root", **program("srun", "exit 1")}
    assert environment_of({**env, "SUBMITIT_EXECUTOR": "local"}, ("here",), 4, tmp_path) == env
    assert not (tmp_path / "bin").exists()


@pytest.mark.parametrize(("said", "hosts", "model", "problem"), [
    ("printf 'NVIDIA H200\\nNVIDIA H200\\n'", ("n1",), "NVIDIA H200", None),
    ("printf 'NVIDIA H200\\n'", ("n1",), "NVIDIA H200", "a node has 1 GPUs (NVIDIA H200); the run needs 2 on each"),
    ("printf 'NVIDIA H200\\nNVIDIA A100\\n'", ("n1",), "NVIDIA A100", "different GPUs: NVIDIA A100, NVIDIA H200"),
    ("echo No devices were found; exit 6", ("n1",), "unknown", "failed: No devices were found"),
    ("true", ("n1",), "unknown", "failed: it printed nothing"),
    ("printf '0: A\\n1: A\\n0: A\\n1: A\\n'; echo srun: careful >&2", HOSTS, "A", None),
    ("printf '0: A\\n0: A\\n0: A\\n1: A\\n'", HOSTS, "A", "a node has 1 GPUs (A)"),
    ("printf '0: A\\n0: A\\n0: A\\n0: A\\n'", HOSTS, "A", "a node has 0 GPUs (A)"),
    ("printf '0: A\\n0: A\\n1: B\\n1: B\\n'", HOSTS, "A", "the nodes have different GPUs: A, B"),
    ("echo 'srun: error: no such node' >&2; exit 1", HOSTS, "unknown", "failed: srun: error: no such node"),
])  # fmt: skip
def test_gpus_are_those_of_every_node(
    program: Callable[[str, str], dict[str, str]], said: str, hosts: tuple[str, ...], model: str, problem: str | None
) -> None:
    """One model, enough on each node; a node with more makes up for none with fewer."""
    env = program("srun" if len(hosts) > 1 else "nvidia-smi", said)
    found, wrong = gpus_of(hosts, 2, env)
    assert found == model
    assert (wrong is None) == (problem is None)
    if wrong is not None:
        assert wrong.kind == "wrong_hardware"
        assert str(problem) in wrong.message


def test_without_a_driver_there_is_no_gpu(tmp_path: Path) -> None:
    found, wrong = gpus_of(("n1",), 1, {"PATH": str(tmp_path)})
    assert found == "unknown"
    assert wrong is not None
    assert "nvidia-smi" in wrong.message


def test_a_written_file_is_there_and_a_missing_folder_holds_none(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert not exists_now(path)
    path.write_text("text")
    assert exists_now(path)
    assert not exists_now(tmp_path / "gone" / "file")
