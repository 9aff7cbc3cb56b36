"""Entry point of every rank of engine megatron_core."""

import os

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.schema import validate
from pytest_llmbench.engines.megatron_core.options import MegatronCoreOptions
from pytest_llmbench.workloads import cuda_on_cpu
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.rendezvous import limit_threads, process_group
from pytest_llmbench.workloads.rank.steplog import StepLog


def train(context: RankContext, log: StepLog) -> None:
    """Train the recipe that is `context.config` with Megatron-Core and log every step.

    Raises ConfigError if the recipe or its data are invalid, and RunError if the ranks failed to find each other, or
    one lacks a GPU.
    """
    recipe = validate(Recipe, context.config, "recipe")
    options = validate(MegatronCoreOptions, recipe.options, "options")
    _join(context, recipe)
    with process_group(context, recipe.deadlines.meeting_s) as device:
        limit_threads(device)
        from pytest_llmbench.engines.megatron_core.ranks.loop import run  # noqa: PLC0415 - it imports Megatron-Core: after _join

        run(recipe, options, device, log)


def _join(context: RankContext, recipe: Recipe) -> None:
    """Prepare the process before Megatron-Core is imported."""
    if not recipe.compile:
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
    if context.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # otherwise it would put tensors on an existing GPU
        cuda_on_cpu.install()
