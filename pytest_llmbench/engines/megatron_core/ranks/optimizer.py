"""The step of Megatron-Core's optimizer without Apex and Transformer Engine, in fewer passes than its own.

Its own waits for the norm of every parameter's gradient, clips with a pass over all of them, and has AdamW go over them
a dozen times. Here the norm stays on the device, and PyTorch's fused AdamW clips as it would undo a gradient scaler.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.utils import get_total_norm

from pytest_llmbench.engines.megatron_core.ranks.parts.versions import gradients_of_norm

# As Megatron-Core's: a norm of 0 is no reason to divide by 0.
_EPS = 1e-6


def fuse(optimizer: Any) -> None:
    """Have every AdamW in Megatron-Core's optimizer, which must not have stepped yet, take its fused step."""
    for inner in _inner(optimizer):
        for group in inner.optimizer.param_groups:
            group.update(fused=True, foreach=False)


def fused_step(optimizer: Any, clip: float, device: torch.device) -> torch.Tensor | None:
    """Clip gradients to a norm of `clip` and take the step.

    Returns:
        The norm before clipping, on the device; None if gradients overflowed, and no step was taken.
    """
    if optimizer.prepare_grads():
        return None
    norm = _norm(optimizer, device)
    scale = ((norm + _EPS) / clip).clamp_min(1.0)
    for inner in _inner(optimizer):
        inner.optimizer.grad_scale = scale
    optimizer.step_with_ready_grads()
    return norm


@torch.no_grad()
def _norm(optimizer: Any, device: torch.device) -> torch.Tensor:
    gradients = [gradient for inner in _inner(optimizer) for gradient in gradients_of_norm(inner)]
    squares = get_total_norm(gradients).to(device).square() if gradients else torch.zeros((), device=device)
    dist.all_reduce(squares, group=optimizer.get_grad_stats_parallel_group())
    return squares.sqrt()


def _inner(optimizer: Any) -> list[Any]:
    """One for each kind of parameter that is spread in its own way, which here are all of one kind."""
    chained: list[Any] = getattr(optimizer, "chained_optimizers", [optimizer])
    return [inner for inner in chained if inner.optimizer is not None]
