"""Entry point of every rank of engine deepspeed."""

import os
import warnings

import torch

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.schema import validate
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.rendezvous import limit_threads, process_group
from pytest_llmbench.workloads.rank.steplog import StepLog


def train(context: RankContext, log: StepLog) -> None:
    """Train the recipe that is `context.config` with DeepSpeed and log every step.

    Raises ConfigError if the recipe or its data are invalid, and RunError if the ranks failed to find each other, or
    one lacks a GPU.
    """
    recipe = validate(Recipe, context.config, "recipe")
    with process_group(context, recipe.deadlines.meeting_s) as device:
        limit_threads(device)
        join(device)
        from pytest_llmbench.engines.deepspeed.ranks.zero import run  # noqa: PLC0415 - it imports DeepSpeed: after `join`

        run(recipe, context, device, log)


def join(device: torch.device) -> None:
    """Import DeepSpeed with the existing process group, and without the kernels that it would compile."""
    # DeepSpeed reads both once: the first when it is imported, the second with every model.
    os.environ["DS_ACCELERATOR"] = device.type
    os.environ["LOCAL_RANK"] = str(device.index or 0)
    # DeepSpeed calls the older names of collectives that PyTorch has renamed, and warns at each call.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+_tensor` is deprecated", FutureWarning)
    import deepspeed  # noqa: PLC0415 - not before DS_ACCELERATOR is set

    # It would compile its own all-reduce between the CPU ranks of a node; gloo has one.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    backend = torch.distributed.get_backend()
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)
