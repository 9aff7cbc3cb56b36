"""OPT of transformers in the shape of a recipe."""

import zlib
from typing import Any

import torch
from torch import nn
from transformers import OPTConfig, OPTForCausalLM

from pytest_llmbench.engines.deepspeed.ranks.zero import Setup, whole
from pytest_llmbench.workloads.training.tokens import stable_seed

_INIT_STD = 0.02  # OPTConfig's own


def build(setup: Setup) -> nn.Module:
    """Build an initialised `OPTForCausalLM`, in the recipe's precision, sharded or whole."""
    recipe = setup.recipe
    shape = recipe.model
    config = OPTConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.attention_heads,
        ffn_dim=4 * shape.hidden_size,
        max_position_embeddings=recipe.sequence_length,
        dropout=shape.dropout,
        attention_dropout=shape.dropout,
        use_cache=False,
        # Sequences are full, so special tokens are unused.
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    with setup.construction():
        model: Any = OPTForCausalLM(config)
    if recipe.parallelism.activation_checkpointing == "full":
        # Without reentry is transformers' default from 5 on, where this has a new name; before, it has to be given.
        if hasattr(model, "activation_checkpointing_enable"):
            model.activation_checkpointing_enable()
        else:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if recipe.compile and setup.device.type == "cuda":
        for layer in model.get_submodule("model.decoder.layers").children():
            layer.compile(dynamic=False)
    initialise(model, setup.seed)
    return model  # type: ignore[no-any-return]


@torch.no_grad()
def initialise(model: nn.Module, seed: int) -> None:
    """Fill all parameters in place, whole or sharded, with values that depend on their name and the seed alone.

    Matrices get N(0, 0.02²), as transformers gives them, biases 0 and norms 1. Each rank draws every matrix whole, one
    at a time.
    """
    for name, parameter in model.named_parameters():
        with whole(parameter):
            if parameter.dim() == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            generator = torch.Generator(parameter.device).manual_seed(stable_seed(seed, zlib.crc32(name.encode())))
            drawn = torch.empty(parameter.shape, dtype=torch.float32, device=parameter.device)
            parameter.copy_(drawn.normal_(0.0, _INIT_STD, generator=generator))
