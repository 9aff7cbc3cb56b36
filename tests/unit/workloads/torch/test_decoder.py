"""The model is the one that the numbers are computed for."""

import math

import pytest
import torch

from pytest_llmbench.core.recipe.shape import ModelShape
from pytest_llmbench.engines.torch.ranks.decoder import Decoder, initialise
from pytest_llmbench.judging.flops import parameters

SHAPE = ModelShape(layers=3, hidden_size=16, attention_heads=4, vocab_size=64, dropout=0.0)


def build(shape: ModelShape = SHAPE, *, activation_checkpointing: bool = False) -> Decoder:
    """Build and initialise a small decoder of 8 positions."""
    model = Decoder(shape, 8, activation_checkpointing=activation_checkpointing)
    initialise(model, seed=1)
    return model


@pytest.mark.parametrize(("layers", "hidden", "heads", "vocab"), [(3, 16, 4, 64), (12, 768, 12, 51196)])
def test_the_parameter_count_is_the_one_flops_are_computed_from(
    layers: int, hidden: int, heads: int, vocab: int
) -> None:
    shape = ModelShape(layers=layers, hidden_size=hidden, attention_heads=heads, vocab_size=vocab)
    with torch.device("meta"):
        model = Decoder(shape, 2048, activation_checkpointing=False)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters(shape, 2048)


def test_the_first_loss_is_that_of_a_guess() -> None:
    """Untrained, the model knows nothing: its loss is ln(vocab_size)."""
    inputs = torch.arange(16).view(2, 8)
    targets = inputs.flip(0)  # the tied embedding gives an input itself a little more
    assert build()(inputs, targets).item() == pytest.approx(math.log(64), abs=0.02)


def test_no_token_sees_a_later_one() -> None:
    """A change of the last input changes no gradient that comes from the first target."""
    model = build()
    inputs = torch.arange(8).view(1, 8)
    changed = inputs.clone()
    changed[0, -1] = 42
    only_first = torch.full((1, 8), -100)  # cross entropy ignores this target
    only_first[0, 0] = 1
    assert torch.equal(model(inputs, only_first), model(changed, only_first))


def test_checkpointing_changes_no_gradient() -> None:
    shape = SHAPE.model_copy(update={"dropout": 0.5})
    inputs = torch.arange(16).view(2, 8)
    results = []
    for activation_checkpointing in (False, True):
        model = build(shape, activation_checkpointing=activation_checkpointing)
        torch.manual_seed(3)
        loss = model(inputs, inputs)
        loss.backward()
        results.append((loss.item(), [parameter.grad for parameter in model.parameters()]))
    (kept, kept_gradients), (recomputed, recomputed_gradients) = results
    assert kept == recomputed
    torch.testing.assert_close(kept_gradients, recomputed_gradients)


def test_initial_values_have_the_published_spread() -> None:
    """Matrices have deviation 0.006, those that end a branch less by √(2 L); biases are 0 and norms 1."""
    values = dict(build(SHAPE.model_copy(update={"hidden_size": 128})).named_parameters())
    assert values["blocks.1.qkv.weight"].std().item() == pytest.approx(0.006, rel=0.02)
    assert values["blocks.1.mlp_out.weight"].std().item() == pytest.approx(0.006 / math.sqrt(6), rel=0.02)
    assert values["blocks.1.qkv.bias"].abs().max().item() == 0
    assert set(values["blocks.1.mlp_norm.weight"].tolist()) == {1.0}
    assert not torch.equal(values["blocks.0.qkv.weight"], values["blocks.1.qkv.weight"])
