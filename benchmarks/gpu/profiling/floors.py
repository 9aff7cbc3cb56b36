"""The least time that each part of a step can take: its FLOPs, or its bytes, at the rates that were measured."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.gpu.profiling.kernels import Part
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.judging.flops import parameters

RULES: Mapping[Part, str] = {
    "matrix products": "72 L h² FLOPs per token",
    "attention": "6 L s h FLOPs per token (causal)",
    "head and cross entropy": "6 V h FLOPs per token",
    "optimizer": "32 bytes per parameter: AdamW in fp32 reads 4 values and writes 3, the norm reads a gradient",
    "elementwise and norms": "72 L h bytes per token: 36 values of bf16 that norms, residuals and ReLU read and write",
}
_OPTIMIZER_BYTES = 32
_ELEMENTWISE_BYTES = 72


def floors(recipe: Recipe, gpus: int, *, flops_per_s: float, bytes_per_s: float) -> dict[Part, float]:
    """Seconds of one step on one GPU by part, as `RULES` has them.

    Communication has none, because its rate is not measured here.

    Args:
        recipe: told how many ranks there are.
        gpus: how many.
        flops_per_s: measured matrix-product rate of one GPU.
        bytes_per_s: measured rate of one GPU, bytes read and written.
    """
    model, length = recipe.model, recipe.sequence_length
    # With tensor parallelism every rank has its share of each token's work, which comes to the same.
    tokens = recipe.tokens_per_step / gpus
    h, layers = model.hidden_size, model.layers
    states = gpus if recipe.parallelism.sharding != "none" else recipe.parallelism.model_parallel_size
    return {
        "matrix products": 72.0 * layers * h * h * tokens / flops_per_s,
        "attention": 6.0 * layers * length * h * tokens / flops_per_s,
        "head and cross entropy": 6.0 * model.vocab_size * h * tokens / flops_per_s,
        "optimizer": _OPTIMIZER_BYTES * parameters(model, length) / states / bytes_per_s,
        "elementwise and norms": _ELEMENTWISE_BYTES * layers * h * tokens / bytes_per_s,
    }
