"""A layer and its loss between matrix products, as pure functions that PyTorch compiles to few kernels each.

With TORCHDYNAMO_DISABLE=1 in the environment when this is imported, they are the same operations one by one.
"""

import torch
from torch.nn import functional


@torch.compile(dynamic=False)
def look_up(table: torch.Tensor, at: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
    """Rows [h] of a table at each of [b, s] places, zeros where they are not here."""
    return torch.where(here.unsqueeze(-1), table[at], 0.0)


@torch.compile(dynamic=False)
def norm(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """Layer norm over the last dimension."""
    return functional.layer_norm(hidden, weight.shape, weight, bias, eps)


@torch.compile(dynamic=False)
def add_branch(branch: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, dropout: float) -> torch.Tensor:
    """The end of a residual branch: its last bias, its dropout, and the sum with what went past it."""
    return _add_branch(branch, bias, residual, dropout)


@torch.compile(dynamic=False)
def add_branch_and_norm(
    branch: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor,
    dropout: float,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The end of a residual branch, and the norm at the start of the next one."""
    hidden = _add_branch(branch, bias, residual, dropout)
    return hidden, functional.layer_norm(hidden, norm_weight.shape, norm_weight, norm_bias, eps)


def _add_branch(branch: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, dropout: float) -> torch.Tensor:
    branch = branch + bias
    return residual + (functional.dropout(branch, dropout) if dropout else branch)


@torch.compile(dynamic=False)
def relu_gradient(grad: torch.Tensor, activated: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of the input and of the bias before a ReLU, from those after it, [rows, columns], and its output."""
    before = torch.where(activated > 0, grad, 0.0)
    return before, before.sum(0)


@torch.compile
def softmax_statistics(logits: torch.Tensor, targets: torch.Tensor, valid: int) -> torch.Tensor:
    """Statistics of some columns that a softmax needs.

    Args:
        logits: [rows, columns] in any precision.
        targets: [rows], the column of each row's target; outside of the columns where the target is elsewhere.
        valid: how many of the columns count, possibly none.

    Returns:
        fp32 of [3, rows]: the largest logit (the least number there is, where no column counts, and then the next has
        no meaning), the sum of the exponentials of all less the largest, and the target's logit (0 where elsewhere).
    """
    columns = torch.arange(logits.shape[1], device=logits.device)
    counted = torch.where(columns < valid, logits.float(), torch.finfo(torch.float32).min)
    # Written as PyTorch's compiler recognises it, to read the logits once.
    largest = counted.amax(1, keepdim=True)
    total = (counted - largest).exp().sum(1, keepdim=True)
    here = (targets >= 0) & (targets < logits.shape[1])
    at = logits.gather(1, torch.where(here, targets, 0)[:, None])[:, 0].float()
    return torch.stack((largest[:, 0], total[:, 0], torch.where(here, at, 0.0)))


@torch.compile
def logits_to_gradient(
    logits: torch.Tensor, targets: torch.Tensor, valid: int, normalizer: torch.Tensor, grad: torch.Tensor
) -> None:
    """Turn logits into their gradient in place.

    Args:
        logits: [rows, columns] in any precision.
        targets: [rows], as in `softmax_statistics`.
        valid: how many of the columns count.
        normalizer: [rows], logarithm of the sum of the exponentials of all logits.
        grad: [rows], of the loss.
    """
    columns = torch.arange(logits.shape[1], device=logits.device)
    probabilities = torch.where(columns < valid, (logits.float() - normalizer[:, None]).exp(), 0.0)
    probabilities = probabilities - (columns == targets[:, None]).float()
    logits.copy_(probabilities * grad[:, None])
