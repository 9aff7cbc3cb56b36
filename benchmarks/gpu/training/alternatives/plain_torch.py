"""What a good engineer writes in an afternoon: the same model, compiled whole, DDP around it, fused AdamW.

`options` of a recipe are those of `torch.compile`, such as `mode: max-autotune-no-cudagraphs`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.gpu.training.alternatives.shared import Batch, batches, group, learning_rate, start
from benchmarks.gpu.training.alternatives.weights import fill_vector, matrix
from pytest_llmbench.core.recipe.recipes import ModelShape, Recipe
from pytest_llmbench.core.schema import validate
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.steplog import StepLog


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer of width 4 h with ReLU, each after a norm."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        h = shape.hidden_size
        self.heads = shape.attention_heads
        self.attention_norm = nn.LayerNorm(h)
        self.qkv = nn.Linear(h, 3 * h)
        self.attention_out = nn.Linear(h, h)
        self.mlp_norm = nn.LayerNorm(h)
        self.mlp_in = nn.Linear(h, 4 * h)
        self.mlp_out = nn.Linear(4 * h, h)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [batch, sequence, h] to the same shape."""
        b, s, h = x.shape
        parts = self.qkv(self.attention_norm(x)).split(h, dim=2)
        q, k, v = (part.view(b, s, self.heads, h // self.heads).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(b, s, h))
        out: torch.Tensor = x + self.mlp_out(functional.relu(self.mlp_in(self.mlp_norm(x))))
        return out


class Model(nn.Module):
    """A decoder with learned positions and a tied output embedding, that returns its loss."""

    def __init__(self, shape: ModelShape, sequence_length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.positions = nn.Embedding(sequence_length, shape.hidden_size)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.hidden_size)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy, nat per token, of two of [batch, sequence]."""
        x = self.tokens(inputs) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train(context: RankContext, log: StepLog) -> None:
    """Train the recipe that is `context.config`, and log every step."""
    recipe = validate(Recipe, context.config, "recipe")
    with group(context, recipe) as device:
        torch.set_float32_matmul_precision("high")
        model = _model(recipe, device)
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True) if context.world_size > 1 else model
        _KEPT.append(wrapped)
        forward = torch.compile(wrapped, **recipe.options) if recipe.compile and device.type == "cuda" else wrapped
        settings = recipe.optimizer
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        data = batches(recipe, context.rank, context.world_size, device)
        clock = start(recipe, log, device, recipe.samples_per_step // context.world_size)
        for step, micro_batches in enumerate(data, start=1):
            log.phase(step, "forward")
            losses = _gradients(recipe, wrapped, forward, micro_batches)
            norm = nn.utils.clip_grad_norm_(model.parameters(), settings.clip_grad_norm)
            for param_group in optimizer.param_groups:
                param_group["lr"] = learning_rate(recipe, step)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            clock.step(torch.stack(losses).mean(), norm)
        clock.finish()


# Freed at the end of the process: DDP may hang when it is freed while gloo's thread still works.
_KEPT: list[nn.Module] = []


def _model(recipe: Recipe, device: torch.device) -> Model:
    with device:
        model = Model(recipe.model, recipe.sequence_length)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            fill_vector(name, parameter)
        else:
            parameter.data.copy_(matrix(name, parameter.shape, recipe.model.layers, device))
    return model


def _gradients(
    recipe: Recipe, wrapped: nn.Module, forward: Callable[..., torch.Tensor], micro_batches: list[Batch]
) -> list[torch.Tensor]:
    """Accumulate the gradients of one step; returns the losses of its micro batches."""
    losses = []
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        if isinstance(wrapped, DistributedDataParallel):
            wrapped.require_backward_grad_sync = number == len(micro_batches)
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=recipe.precision == "bf16"):
            loss = forward(inputs, targets)
        (loss / len(micro_batches)).backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
    return losses
