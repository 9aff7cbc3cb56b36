"""Matrix products of tensor-parallel layers: what is sent, and when, and where a weight's gradient goes.

As in Megatron-Core's own, what the backward pass sends is on its way while another product is made, which with NCCL
wants CUDA_DEVICE_MAX_CONNECTIONS=1. Other than there, the bias and the ReLU are the product's own, and with
`accumulate` the product of a weight's gradient adds to Megatron-Core's fp32 sum, which otherwise takes kernels of Apex.
"""

from typing import Any

import torch
from torch import nn

from pytest_llmbench.engines.megatron_core.ranks.copies import Product
from pytest_llmbench.engines.megatron_core.ranks.parts.pointwise import relu_gradient
from pytest_llmbench.engines.megatron_core.ranks.sending import Split, gather, scatter
from pytest_llmbench.workloads.training.matmul import add_product


def column(
    hidden: torch.Tensor, weight: nn.Parameter, bias: nn.Parameter, shares: Split, *, relu: bool = False
) -> torch.Tensor:
    """Multiply with this rank's rows of a weight: [s, b, h] to [s, b, its columns], over the whole sequence."""
    out: torch.Tensor = _Column.apply(hidden, weight, bias, shares, relu)  # type: ignore[no-untyped-call]
    return out


def row(hidden: torch.Tensor, weight: nn.Parameter, shares: Split) -> torch.Tensor:
    """Multiply with this rank's columns of a weight, and sum over the ranks: [s, b, columns] to [s, b, h], no bias."""
    out: torch.Tensor = _RowProduct.apply(hidden, weight, shares)  # type: ignore[no-untyped-call]
    return out


class _Column(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: nn.Parameter, bias: nn.Parameter, shares: Split, relu: bool
    ) -> torch.Tensor:
        whole = hidden.shape[0] * (shares.ranks if shares.sequence else 1)
        out = hidden.new_empty(whole, hidden.shape[1], len(weight))
        # The one way to a ReLU in the product itself.
        multiply = torch._addmm_activation if relu else torch.addmm  # noqa: SLF001

        def multiply_part(part: torch.Tensor, which: slice) -> None:
            multiply(bias, part.flatten(0, 1), weight.t(), out=out[which].flatten(0, 1))

        gather(hidden, shares, Product(columns=len(weight), multiply=multiply_part))()
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


class _RowProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: nn.Parameter, shares: Split) -> torch.Tensor:
        # Attention may have its output in another order, of which this is a copy: made once.
        rows = hidden.flatten(0, 1)
        ctx.save_for_backward(rows, weight)
        ctx.shares, ctx.shape = shares, hidden.shape
        summand = hidden.new_empty(*hidden.shape[:2], len(weight))

        def multiply_part(part: torch.Tensor, which: slice) -> None:
            torch.mm(rows.view(hidden.shape)[which].flatten(0, 1), weight.t(), out=part.flatten(0, 1))

        return scatter(summand, shares, Product(columns=len(weight), multiply=multiply_part))()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        out = rows.new_empty(ctx.shape)

        def multiply_part(part: torch.Tensor, which: slice) -> None:
            torch.mm(part.flatten(0, 1), weight, out=out[which].flatten(0, 1))

        grad = gather(grads[0], ctx.shares, Product(columns=weight.shape[1], multiply=multiply_part))().flatten(0, 1)
        return out, _weight_gradient(grad, rows, weight, ctx.shares), None


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


def _weight_gradient(grad: torch.Tensor, hidden: torch.Tensor, weight: Any, shares: Split) -> torch.Tensor:
    """The gradient of [columns, h] from [rows, columns] and [rows, h]; or a placeholder for one already added up."""
    if not shares.accumulate:
        return grad.t() @ hidden
    add_product(weight.main_grad, grad.t(), hidden)
    weight.grad_added_to_main_grad = True
    # Autograd wants a gradient. Megatron-Core reads it where the parameter has another one besides.
    return torch.zeros_like(weight) if getattr(weight, "zero_out_wgrad", False) else torch.empty_like(weight)
