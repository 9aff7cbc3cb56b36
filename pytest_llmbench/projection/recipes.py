"""The layout of a recipe on this number of nodes."""

from __future__ import annotations

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.projection.layout import Layout


def layout_of(recipe: Recipe, topology: Topology, chunks: int | None = None, pipeline: int | None = None) -> Layout:
    """The recipe's layout on this number of nodes, with another pipeline if asked for.

    Its micro batches per copy stay what the recipe says, or follow from its global batch.

    Raises:
        ConfigError: it does not divide, or shards what is not modelled.
    """
    way = recipe.parallelism
    if way.sharding in {"gradients", "full"}:
        raise ConfigError(
            f"recipe {recipe.name}: sharding {way.sharding} is not modelled: each micro batch would gather or reduce;"
            " legal: none, optimizer"
        )
    stages = pipeline or way.pipeline
    copies, left = divmod(topology.gpus, way.tensor * stages)
    if left or not copies:
        raise ConfigError(
            f"{topology.gpus} GPUs do not divide into copies of the model: one takes {way.tensor * stages}"
            f" (tensor {way.tensor} × pipeline {stages})"
        )
    micro_batches = recipe.gradient_accumulation_steps
    if micro_batches is None:
        micro_batches, left = divmod(recipe.samples_per_step, copies * recipe.micro_batch_size)
        if left or not micro_batches:
            raise ConfigError(
                f"a global batch of {recipe.samples_per_step} does not divide into {copies} copies with micro batches"
                f" of {recipe.micro_batch_size}"
            )
    return Layout(
        model=recipe.model,
        sequence_length=recipe.sequence_length,
        micro_batch=recipe.micro_batch_size,
        micro_batches=micro_batches,
        tensor=way.tensor,
        pipeline=stages,
        chunks=chunks or (way.virtual_pipeline if stages == way.pipeline else 1),
        data=copies,
        gpus_per_node=topology.gpus_per_node,
        recomputation=way.activation_checkpointing,
        precision=recipe.precision,
        sharded=way.sharding == "optimizer",
        sequence_parallel=way.sequence,
    )
