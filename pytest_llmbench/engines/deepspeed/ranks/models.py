"""OPT of transformers in the shape of a recipe: one that predicts tokens, and one that scores them."""

import math
import zlib
from typing import Any

import torch
from torch import nn
from transformers import OPTConfig, OPTForCausalLM, OPTModel

from pytest_llmbench.core.recipe.recipes import ModelShape
from pytest_llmbench.engines.deepspeed.ranks.lora import add_lora
from pytest_llmbench.engines.deepspeed.ranks.zero import Setup, whole
from pytest_llmbench.workloads.training.tokens import stable_seed

_INIT_STD = 0.02  # OPTConfig's own


class Scorer(nn.Module):
    """OPT's body with one number per token instead of the output layer: a reward model, or a critic."""

    def __init__(self, config: OPTConfig) -> None:
        super().__init__()
        self.body = OPTModel(config)
        self.head = nn.Linear(config.hidden_size, 1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map [batch, sequence] to scores of the same shape, fp32; each has seen its own token and those before."""
        hidden = self.body(tokens).last_hidden_state
        scores: torch.Tensor = self.head(hidden).squeeze(-1).float()
        return scores


def language_model(setup: Setup, *, lora: bool = True) -> nn.Module:
    """Build an initialised `OPTForCausalLM`; with the recipe's LoRA, where it has one, if `lora`."""
    with setup.construction():
        model: nn.Module = OPTForCausalLM(_config(setup, setup.recipe.model))
        if lora and setup.options.lora_dim:
            add_lora(model, setup.options.lora_dim, setup.options.lora_modules)
    _checkpoint(setup, model)
    _compile(setup, model.get_submodule("model.decoder.layers"))
    initialise(model, setup.seed)
    return model


def scorer(setup: Setup, shape: ModelShape, *, head_std: float = 0.0, head_bias: float = 0.0) -> Scorer:
    """Build an initialised `Scorer`; with a head of zeros all its scores are `head_bias`."""
    with setup.construction():
        model = Scorer(_config(setup, shape))
    _checkpoint(setup, model.body)
    _compile(setup, model.body.get_submodule("decoder.layers"))
    initialise(model, setup.seed, head_std=head_std, head_bias=head_bias)
    return model


@torch.no_grad()
def initialise(model: nn.Module, seed: int, *, head_std: float = 0.0, head_bias: float = 0.0) -> None:
    """Fill all parameters in place, whole or sharded, with values that depend on their name and the seed alone.

    Matrices get N(0, 0.02²), as transformers gives them, those of LoRA what leaves the model as it was; biases
    0 and norms 1. Each rank draws every matrix whole, one at a time.
    """
    for name, parameter in model.named_parameters():
        with whole(parameter):
            if parameter.dim() == 1:
                parameter.fill_(head_bias if name == "head.bias" else 0.0 if name.endswith("bias") else 1.0)
                continue
            std = {"head.weight": head_std, "lora_down": 1 / math.sqrt(parameter.shape[1]), "lora_up": 0.0}
            spread = next((value for end, value in std.items() if name.endswith(end)), _INIT_STD)
            generator = torch.Generator(parameter.device).manual_seed(stable_seed(seed, zlib.crc32(name.encode())))
            drawn = torch.empty(parameter.shape, dtype=torch.float32, device=parameter.device)
            parameter.copy_(drawn.normal_(0.0, spread, generator=generator))


def _config(setup: Setup, shape: ModelShape) -> OPTConfig:
    return OPTConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.attention_heads,
        ffn_dim=4 * shape.hidden_size,
        max_position_embeddings=setup.recipe.sequence_length,
        dropout=shape.dropout,
        attention_dropout=shape.dropout,
        use_cache=False,
        # No token is special: sequences are full, and answers have the length that the recipe says.
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )


def _checkpoint(setup: Setup, model: Any) -> None:
    if setup.recipe.parallelism.activation_checkpointing == "full":
        # Without reentry is transformers' default from 5 on, where this has a new name; before, it has to be said.
        if hasattr(model, "activation_checkpointing_enable"):
            model.activation_checkpointing_enable()
        else:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def _compile(setup: Setup, layers: nn.Module) -> None:
    if setup.recipe.compile and setup.device.type == "cuda":
        for layer in layers.children():
            layer.compile(dynamic=False)
