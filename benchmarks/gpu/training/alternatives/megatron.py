"""Megatron-Core as its users write it without Transformer Engine: the local layers, DDP, the distributed optimizer."""

from __future__ import annotations

import os

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.schema import validate
from pytest_llmbench.workloads import cuda_on_cpu
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.steplog import StepLog


def local(context: RankContext, log: StepLog) -> None:
    """Train the recipe that is `context.config` with the local layers as they come, and log every step."""
    _train(context, log, sdpa=False)


def sdpa(context: RankContext, log: StepLog) -> None:
    """Do the same with PyTorch's fused attention in the place of theirs, and nothing else changed."""
    _train(context, log, sdpa=True)


def _train(context: RankContext, log: StepLog, *, sdpa: bool) -> None:
    recipe = validate(Recipe, context.config, "recipe")
    if context.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        cuda_on_cpu.install()  # Megatron-Core copies names out of torch.cuda when it is imported
    from benchmarks.gpu.training.alternatives.megatron_gpt import run  # noqa: PLC0415 - not before that
    from benchmarks.gpu.training.alternatives.shared import group  # noqa: PLC0415

    with group(context, recipe) as device:
        run(recipe, device, log, sdpa=sdpa)
