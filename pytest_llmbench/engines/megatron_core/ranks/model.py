"""Megatron-Core's GPTModel in the shape of a recipe: the chunks of layers that this rank holds."""

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn import functional

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.engines.megatron_core.options import MegatronCoreOptions, padded_vocabulary
from pytest_llmbench.engines.megatron_core.ranks.loss import Model
from pytest_llmbench.engines.megatron_core.ranks.parts import layer
from pytest_llmbench.engines.megatron_core.ranks.sending import split
from pytest_llmbench.engines.megatron_core.ranks.weights import initialise

DTYPE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_RECOMPUTE: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective"},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}


def transformer_config(recipe: Recipe, device: torch.device) -> TransformerConfig:
    """Say in Megatron-Core's words what the recipe asks for: the model, its layout and its precision."""
    model, layout = recipe.model, recipe.parallelism
    interleaved = layout.virtual_pipeline > 1
    return TransformerConfig(
        num_layers=model.layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.attention_heads,
        activation_func=functional.relu,
        hidden_dropout=model.dropout,
        attention_dropout=model.dropout,
        params_dtype=DTYPE[recipe.precision],
        pipeline_dtype=DTYPE[recipe.precision],
        bf16=recipe.precision == "bf16",
        fp16=recipe.precision == "fp16",
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=layout.virtual_pipeline if interleaved else None,
        sequence_parallel=layout.sequence,
        bias_dropout_fusion=recipe.compile,
        # Sent in one batch, tensors of interleaved stages are mixed up, and nothing tells but the gradients.
        overlap_p2p_comm=interleaved,
        batch_p2p_comm=not interleaved,
        # gloo may still be sending an output when this would free it; on a GPU the stream keeps them in order.
        deallocate_pipeline_outputs=device.type == "cuda",
        **_RECOMPUTE[layout.activation_checkpointing],
    )


def build(
    recipe: Recipe, options: MegatronCoreOptions, config: TransformerConfig, device: torch.device, seed: int
) -> list[Any]:
    """Build this rank's chunks of the model, in order, with values that depend on the seed alone."""
    number = recipe.parallelism.virtual_pipeline
    chunks = [_chunk(recipe, options, config, None if number == 1 else stage, device) for stage in range(number)]
    initialise(chunks, recipe, device, seed)
    return [Float16Module(config, chunk) if recipe.precision != "fp32" else chunk for chunk in chunks]


def _chunk(
    recipe: Recipe, options: MegatronCoreOptions, config: TransformerConfig, stage: int | None, device: torch.device
) -> Any:
    vocabulary, layout = recipe.model.vocab_size, recipe.parallelism
    layers = recipe.model.layers // (layout.pipeline * layout.virtual_pipeline)
    shares = split(
        sequence=layout.sequence,
        accumulate=options.fusion == "pointwise",
        copies=options.collectives == "copies" and device.type == "cuda",
    )
    model = Model(
        counted=vocabulary,
        fused=options.cross_entropy == "fused",
        shares=shares,
        config=config,
        transformer_layer_spec=TransformerBlockSubmodules(
            layer_specs=[_layer(options)] * layers, layer_norm=layer.Norm
        ),
        vocab_size=padded_vocabulary(vocabulary, layout.tensor) if options.pad_vocabulary else vocabulary,
        max_sequence_length=recipe.sequence_length,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=stage is None, vp_stage=stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=stage is None, vp_stage=stage),
        share_embeddings_and_output_weights=True,
        position_embedding_type="rope" if recipe.model.positions == "rope" else "learned_absolute",
        vp_stage=stage,
    )
    layer.share(model, shares)
    return model.to(device)


def _layer(options: MegatronCoreOptions) -> Any:
    spec = get_gpt_layer_local_spec()
    layer.use(spec, options.fusion, sdpa=options.attention != "unfused")
    return spec
