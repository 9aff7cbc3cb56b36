"""Matrix products of tensor-parallel layers: what is sent, and when, and where a weight's gradient goes.

As in Megatron-Core's own, what the backward pass sends is on its way while another product is made, which wants
CUDA_DEVICE_MAX_CONNECTIONS=1. Other than there, the bias and the ReLU are the product's own, and with `accumulate` the
product of a weight's gradient adds to Megatron-Core's fp32 sum, which otherwise takes kernels of Apex.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import nn

from pytest_llmbench.workloads.add_product import add_product
from pytest_llmbench.workloads.megatron_pointwise import relu_gradient


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """How the ranks of a tensor-parallel group share a product.

    Attributes:
        ranks: how many there are.
        rank: which of them this is.
        sequence: whether each has its part of the sequence where there is no product.
        accumulate: whether a weight's gradient is added to its `main_grad` in place of being returned.
    """

    group: dist.ProcessGroup
    ranks: int
    rank: int
    sequence: bool
    accumulate: bool


def split(*, sequence: bool, accumulate: bool) -> Split:
    """The tensor-parallel group of this rank."""
    return Split(
        group=parallel_state.get_tensor_model_parallel_group(),
        ranks=parallel_state.get_tensor_model_parallel_world_size(),
        rank=parallel_state.get_tensor_model_parallel_rank(),
        sequence=sequence,
        accumulate=accumulate,
    )


def column(
    hidden: torch.Tensor, weight: nn.Parameter, bias: nn.Parameter, shares: Split, *, relu: bool = False
) -> torch.Tensor:
    """Multiply with this rank's rows of a weight: [s, b, h] to [s, b, its columns], over the whole sequence."""
    out: torch.Tensor = _Column.apply(hidden, weight, bias, shares, relu)  # type: ignore[no-untyped-call]
    return out


def row(hidden: torch.Tensor, weight: nn.Parameter, shares: Split) -> torch.Tensor:
    """Multiply with this rank's columns of a weight, and sum over the ranks: [s, b, columns] to [s, b, h], no bias."""
    out: torch.Tensor = _Row.apply(hidden, weight, shares)  # type: ignore[no-untyped-call]
    return out


class _Column(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: nn.Parameter, bias: nn.Parameter, shares: Split, relu: bool
    ) -> torch.Tensor:
        total = gather(hidden, shares)()
        # The one way to a ReLU in the product itself.
        product = torch._addmm_activation if relu else torch.addmm  # noqa: SLF001
        out = product(bias, total.flatten(0, 1), weight.t()).view(*total.shape[:2], -1)
        ctx.save_for_backward(hidden, weight, *([out] if relu else []))
        ctx.shares = shares
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, *activated = ctx.saved_tensors
        grad = grads[0].flatten(0, 1)
        if activated:
            grad, of_bias = relu_gradient(grad, activated[0].flatten(0, 1))
        else:
            of_bias = grad.sum(0)
        return *column_gradients(grad, hidden, weight, ctx.shares), of_bias, None, None


class _Row(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: nn.Parameter, shares: Split) -> torch.Tensor:
        # Attention may have its output in another order, of which this is a copy: made once.
        rows = hidden.flatten(0, 1)
        ctx.save_for_backward(rows, weight)
        ctx.shares, ctx.shape = shares, hidden.shape
        return scatter((rows @ weight.t()).view(*hidden.shape[:2], -1), shares)()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        grad = gather(grads[0], ctx.shares)().flatten(0, 1)
        return (grad @ weight).view(ctx.shape), _weight_gradient(grad, rows, weight, ctx.shares), None


def column_gradients(
    grad: torch.Tensor, hidden: torch.Tensor, weight: nn.Parameter, shares: Split
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of the input and the weight of a product with this rank's rows of a weight.

    Args:
        grad: of the product, [whole sequence × batch, columns of this rank].
        hidden: the input, [s, b, h].
        weight: [columns of this rank, h].
        shares: over whom the sum is.
    """
    gathering = gather(hidden, shares)
    of_total = grad @ weight
    total = gathering()
    scattering = scatter(of_total.view(total.shape), shares)
    of_weight = _weight_gradient(grad, total.flatten(0, 1), weight, shares)
    return scattering(), of_weight


def gather(part: torch.Tensor, shares: Split) -> Callable[[], torch.Tensor]:
    """Begin to put the parts of a sequence together, where it is split; the result waits for it."""
    if not shares.sequence:
        return lambda: part
    whole = part.new_empty(part.shape[0] * shares.ranks, *part.shape[1:])
    work = dist.all_gather_into_tensor(whole, part.contiguous(), group=shares.group, async_op=True)
    return _when_done(work, whole)


def scatter(summand: torch.Tensor, shares: Split) -> Callable[[], torch.Tensor]:
    """Begin to sum over the ranks, of which each keeps its part of a split sequence; the result waits for it."""
    if shares.ranks == 1:
        return lambda: summand
    if not shares.sequence:
        return _when_done(dist.all_reduce(summand, group=shares.group, async_op=True), summand)
    part = summand.new_empty(summand.shape[0] // shares.ranks, *summand.shape[1:])
    return _when_done(dist.reduce_scatter_tensor(part, summand, group=shares.group, async_op=True), part)


def _when_done(work: Any, result: torch.Tensor) -> Callable[[], torch.Tensor]:
    def wait() -> torch.Tensor:
        work.wait()
        return result

    return wait


def _weight_gradient(grad: torch.Tensor, hidden: torch.Tensor, weight: Any, shares: Split) -> torch.Tensor:
    """Of [rows, columns] and [rows, h], the gradient of [columns, h]; or what stands for one already added up."""
    if not shares.accumulate:
        return grad.t() @ hidden
    add_product(weight.main_grad, grad.t(), hidden)
    weight.grad_added_to_main_grad = True
    # Autograd wants a gradient. Megatron-Core reads it where the parameter has another one besides.
    return torch.zeros_like(weight) if getattr(weight, "zero_out_wgrad", False) else torch.empty_like(weight)
