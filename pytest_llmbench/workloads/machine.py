"""What a rank has at its disposal: its GPU, its CPU cores, the software it runs with."""

from __future__ import annotations

import os
import platform
from importlib.util import find_spec

from pytest_llmbench.core.errors import RunError
from pytest_llmbench.workloads.context import RankContext


def gpu_index(local_rank: int) -> int:
    """The CUDA device of a rank: its local rank, or the only one that its process sees.

    Raises:
        RunError: `no_gpu`, when the process does not see that many.
    """
    import torch  # noqa: PLC0415 - a rank without PyTorch introduces itself too

    visible = torch.cuda.device_count()
    if visible == 1:
        return 0
    if local_rank >= visible:
        raise RunError(
            "no_gpu",
            f"rank {local_rank} of this node needs GPU {local_rank}, but its process sees {visible} of them "
            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r}): ask Slurm for one GPU per "
            "rank, and bind each rank to its own or to none",
        )
    return local_rank


def device_name(context: RankContext) -> str:
    """`cpu`, or the GPU's name as the driver gives it.

    Raises:
        RunError: `no_gpu`, as in `gpu_index`.
    """
    if context.device == "cpu":
        return "cpu"
    import torch  # noqa: PLC0415 - a rank without PyTorch introduces itself too

    return torch.cuda.get_device_name(gpu_index(context.local_rank))


def versions() -> dict[str, str]:
    """Versions by software, of what is installed."""
    found = {"python": platform.python_version()}
    if find_spec("torch") is not None:
        import torch  # noqa: PLC0415 - a rank without PyTorch introduces itself too

        found["torch"] = str(torch.__version__)
        if torch.version.cuda is not None:
            found["cuda"] = torch.version.cuda
            nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
            found["nccl"] = ".".join(map(str, nccl))
    return found


def cpu_threads(neighbours: int) -> int:
    """How many threads a rank may use without crowding its neighbours, the ranks of its machine with it."""
    cpus = len(os.sched_getaffinity(0))
    share = os.environ.get("SLURM_CPUS_PER_TASK")
    # srun gives each rank its share and may bind it to that. A local run inside a Slurm job is one such task.
    if share is not None and os.environ.get("SUBMITIT_EXECUTOR") != "local":
        return min(cpus, int(share))
    return max(1, cpus // neighbours)
