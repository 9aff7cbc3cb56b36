"""A decoder-only transformer in plain PyTorch: OPT (Zhang et al. 2022, arXiv:2205.01068), or one of today."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pytest_llmbench.core.recipe.shape import ModelShape
from pytest_llmbench.engines.torch.ranks.feed_forward import ExpertLayer, activate
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


INIT_STD = 0.006
# Weight of an uneven load of experts in the gradient, of all layers together, as in Qwen3. That counts the load of a
# global batch; here that of a sequence, so that the numbers are those of any number of ranks and micro batches.
_EVEN = 0.001


class RmsNorm(nn.Module):
    """Division by the root of the mean square, in fp32, and a weight (Zhang and Sennrich 2019)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [..., size] to the same shape, in the type of the next product."""
        values = hidden.float()
        scale = torch.rsqrt(values.square().mean(-1, keepdim=True) + _EPS)
        return (values * scale * self.weight.float()).to(product_dtype(hidden))


_EPS = 1e-5  # of every norm, as that of nn.LayerNorm


def _norm(shape: ModelShape, size: int) -> nn.Module:
    return RmsNorm(size) if shape.norm == "rms_norm" else nn.LayerNorm(size)


class Decoder(nn.Module):
    """Token and learned or rotary positions, pre-norm blocks, a final norm, and the output layer, maybe the embedding.

    `judging.flops.parameters` counts its parameters. Embeddings are without dropout, as in the OPT baselines. With
    `activation_checkpointing`, each block drops its activations and recomputes them in the backward pass.
    """

    def __init__(self, shape: ModelShape, sequence_length: int, *, activation_checkpointing: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        learned = shape.positions == "learned"
        self.positions = nn.Embedding(sequence_length, shape.hidden_size) if learned else None
        dense = shape.layers - shape.expert_layers
        self.blocks = nn.ModuleList(
            Block(shape, activation_checkpointing=activation_checkpointing, dense=layer < dense)
            for layer in range(shape.layers)
        )
        self.head = Head(shape)
        self.output = None if shape.tied_embeddings else nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        self._rotary = None if learned else (shape, sequence_length)
        key_values = shape.key_value_heads * shape.head_width
        # Rows of matrices in one, each of which tensor-parallel ranks share.
        self._joined = {
            "qkv": (shape.attention_heads * shape.head_width, key_values, key_values),
            "mlp_in": (shape.feed_forward_width,) * (2 if shape.gated else 1),
        }

    def rotate(self) -> None:
        """Give all blocks the table of rotary positions, on the device of the weights."""
        if self._rotary is not None:
            table = rotation(*self._rotary, self.tokens.weight.device)
            for block in self.blocks:
                block.rotation = table

    def in_order(self, name: str, matrix: torch.Tensor) -> torch.Tensor:
        """Order the rows of a whole matrix so that each tensor-parallel rank has its part of all that are in it."""
        sizes = list(self._joined.get(name.split(".")[-2], ()))
        if self.head.mesh is None or not sizes:
            return matrix
        of_ranks = zip(*(part.chunk(self.head.mesh.size()) for part in torch.split(matrix, sizes)), strict=True)
        return torch.cat([part for parts in of_ranks for part in parts])

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy, nat per token, of int64 `inputs` and `targets`, both [batch, sequence].

        Its gradient is also that of the load of experts, which is to be even.
        """
        hidden = self.tokens(inputs)
        if self.positions is not None:
            hidden = hidden + self.positions(torch.arange(inputs.shape[1], device=inputs.device))
        hidden = hidden.to(product_dtype(hidden))
        if self.head.mesh is not None:  # compiled code fails at the gradient of a tensor that is still under way
            hidden = hidden.clone()
        loads = []
        for block in self.blocks:
            hidden, uneven = block(hidden)
            loads += [] if uneven is None else [uneven]
        matrix = self.tokens.weight if self.output is None else self.output.weight
        loss: torch.Tensor = self.head(hidden, matrix, targets)
        if not loads:
            return loss
        uneven = _EVEN * torch.stack(loads).sum()
        return loss + (uneven - uneven.detach())


def rotation(shape: ModelShape, sequence_length: int, device: torch.device) -> torch.Tensor:
    """Cosines and sines of the angles by which queries and keys are rotated, fp32 [2, sequence, half the width]."""
    rotary = shape.rotary
    width = int(shape.head_width * rotary.fraction) // 2 * 2
    turns = rotary.base ** (-torch.arange(0, width, 2, dtype=torch.float32, device=device) / width)
    if (scaling := rotary.scaling) is not None:  # between `low` and `high` turns, linearly from the one to the other
        number = scaling.positions * turns / (2 * math.pi)
        kept = ((number - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)
        turns = turns * (kept + (1 - kept) / scaling.factor)
    angles = torch.outer(torch.arange(sequence_length, dtype=torch.float32, device=device), turns)
    return torch.stack((angles.cos(), angles.sin()))


def rotate(states: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rotate pairs of the first part of each head's width by its position; `states` are [..., sequence, width]."""
    cosine, sine = table[:, : states.shape[-2]]
    half = cosine.shape[-1]
    one, other = states[..., :half].float(), states[..., half : 2 * half].float()
    turned = (one * cosine - other * sine, other * cosine + one * sine)
    return torch.cat((*(part.to(states.dtype) for part in turned), states[..., 2 * half :]), dim=-1)


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each after a norm; that is of experts unless it is `dense`."""

    def __init__(self, shape: ModelShape, *, activation_checkpointing: bool, dense: bool) -> None:
        super().__init__()
        hidden, width, every = shape.hidden_size, shape.feed_forward_width, shape.biases == "all"
        self.heads, self.key_value_heads, self.head_width = (
            shape.attention_heads, shape.key_value_heads, shape.head_width,
        )  # fmt: skip
        self.activation = shape.activation or "relu"
        self.fuses = True  # a product and its ReLU into one kernel, past the module of the product
        self.rotation: torch.Tensor | None = None
        self.attention_dropout = shape.dropout
        self.activation_checkpointing = activation_checkpointing
        self.attention_norm = _norm(shape, hidden)
        inner = (self.heads + 2 * self.key_value_heads) * self.head_width
        self.qkv = nn.Linear(hidden, inner, bias=shape.biases != "none")
        self.query_norm, self.key_norm = (
            _norm(shape, self.head_width) if shape.query_key_norm else None for _ in range(2)
        )
        self.attention_out = nn.Linear(self.heads * self.head_width, hidden, bias=every)
        self.mlp_norm = _norm(shape, hidden)
        self.experts = None if dense else ExpertLayer(shape)
        if dense:
            self.mlp_in = nn.Linear(hidden, (2 if shape.gated else 1) * width, bias=every)
            self.mlp_out = nn.Linear(width, hidden, bias=every)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Map [batch, sequence, h] to the same shape, and return how uneven the load of experts is."""
        if not self.activation_checkpointing:
            return self._compute(hidden)
        recomputed: tuple[torch.Tensor, torch.Tensor | None] = checkpoint(self._compute, hidden, use_reentrant=False)
        return recomputed

    def _compute(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        hidden = hidden + self.dropout(self._attention(self.attention_norm(hidden)))
        mlp, uneven = self.mlp_norm(hidden), None
        if self.experts is None:
            mlp = self.mlp_out(self._inner(mlp))
        else:
            mlp, uneven = self.experts(mlp)
        return hidden + self.dropout(mlp), uneven

    def _inner(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.fuses and self.activation == "relu" and self.mlp_in.bias is not None:
            return linear_relu(hidden, self.mlp_in.weight, self.mlp_in.bias)
        return activate(self.mlp_in(hidden), self.activation)

    def _attention(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, _ = hidden.shape
        qkv = self.qkv(hidden).view(batch, length, -1, self.head_width).transpose(1, 2)
        query, key, value = qkv.split((self.heads, self.key_value_heads, self.key_value_heads), dim=1)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if self.rotation is not None:
            query, key = rotate(query, self.rotation), rotate(key, self.rotation)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=self.attention_dropout if self.training else 0.0,
            enable_gqa=self.heads != self.key_value_heads,
        )  # fmt: skip
        out: torch.Tensor = self.attention_out(mixed.transpose(1, 2).reshape(batch, length, -1))
        return out


class Head(nn.Module):
    """Final norm, output projection with the token embedding, and cross entropy.

    `step` turns a part of the logits into losses and their gradient; it may be compiled.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.norm = RmsNorm(shape.hidden_size) if shape.norm == "rms_norm" else FinalNorm(shape.hidden_size)
        self.step = losses_and_gradient
        self.mesh: DeviceMesh | None = None  # of ranks that have parts of the sequence and of the vocabulary

    def forward(self, hidden: torch.Tensor, embedding: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean loss of [batch, sequence, h] against [batch, sequence], with an embedding of [V, h]."""
        hidden = self.norm(hidden)
        if self.mesh is not None and isinstance(embedding, DTensor):
            part, embedding = DTensor.from_local(hidden, self.mesh, [Shard(1)]), embedding.to_local()
            hidden = part.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        return linear_cross_entropy(hidden.flatten(0, 1), embedding, targets.flatten(), self.step, self.mesh)


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
        parameters[name].copy_(_like(model.in_order(name, draw()), parameters[name]))
    model.rotate()


def matrices(model: Decoder, seed: int, device: torch.device) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    """Yield the name of each matrix of a model, and a function that draws its initial values, whole and in fp32.

    They are N(0, 0.006²), with a deviation smaller by √(2 L) for those that end a residual branch (OPT paper, section
    2.2). The model may be on the meta device.
    """
    branch_std = INIT_STD / math.sqrt(2 * len(model.blocks))
    for index, (name, parameter) in enumerate(model.named_parameters()):
        if parameter.dim() > 1:
            std = branch_std if name.endswith(_BRANCH_ENDS) else INIT_STD
            yield name, partial(draw, parameter.shape, std, stable_seed(seed, index), device)


_BRANCH_ENDS = ("attention_out.weight", "mlp_out.weight", "experts.weight_out", "shared_out.weight")


def draw(shape: torch.Size, std: float, seed: int, device: torch.device) -> torch.Tensor:
    """Draw a matrix from N(0, std²), whole and in fp32."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.empty(shape, device=device).normal_(0.0, std, generator=generator)


def _like(whole: torch.Tensor, parameter: nn.Parameter) -> torch.Tensor:
    """Shard a tensor that every rank holds whole, like a parameter and without communication."""
    if not isinstance(parameter, DTensor):
        return whole
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
