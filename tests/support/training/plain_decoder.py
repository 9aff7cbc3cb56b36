"""A decoder and its training, written out from the papers in fp32: what the engines' losses are held against.

It shares no line with the engines, and of PyTorch it uses arithmetic and automatic differentiation alone: no layer,
attention, loss, optimizer or clipping of `torch.nn` and `torch.optim`, no autocast, no micro batches, no ranks. What it
is given is data: initial weights and tokens.

The model is that of OPT (Zhang et al. 2022, arXiv:2205.01068), whose weights it takes by these names, a matrix as
[outputs, inputs]; L stands for 0, 1, ...:

    tokens.weight [V, h], positions.weight [S, h], head.norm.{weight,bias} [h]
    blocks.L.attention_norm.{weight,bias}, blocks.L.mlp_norm.{weight,bias} [h]
    blocks.L.qkv.{weight,bias} [3 h, h], [3 h]: queries, keys, values      blocks.L.attention_out.{weight,bias}
    blocks.L.mlp_in.{weight,bias} [4 h, h], [4 h]                          blocks.L.mlp_out.{weight,bias} [h, 4 h], [h]
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch

Weights = dict[str, torch.Tensor]

_NORM_EPS = 1e-5  # of OPT and GPT-3, and of every framework by default


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """The training that is meant, in the words of a recipe."""

    attention_heads: int
    learning_rate: float
    warmup_steps: int
    steps: int
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    clip_grad_norm: float
    # Weights that decay: `all` weights, or `matrices` alone, as Megatron-Core has it.
    decayed: Literal["all", "matrices"] = "all"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mistake:
    """What a training may get wrong; without arguments, nothing."""

    loss_scale: float = 1.0  # factor of the loss that gradients are taken of
    # Share of each step's sequences of which gradients are taken. One half: a rank of two loses its gradient, while the
    # loss is still the mean over both.
    share: float = 1.0
    late: int = 0  # how many steps the learning rate lags behind
    decay_scale: float = 1.0  # factor of the weight decay
    ahead: int = 0  # how many of the tokens after its own a token sees
    score_scale: float = 1.0  # factor of the attention's scores


NONE = Mistake()


class Point(NamedTuple):
    """One step: the mean loss, nat per token, and the L2 norm of its gradient before clipping."""

    loss: float
    norm: float


def train(
    initial: Weights, batches: Iterable[torch.Tensor], rules: Rules, mistake: Mistake = NONE, at_once: int | None = None
) -> Iterator[Point]:
    """Train for a step on each batch, and yield its point.

    Args:
        initial: left as they are.
        batches: token ids, int64 [sequences, S + 1]; each is a target of those before it.
        rules: what is meant.
        mistake: what is done instead.
        at_once: sequences that are in memory together, where all of a batch are too many.
    """
    rules = replace(rules, weight_decay=mistake.decay_scale * rules.weight_decay)
    weights = {name: value.detach().float().clone().requires_grad_() for name, value in initial.items()}
    firsts, seconds = ({name: torch.zeros_like(value) for name, value in weights.items()} for _ in range(2))
    for step, rows in enumerate(batches, start=1):
        loss, gradients = gradients_of(weights, rows, rules.attention_heads, mistake, at_once or len(rows))
        norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients.values()))
        if norm > rules.clip_grad_norm:
            gradients = {name: gradient * (rules.clip_grad_norm / norm) for name, gradient in gradients.items()}
        rate = learning_rate(rules, step - mistake.late)
        for name, weight in weights.items():
            adamw(weight, gradients[name], firsts[name], seconds[name], rules, step=step, rate=rate)
        yield Point(loss, norm)


def gradients_of(
    weights: Weights, rows: torch.Tensor, heads: int, mistake: Mistake, at_once: int
) -> tuple[float, Weights]:
    """The mean loss of a batch, and the gradient of what counts of it."""
    counted = round(mistake.share * len(rows))
    loss, gradients = 0.0, {name: torch.zeros_like(value) for name, value in weights.items()}
    for first in range(0, len(rows), at_once):
        losses = token_losses(weights, rows[first : first + at_once], heads, mistake)
        loss += losses.sum().item() / rows[:, 1:].numel()
        if first < counted:
            share = losses[: counted - first].sum() / rows[:counted, 1:].numel() * mistake.loss_scale
            for name, gradient in zip(weights, torch.autograd.grad(share, list(weights.values())), strict=True):
                gradients[name] += gradient
    return loss, gradients


def token_losses(weights: Mapping[str, torch.Tensor], rows: torch.Tensor, heads: int, mistake: Mistake) -> torch.Tensor:
    """Cross entropy of each token, nat, [sequences, S]: ln Σ exp(logits) less the target's logit."""
    inputs, targets = rows[:, :-1], rows[:, 1:]
    hidden = weights["tokens.weight"][inputs] + weights["positions.weight"][: inputs.shape[1]]
    for layer in range(sum(name.endswith(".qkv.weight") for name in weights)):
        block = f"blocks.{layer}"
        hidden = hidden + attention(
            weights, block, layer_norm(weights, f"{block}.attention_norm", hidden), heads, mistake
        )
        wide = linear(weights, f"{block}.mlp_in", layer_norm(weights, f"{block}.mlp_norm", hidden))
        hidden = hidden + linear(weights, f"{block}.mlp_out", wide.clamp(min=0))
    logits = layer_norm(weights, "head.norm", hidden) @ weights["tokens.weight"].T
    highest = logits.amax(-1, keepdim=True)
    total = (logits - highest).exp().sum(-1).log() + highest.squeeze(-1)
    return total - logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def attention(
    weights: Mapping[str, torch.Tensor], block: str, hidden: torch.Tensor, heads: int, mistake: Mistake
) -> torch.Tensor:
    """softmax(Q Kᵀ / √d + mask) V by heads of width d, and the output layer (Vaswani et al. 2017, section 3.2)."""
    sequences, length, width = hidden.shape
    query, key, value = (
        part.reshape(sequences, length, heads, width // heads).transpose(1, 2)
        for part in torch.split(linear(weights, f"{block}.qkv", hidden), width, dim=-1)
    )
    scores = query @ key.transpose(-1, -2) / math.sqrt(width // heads) * mistake.score_scale
    place = torch.arange(length)
    hidden_from = place[None, :] > place[:, None] + mistake.ahead
    scores = scores.masked_fill(hidden_from, -math.inf)
    shares = (scores - scores.amax(-1, keepdim=True)).exp()
    mixed = shares / shares.sum(-1, keepdim=True) @ value
    return linear(weights, f"{block}.attention_out", mixed.transpose(1, 2).reshape(sequences, length, width))


def linear(weights: Mapping[str, torch.Tensor], name: str, inputs: torch.Tensor) -> torch.Tensor:
    """W x + b."""
    return inputs @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def layer_norm(weights: Mapping[str, torch.Tensor], name: str, inputs: torch.Tensor) -> torch.Tensor:
    """Mean 0 and variance 1 over the last dimension, then a weight and a bias (Ba et al. 2016, arXiv:1607.06450)."""
    centred = inputs - inputs.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + _NORM_EPS).sqrt()
    return centred / deviation * weights[f"{name}.weight"] + weights[f"{name}.bias"]


@torch.no_grad()
def adamw(
    weight: torch.Tensor, gradient: torch.Tensor, first: torch.Tensor, second: torch.Tensor, rules: Rules, *,
    step: int, rate: float,
) -> None:  # fmt: skip
    """Algorithm 2 of Loshchilov and Hutter 2019 (arXiv:1711.05101), in place; `step` is 1-based."""
    beta1, beta2 = rules.betas
    first.copy_(beta1 * first + (1 - beta1) * gradient)
    second.copy_(beta2 * second + (1 - beta2) * gradient.square())
    update = first / (1 - beta1**step) / ((second / (1 - beta2**step)).sqrt() + rules.eps)
    decay = rules.weight_decay if rules.decayed == "all" or weight.dim() > 1 else 0.0
    weight.copy_(weight - rate * (update + decay * weight))


def learning_rate(rules: Rules, step: int) -> float:
    """Rate of a 1-based step: straight from 0 to the peak at `warmup_steps`, and straight to a tenth at `steps`."""
    if step <= rules.warmup_steps:
        return rules.learning_rate * step / rules.warmup_steps
    left = (rules.steps - step) / (rules.steps - rules.warmup_steps)
    return rules.learning_rate * (0.1 + 0.9 * left)
