"""A linear layer whose ReLU is in the product gives what one after the other gives."""

import pytest
import torch
from torch.nn import functional

from pytest_llmbench.engines.torch.ranks.decoder import linear_relu


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "autocast"])
def test_it_is_a_linear_layer_and_a_relu(bf16: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    factors = [torch.randn(*shape, generator=generator, requires_grad=True) for shape in ((4, 8, 16), (32, 16), (32,))]
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        ours, plain = linear_relu(*factors), functional.relu(functional.linear(*factors))
    assert 0 < (ours > 0).sum() < ours.numel()
    torch.testing.assert_close(ours, plain)
    weight = torch.randn(ours.shape, generator=generator)
    for mine, theirs in zip(
        *(torch.autograd.grad((out.float() * weight).sum(), factors) for out in (ours, plain)), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_its_gradients_are_right() -> None:
    generator = torch.Generator().manual_seed(2)
    shapes = ((3, 5), (7, 5), (7,))
    factors = [torch.randn(*shape, dtype=torch.float64, generator=generator, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(linear_relu, factors)
