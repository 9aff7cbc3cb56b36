"""The arithmetic of proximal policy optimisation."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.engines.deepspeed.ranks.policy import (
    advantages_and_returns,
    log_probabilities,
    policy_loss,
    value_loss,
)

numbers = st.lists(st.floats(-10, 10), min_size=1, max_size=8)


def test_log_probabilities_are_those_of_the_tokens() -> None:
    """Each is the log of the softmax at its token."""
    logits = torch.tensor([[[0.0, 0.0], [0.0, math.log(3)]]])
    found = log_probabilities(logits, torch.tensor([[0, 1]]))
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.75]]).log())


@given(numbers, st.floats(0, 1))
def test_without_lambda_an_advantage_looks_one_token_ahead(rewards: list[float], discount: float) -> None:
    """With lambda 0 it is reward + discount × V' - V; behind the last token there is nothing."""
    paid = torch.tensor([rewards])
    values = torch.linspace(-1, 1, len(rewards)).unsqueeze(0)
    advantages, returns = advantages_and_returns(paid, values, discount=discount, gae_lambda=0.0)
    following = torch.cat((values[:, 1:], torch.zeros(1, 1)), 1)
    torch.testing.assert_close(advantages, paid + discount * following - values)
    torch.testing.assert_close(returns, paid + discount * following)


@given(numbers)
def test_with_lambda_1_the_return_is_all_that_follows(rewards: list[float]) -> None:
    """With lambda 1 what the critic believed cancels out of the return: it is the discounted sum of rewards."""
    paid = torch.tensor([rewards])
    _, returns = advantages_and_returns(paid, torch.full_like(paid, 7.0), discount=0.5, gae_lambda=1.0)
    expected = [sum(0.5**n * reward for n, reward in enumerate(rewards[token:])) for token in range(len(rewards))]
    torch.testing.assert_close(returns, torch.tensor([expected]), rtol=1e-4, atol=1e-4)


def test_a_worked_example() -> None:
    """Two tokens, discount and lambda 1/2: surprises 1.5 and 1, so advantages 1.75 and 1."""
    advantages, returns = advantages_and_returns(
        torch.tensor([[1.0, 3.0]]), torch.tensor([[0.5, 2.0]]), discount=0.5, gae_lambda=0.5
    )
    assert advantages.tolist() == [[1.75, 1.0]]
    assert returns.tolist() == [[2.25, 3.0]]


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss", "pushes"),
    [
        (2.0, 1.0, -2.0, True),
        (2.0, 1.5, -2.4, False),
        (2.0, 0.5, -1.0, True),
        (-2.0, 1.5, 3.0, True),
        (-2.0, 0.5, 1.6, False),
    ],
)
def test_the_policy_gains_nothing_beyond_the_clip(advantage: float, ratio: float, loss: float, pushes: bool) -> None:
    """A probability that has moved by more than the clip in the right direction is not pushed further."""
    new = torch.tensor([[math.log(ratio)]], requires_grad=True)
    found = policy_loss(new, torch.zeros(1, 1), torch.tensor([[advantage]]), clip=0.2)
    (slope,) = torch.autograd.grad(found, new)
    assert found.item() == pytest.approx(loss)
    assert bool(slope.item()) is pushes


@pytest.mark.parametrize(
    ("value", "loss", "pushes"), [(0.0, 0.5, True), (0.1, 0.405, True), (0.5, 0.32, False), (3.0, 2.0, True)]
)
def test_a_value_gains_nothing_beyond_the_clip(value: float, loss: float, pushes: bool) -> None:
    """From 0 towards a return of 1, a value that has moved by more than the clip is not pushed further."""
    new = torch.tensor([[value]], requires_grad=True)
    found = value_loss(new, torch.zeros(1, 1), torch.ones(1, 1), clip=0.2)
    (slope,) = torch.autograd.grad(found, new)
    assert found.item() == pytest.approx(loss)
    assert bool(slope.item()) is pushes
