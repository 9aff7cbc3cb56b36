"""Slurm with a node for each GPU, beside the one with eight emulated nodes: the GPUs are device files without a GPU."""

import fcntl
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.conftest import OwnSlurm, own_slurm

GPUS = 3
# Away from the ports of the other Slurm (17000 to 18999).
PORT = 23000
SHOW = 'echo "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"'


@pytest.fixture(scope="module")
def gpu_slurm(slurm_is_up: None) -> Iterator[OwnSlurm]:
    """Slurm with a node for each of three GPUs and one with all of them, without accounting.

    Its ports are for one at a time: another worker of xdist waits until this one is down.
    """
    with Path(tempfile.gettempdir(), "llmbench-slurm-gpus.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with own_slurm("gpus", PORT, NODES="gpus", GPUS=str(GPUS)) as slurm:
            yield slurm


def test_a_rank_has_the_gpus_of_its_node_by_the_numbers_that_cuda_knows(gpu_slurm: OwnSlurm) -> None:
    """Slurm numbers the GPU of every node 0; the node of partition `whole` has all by the machine's own numbers."""
    seen = gpu_slurm.run("srun", f"--nodes={GPUS}", "--gpus-per-node=1", "bash", "-c", SHOW)
    assert seen == ["n1 0", "n2 1", "n3 2"]
    seen = gpu_slurm.run("srun", "--partition=whole", "--nodes=1", f"--gpus-per-node={GPUS}", "bash", "-c", SHOW)
    assert seen == ["g1 0,1,2"]


@pytest.mark.parametrize("gpus", [["--gpus-per-node=1"], []], ids=["gpus_of_its_own", "gpus_of_its_job"])
def test_a_step_inside_a_job_sees_the_same_gpu(gpu_slurm: OwnSlurm, gpus: list[str]) -> None:
    inner = ["srun", "--overlap", "--mem=0", "--nodes=1", "--ntasks=1", *gpus, "bash", "-c", f"'{SHOW}'"]
    outer = ["srun", "--nodes=1", "--nodelist=n3", "--gpus-per-node=1", "bash", "-c", f"{SHOW}; {' '.join(inner)}"]
    assert gpu_slurm.run(*outer) == ["n3 2", "n3 2"]


@pytest.mark.parametrize("partition", ["split", "whole"])
def test_multicast_is_off_in_every_job(gpu_slurm: OwnSlurm, partition: str) -> None:
    names = ("NCCL_NVLS_ENABLE", "NVSHMEM_DISABLE_NVLS", "TORCH_SYMM_MEM_DISABLE_MULTICAST")
    asked = f"--export=ALL,{','.join(f'{name}=2' for name in names)}"
    seen = gpu_slurm.run("srun", f"--partition={partition}", "--nodes=1", asked, "printenv", *names)
    assert seen == ["0", "1", "1"]


def test_a_node_cannot_give_more_gpus_than_it_has(gpu_slurm: OwnSlurm) -> None:
    asked = ["srun", "--nodes=1", "--gpus-per-node=2", "true"]
    done = subprocess.run(asked, env=gpu_slurm.env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    assert "Requested node configuration is not available" in done.stderr
