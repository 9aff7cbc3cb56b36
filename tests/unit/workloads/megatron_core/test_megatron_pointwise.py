"""What lies between the matrix products of Megatron-Core's layers and loss, against PyTorch's own operations."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional


@pytest.fixture(scope="module")
def pointwise() -> ModuleType:
    """Not compiled, which would take longer than all tests, and a C++ compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHDYNAMO_DISABLE", "1")
        from pytest_llmbench.engines.megatron_core.ranks.parts import pointwise  # noqa: PLC0415 - it compiles when imported
    return pointwise


@given(rows=st.integers(1, 5), counts=st.lists(st.integers(0, 6), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_softmax_of_parts_is_that_of_the_whole(pointwise: ModuleType, rows: int, counts: list[int], seed: int) -> None:
    """Statistics and gradients of parts of a vocabulary, each padded to 6 columns, make the cross entropy of all."""
    counts = [*counts, 1]
    generator = torch.Generator().manual_seed(seed)
    whole = (5 * torch.randn(rows, sum(counts), generator=generator)).requires_grad_()
    targets = torch.randint(sum(counts), (rows,), generator=generator)
    grad = torch.randn(rows, generator=generator)
    loss = functional.cross_entropy(whole, targets, reduction="none")
    loss.backward(grad)  # type: ignore[no-untyped-call]

    split = torch.split(whole.detach(), counts, dim=1)
    parts = [functional.pad(part, (0, 6 - part.shape[1]), value=9.0) for part in split]
    starts = [sum(counts[:index]) for index in range(len(counts))]
    # Another part's targets are outside of this one's columns, or Megatron-Core's padding would be hit.
    own = [
        torch.where((targets >= start) & (targets < start + count), targets - start, -1)
        for start, count in zip(starts, counts, strict=True)
    ]
    statistics = torch.stack(
        [pointwise.softmax_statistics(part, mine, count) for part, mine, count in zip(parts, own, counts, strict=True)]
    )
    largest = statistics[:, 0].amax(0)
    total = (statistics[:, 1] * (statistics[:, 0] - largest).exp()).sum(0)
    normalizer = total.log() + largest
    torch.testing.assert_close(normalizer - statistics[:, 2].sum(0), loss.detach())

    for part, mine, count in zip(parts, own, counts, strict=True):
        pointwise.logits_to_gradient(part, mine, count, normalizer, grad)
    assert whole.grad is not None
    together = torch.cat([part[:, :count] for part, count in zip(parts, counts, strict=True)], dim=1)
    torch.testing.assert_close(together, whole.grad)
    assert all(part[:, count:].eq(0).all() for part, count in zip(parts, counts, strict=True))


def test_relu_and_its_bias_have_their_gradients(pointwise: ModuleType) -> None:
    """From the output alone, as autograd has them from the input."""
    before, bias = torch.randn(7, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    after = functional.relu(before + bias)
    grad = torch.randn(7, 3)
    after.backward(grad)  # type: ignore[no-untyped-call]
    of_input, of_bias = pointwise.relu_gradient(grad, after.detach())
    torch.testing.assert_close(of_input, before.grad)
    torch.testing.assert_close(of_bias, bias.grad)


def test_a_branch_ends_with_bias_dropout_and_sum(pointwise: ModuleType) -> None:
    """Without dropout it is the sum; with it, what is not dropped is larger. The norm after it sees the sum."""
    branch, residual = torch.randn(5, 2, 64), torch.randn(5, 2, 64)
    bias, weight, shift = torch.randn(64), torch.randn(64), torch.randn(64)
    whole = pointwise.add_branch(branch, bias, residual, 0.0)
    torch.testing.assert_close(whole, residual + branch + bias)
    hidden, normed = pointwise.add_branch_and_norm(branch, bias, residual, 0.25, weight, shift, 1e-5)
    ratio = (hidden - residual) / (branch + bias)
    dropped = ratio.abs() < 1e-3
    torch.testing.assert_close(ratio[~dropped], torch.full_like(ratio[~dropped], 4 / 3), rtol=1e-3, atol=1e-3)
    assert 0.1 < dropped.float().mean().item() < 0.4
    torch.testing.assert_close(normed, functional.layer_norm(hidden, (64,), weight, shift, 1e-5))
    torch.testing.assert_close(pointwise.norm(hidden, weight, shift, 1e-5), normed)
