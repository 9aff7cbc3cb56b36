"""Resources of a rank: its GPU, its CPU cores and the software of its machine."""

from __future__ import annotations

import os
import platform
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.core.errors import RunError
from pytest_llmbench.workloads.node.installed import installed
from pytest_llmbench.workloads.rank.context import RankContext

_DRIVER = Path("/sys/module/nvidia/version")
_CPUS = Path("/proc/cpuinfo")

if TYPE_CHECKING:
    import torch


def gpu_index(local_rank: int) -> int:
    """The CUDA device of a rank: its local rank, or the only one that its process sees.

    Raises RunError `no_gpu` if the process sees fewer.
    """
    import torch  # noqa: PLC0415 - a rank without PyTorch introduces itself too

    visible = torch.cuda.device_count()
    if visible == 1:
        return 0
    if local_rank >= visible:
        advice = "give --gpus-per-node as many as there are, or 0 to train on the CPU"
        if "SLURM_JOB_ID" in os.environ:
            advice = "ask Slurm for one GPU per rank, and bind each rank to its own or to none"
        if len(list(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")))) > local_rank:
            advice = "it was given enough: run nvidia-smi on this node, and compare its driver with the CUDA of PyTorch"
        raise RunError(
            "no_gpu",  #: error no_gpu: a rank sees no GPU for itself
            f"rank {local_rank} of this node needs GPU {local_rank}, but its process sees {visible} of them "
            #: variable CUDA_VISIBLE_DEVICES: in a rank: respected
            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r}): {advice}",
        )
    return local_rank


def device_name(context: RankContext) -> str:
    """`cpu`, or the GPU's name as the driver gives it. Raises RunError `no_gpu` as `gpu_index` does."""
    if context.device == "cpu":
        return "cpu"
    import torch  # noqa: PLC0415 - a rank without PyTorch introduces itself too

    return torch.cuda.get_device_name(gpu_index(context.local_rank))


def gpu_identity(context: RankContext) -> str | None:
    """The UUID of the rank's GPU by CUDA; None for a CPU, and if this PyTorch lacks UUIDs."""
    if context.device == "cpu":
        return None
    import torch  # noqa: PLC0415 - a rank without PyTorch introduces itself too

    uuid = getattr(torch.cuda.get_device_properties(gpu_index(context.local_rank)), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"


def versions() -> dict[str, str]:
    """Versions of the installed packages and of this machine's system software, by name."""
    software = {**node_software(), **cpu(), **installed()}
    torch = sys.modules.get("torch")  # a rank on a GPU has imported it by now; others save the seconds of the import
    if torch is not None and torch.version.cuda is not None:
        nccl = torch.cuda.nccl.version()
        software["nccl"] = ".".join(map(str, nccl))
        cudnn = torch.backends.cudnn.version()
        if cudnn is not None:
            software["cudnn"] = _cudnn(cudnn)
    return software


def node_software() -> dict[str, str]:
    """The system software of this machine: kernel, operating system, GPU driver."""
    software = {"kernel": platform.release()}
    with suppress(OSError):
        software["os"] = platform.freedesktop_os_release()["PRETTY_NAME"]
    # The same version as nvidia-smi's, which takes seconds to start without a daemon that keeps the driver loaded.
    with suppress(OSError):
        software["driver"] = _DRIVER.read_text(encoding="utf-8").strip()
    return software


def _cudnn(number: int) -> str:
    """Format cuDNN's version number: 90100 is 9.1.0; 8902, before version 9, is 8.9.2."""
    major, rest = divmod(number, 10000 if number >= 90000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def cpu() -> dict[str, str]:
    """The CPU model of this machine, as `cpu`; empty if the kernel leaves it out, as on ARM."""
    with suppress(OSError):
        for line in _CPUS.read_text(encoding="utf-8").splitlines():
            name, _, model = line.partition(":")
            if name.strip() == "model name" and model.strip():
                return {"cpu": " ".join(model.split())}
    return {}


def peak_memory_bytes(device: torch.device) -> int:
    """Highest memory in use since the start: allocated on the GPU, or resident for a CPU rank."""
    if device.type == "cuda":
        import torch  # noqa: PLC0415 - a rank without PyTorch introduces itself too

        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def cpu_threads(neighbours: int) -> int:
    """Number of threads for a rank that shares its machine with `neighbours` ranks, itself included."""
    cpus = len(os.sched_getaffinity(0))
    share = os.environ.get("SLURM_CPUS_PER_TASK")
    # srun gives each rank its share of cores. In a local run inside a Slurm job, the variable belongs to the whole job.
    if share is not None and os.environ.get("SUBMITIT_EXECUTOR") != "local":
        return min(cpus, int(share))
    return max(1, cpus // neighbours)
