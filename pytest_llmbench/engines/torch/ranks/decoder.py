"""The decoder-only transformer of the OPT family (Zhang et al. 2022, arXiv:2205.01068), in plain PyTorch."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pytest_llmbench.core.recipe.shape import ModelShape
from pytest_llmbench.engines.torch.ranks.linear_cross_entropy import (
    linear_cross_entropy,
    losses_and_gradient,
    product_dtype,
)
from pytest_llmbench.workloads.training.tokens import stable_seed


def linear_relu(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Compute `relu(hidden @ weight.T + bias)`, [..., h] by [columns, h], in the type of autocast where that is on."""
    dtype = product_dtype(hidden)
    rows = hidden.flatten(0, -2).to(dtype)
    out: torch.Tensor = _product(rows, weight.to(dtype), bias.to(dtype))
    return out.view(*hidden.shape[:-1], -1)


# An operator of its own, because PyTorch's compiler would take the product and the ReLU apart again.
@torch.library.custom_op("llmbench::linear_relu", mutates_args=())
def _product(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch._addmm_activation(bias, rows, weight.t())  # noqa: SLF001 - the one way to a ReLU in a product


@_product.register_fake
def _(rows: torch.Tensor, _: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return rows.new_empty(rows.shape[0], bias.shape[0])


def _save(ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor], output: torch.Tensor) -> None:
    rows, weight, _ = inputs
    ctx.save_for_backward(rows, weight, output)


def _gradients(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, weight, output = ctx.saved_tensors
    before = torch.ops.aten.threshold_backward(grad, output, 0.0)
    return before @ weight, before.t() @ rows, before.sum(0)


_product.register_autograd(_gradients, setup_context=_save)


_INIT_STD = 0.006


class Decoder(nn.Module):
    """Token and learned position embeddings, pre-norm blocks, a final norm, and the tied output embedding.

    With h hidden, V tokens, S positions and L layers it has (V + S) h + L (12 h² + 13 h) + 2 h parameters. Embeddings
    are without dropout, as in the OPT baselines. With `activation_checkpointing`, each block drops its activations and
    recomputes them in the backward pass; with `fp32_residual`, blocks add to a stream of fp32.
    """

    def __init__(
        self, shape: ModelShape, sequence_length: int, *, activation_checkpointing: bool, fp32_residual: bool = False
    ) -> None:
        super().__init__()
        self.fp32_residual = fp32_residual
        self.tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.positions = nn.Embedding(sequence_length, shape.hidden_size)
        self.blocks = nn.ModuleList(
            Block(shape, activation_checkpointing=activation_checkpointing) for _ in range(shape.layers)
        )
        self.head = Head(shape)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy, nat per token, of int64 `inputs` and `targets`, both [batch, sequence]."""
        hidden = self.tokens(inputs) + self.positions(torch.arange(inputs.shape[1], device=inputs.device))
        if not self.fp32_residual:
            hidden = hidden.to(product_dtype(hidden))
        for block in self.blocks:
            hidden = block(hidden)
        loss: torch.Tensor = self.head(hidden, self.tokens.weight, targets)
        return loss


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer of width 4 h with ReLU, each after a norm."""

    def __init__(self, shape: ModelShape, *, activation_checkpointing: bool) -> None:
        super().__init__()
        hidden = shape.hidden_size
        self.heads = shape.attention_heads
        self.attention_dropout = shape.dropout
        self.activation_checkpointing = activation_checkpointing
        self.attention_norm = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.attention_out = nn.Linear(hidden, hidden)
        self.mlp_norm = nn.LayerNorm(hidden)
        self.mlp_in = nn.Linear(hidden, 4 * hidden)
        self.mlp_out = nn.Linear(4 * hidden, hidden)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [batch, sequence, h] to the same shape."""
        if not self.activation_checkpointing:
            return self._compute(hidden)
        recomputed: torch.Tensor = checkpoint(self._compute, hidden, use_reentrant=False)
        return recomputed

    def _compute(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.dropout(self._attention(self.attention_norm(hidden)))
        inner = linear_relu(self.mlp_norm(hidden), self.mlp_in.weight, self.mlp_in.bias)
        mlp = self.mlp_out(inner)
        out: torch.Tensor = hidden + self.dropout(mlp)
        return out

    def _attention(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = hidden.shape
        qkv = self.qkv(hidden).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=self.attention_dropout if self.training else 0.0
        )
        out: torch.Tensor = self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class Head(nn.Module):
    """Final norm, output projection with the token embedding, and cross entropy.

    `step` turns a part of the logits into losses and their gradient; it may be compiled.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.norm = FinalNorm(shape.hidden_size)
        self.step = losses_and_gradient

    def forward(self, hidden: torch.Tensor, embedding: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean loss of [batch, sequence, h] against [batch, sequence], with an embedding of [V, h]."""
        return linear_cross_entropy(self.norm(hidden).flatten(0, 1), embedding, targets.flatten(), self.step)


class FinalNorm(nn.LayerNorm):
    """A norm with its output in the type of the next product, so that its compiled kernel writes that type alone."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [..., h] to the same shape."""
        return super().forward(hidden).to(product_dtype(hidden))


@torch.no_grad()
def initialise(model: Decoder, seed: int) -> None:
    """Fill all parameters in place, whole or sharded, with values that depend on the seed alone.

    Biases are 0 and norms 1. Each rank draws every matrix whole and keeps its shard, so that it holds at most one whole
    matrix at a time, without communication.
    """
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if parameter.dim() == 1:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
    for name, draw in matrices(model, seed, model.tokens.weight.device):
        parameters[name].copy_(_like(draw(), parameters[name]))


def matrices(model: Decoder, seed: int, device: torch.device) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    """Yield the name of each matrix of a model, and a function that draws its initial values, whole and in fp32.

    They are N(0, 0.006²), with a deviation smaller by √(2 L) for those that end a residual branch (OPT paper, section
    2.2). The model may be on the meta device.
    """
    branch_std = _INIT_STD / math.sqrt(2 * len(model.blocks))
    for index, (name, parameter) in enumerate(model.named_parameters()):
        if parameter.dim() > 1:
            std = branch_std if name.endswith(("attention_out.weight", "mlp_out.weight")) else _INIT_STD
            yield name, partial(_draw, parameter.shape, std, stable_seed(seed, index), device)


def _draw(shape: torch.Size, std: float, seed: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.empty(shape, device=device).normal_(0.0, std, generator=generator)


def _like(whole: torch.Tensor, parameter: nn.Parameter) -> torch.Tensor:
    """Shard a tensor that every rank holds whole, like a parameter and without communication."""
    if not isinstance(parameter, DTensor):
        return whole
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
