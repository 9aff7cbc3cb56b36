"""Output projection and cross entropy in one, for a part of the tokens at a time.

The logits of all tokens are the largest tensor of a small model: 65,536 tokens and 51,200 ids are 6.7 GB in bf16, and
more elements than 32 bits can index, which slows every kernel on them. Here they exist for a part of the tokens at a
time, and are replaced by their gradient at once.
"""

import math
from collections.abc import Callable

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional

from pytest_llmbench.workloads.training.matmul import add_product

# Most logits that exist at a time.
_ELEMENTS = 2**28
# The vocabulary is padded to a multiple, as matrix products are fast on whole tiles and on rows aligned to 16 bytes.
_MULTIPLE = 128

LossKernel = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def losses_and_gradient(
    logits: torch.Tensor, targets: torch.Tensor, share: torch.Tensor, vocab_size: int, mesh: DeviceMesh | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross entropy of each token, nat, fp32 [tokens], and the gradient of their sum times `share`; arithmetic in fp32.

    `logits` are [tokens, padded vocabulary], of which the softmax leaves out the columns from `vocab_size` on; the
    gradient has their size and type. `targets` are [tokens], an id, or a negative number for a token that is left out.
    `share` is the weight of each token in the loss, a scalar. The ranks of a `mesh` have the logits of
    consecutive parts of the vocabulary, `vocab_size` ids each.
    """
    first = 0 if mesh is None else mesh.get_local_rank() * vocab_size
    ids = torch.arange(logits.shape[1], device=logits.device)
    values = logits.float().masked_fill(ids >= vocab_size, -math.inf)
    counts, hit = targets >= 0, (ids == (targets - first).unsqueeze(1)) & (ids < vocab_size)
    total, chosen = values.logsumexp(1), torch.where(hit, values, 0.0).sum(1)
    if mesh is not None:
        parts = DTensor.from_local(torch.stack((total, chosen)).unsqueeze(0), mesh, [Shard(0)]).full_tensor()
        total, chosen = parts[:, 0].logsumexp(0), parts[:, 1].sum(0)
    losses, total = torch.where(counts, total - chosen, 0.0), total.unsqueeze(1)
    gradient = (torch.exp(values - total) - hit.float()) * torch.where(counts, share, 0.0).unsqueeze(1)
    return losses, gradient.to(logits.dtype)


def linear_cross_entropy(
    hidden: torch.Tensor, embedding: torch.Tensor, targets: torch.Tensor, step: LossKernel = losses_and_gradient,
    mesh: DeviceMesh | None = None,
) -> torch.Tensor:  # fmt: skip
    """Mean cross entropy of `hidden @ embedding.T`, nat per token, as `torch.nn.functional.cross_entropy` has it.

    `hidden` is [tokens, h], `embedding` [vocabulary, h], of any size, and `targets` int64 [tokens], negative for tokens
    that are left out. Products are in the type of autocast where that is on; the gradient of the embedding is summed in
    fp32. `step` is `losses_and_gradient`, or the same compiled. The ranks of a `mesh` have equal parts of the
    vocabulary, and the gradient of `hidden` is the sum of theirs.
    """
    hidden = hidden.to(product_dtype(hidden))
    loss: torch.Tensor = _FusedCrossEntropy.apply(hidden, embedding, targets, step, mesh)  # type: ignore[no-untyped-call]
    return loss


def product_dtype(factor: torch.Tensor) -> torch.dtype:
    """The type in which a tensor is multiplied: that of autocast if it is on, else its own."""
    device = factor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else factor.dtype


def parts(tokens: int, vocab_size: int) -> int:
    """Number of parts that tokens are split into: as few as fit, or a few more if these are equal."""
    fewest = math.ceil(tokens * vocab_size / _ELEMENTS)
    return next((number for number in range(fewest, 2 * fewest + 1) if tokens % number == 0), fewest)


class _FusedCrossEntropy(torch.autograd.Function):
    """Computes both gradients in the forward pass, while the logits exist, for a loss of weight 1."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        hidden: torch.Tensor,
        embedding: torch.Tensor,
        targets: torch.Tensor,
        step: LossKernel,
        mesh: DeviceMesh | None,
    ) -> torch.Tensor:
        vocab_size = embedding.shape[0]
        padding = -vocab_size % _MULTIPLE
        with torch.autocast(hidden.device.type, enabled=False):
            weight = functional.pad(embedding.detach().to(hidden.dtype), (0, 0, 0, padding))
            share = 1.0 / (targets >= 0).sum()
            total = torch.zeros((), device=hidden.device)
            of_hidden, of_weight = torch.empty_like(hidden), torch.zeros_like(weight, dtype=torch.float32)
            number = parts(len(hidden), len(weight))
            for some, wanted, out in zip(
                *(tensor.chunk(number) for tensor in (hidden, targets, of_hidden)), strict=True
            ):
                losses, gradient = step(some @ weight.T, wanted, share, vocab_size, mesh)
                total += losses.sum()
                torch.mm(gradient, weight, out=out)
                add_product(of_weight, gradient.T, some)
        ctx.save_for_backward(of_hidden, of_weight[:vocab_size].to(embedding.dtype))
        return total * share

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        of_hidden, of_weight = ctx.saved_tensors  # type: ignore[attr-defined]
        (gradient,) = gradients  # 1 / micro batches, which bf16 would round
        return (of_hidden * gradient.expand(1, 1)).to(of_hidden.dtype), of_weight * gradient, None, None, None
