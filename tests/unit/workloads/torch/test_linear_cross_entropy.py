"""Products that are joined with what follows them give what one after the other gives."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from pytest_llmbench.engines.torch.ranks import linear_cross_entropy as module
from pytest_llmbench.engines.torch.ranks.decoder import linear_relu
from pytest_llmbench.engines.torch.ranks.linear_cross_entropy import linear_cross_entropy, losses_and_gradient, parts

TOKENS, WIDTH = 96, 32


def factors(vocab_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, an embedding, and targets of which one does not count."""
    generator = torch.Generator().manual_seed(vocab_size)
    hidden = torch.randn(TOKENS, WIDTH, generator=generator, requires_grad=True)
    embedding = torch.randn(vocab_size, WIDTH, generator=generator, requires_grad=True)
    targets = torch.randint(vocab_size, (TOKENS,), generator=generator)
    targets[7] = -100
    return hidden, embedding, targets


@pytest.mark.parametrize("vocab_size", [128, 1001, 50])
@pytest.mark.parametrize("elements", [2**28, 2**12], ids=["whole", "in parts"])
def test_it_is_cross_entropy_of_the_product(vocab_size: int, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ELEMENTS", elements)
    hidden, embedding, targets = factors(vocab_size)
    ours = linear_cross_entropy(hidden, embedding, targets) / 3
    plain = functional.cross_entropy(functional.linear(hidden, embedding), targets) / 3
    torch.testing.assert_close(ours, plain)
    for mine, theirs in zip(*(torch.autograd.grad(loss, (hidden, embedding)) for loss in (ours, plain)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_products_are_in_the_type_of_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bf16, gradients are off by no more than its rounding, and the parameter's is fp32 all the same."""
    monkeypatch.setattr(module, "_ELEMENTS", 2**14)
    hidden, embedding, targets = factors(1001)
    plain = torch.autograd.grad(functional.cross_entropy(hidden @ embedding.T, targets), (hidden, embedding))
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(hidden, embedding, targets)
    ours = torch.autograd.grad(loss, (hidden, embedding))
    assert loss.dtype == torch.float32
    for mine, exact in zip(ours, plain, strict=True):
        assert mine.dtype == torch.float32
        assert 0 < (mine - exact).norm() / exact.norm() < 2e-2


def test_padding_has_no_part_in_it() -> None:
    """Columns behind the vocabulary change no loss, and have no gradient, whatever is in them."""
    logits = torch.randn(4, 128)
    targets = torch.tensor([0, 99, 5, 7])
    share = torch.tensor(0.25)
    first = losses_and_gradient(logits, targets, share, 100)
    logits[:, 100:] = 1e4
    second = losses_and_gradient(logits, targets, share, 100)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert second[1][:, 100:].abs().max() == 0
    torch.testing.assert_close(second[0], functional.cross_entropy(logits[:, :100], targets, reduction="none"))


@given(tokens=st.integers(1, 2**20), vocab_size=st.integers(1, 2**18))
def test_parts_fit_and_are_equal_where_they_can_be(tokens: int, vocab_size: int) -> None:
    """No part is above the limit by more than one row, and powers of two are always cut into equal ones."""
    number = parts(tokens, vocab_size)
    assert (tokens // number) * vocab_size <= module._ELEMENTS
    if tokens & (tokens - 1) == 0 and number <= tokens:
        assert tokens % number == 0


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
