"""A linear layer with its ReLU in the matrix product itself, which spares a pass over the largest activation."""

from __future__ import annotations

from typing import Any

import torch

from pytest_llmbench.engines.torch.ranks.linear_cross_entropy import product_dtype


def linear_relu(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Compute `relu(hidden @ weight.T + bias)`, in the type of autocast where that is on.

    Args:
        hidden: [..., h].
        weight: [columns, h].
        bias: [columns].
    """
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
