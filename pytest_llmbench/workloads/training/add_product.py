"""Sums of matrix products, where the product itself adds to the sum if it can."""

from __future__ import annotations

from functools import cache

import torch


def add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add the product of two matrices of any precision to an fp32 one in place.

    On a GPU from PyTorch 2.10 on, nothing is rounded to the precision of the factors, and nothing is written between.
    """
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    elif _widens(left.dtype, total.device):
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total.add_(left @ right)


@cache
def _widens(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether PyTorch adds a product of this type to fp32 there."""
    if device.type == "cpu":
        return False
    left, right = (torch.zeros(16, 16, dtype=dtype, device=device) for _ in range(2))
    total = torch.zeros(16, 16, device=device)
    try:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    except (RuntimeError, TypeError):
        return False
    return True
