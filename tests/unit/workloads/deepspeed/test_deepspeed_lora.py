"""Low-rank updates, without a framework around them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.engines.deepspeed.ranks.lora import LoraLinear, add_lora


def test_it_computes_the_layer_plus_its_update() -> None:
    """The output is that of weight W + B A, whose parameters keep their names."""
    linear = nn.Linear(6, 4)
    lora = LoraLinear(linear, 2)
    nn.init.normal_(lora.lora_down)
    nn.init.normal_(lora.lora_up)
    inputs = torch.randn(3, 5, 6)
    expected = nn.functional.linear(inputs, linear.weight + lora.lora_up @ lora.lora_down, linear.bias)
    torch.testing.assert_close(lora(inputs), expected)
    assert [name for name, _ in lora.named_parameters()] == ["weight", "bias", "lora_down", "lora_up"]


def test_only_updates_are_trained() -> None:
    """Chosen layers get updates; everything else is frozen, they too."""
    model = nn.ModuleDict({"layers": nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), "head": nn.Linear(4, 2)})
    add_lora(model, 3, "layers.")
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained == ["layers.0.lora_down", "layers.0.lora_up"]
    assert isinstance(model["head"], nn.Linear)


def test_a_name_that_no_layer_has_is_refused() -> None:
    """Then nothing would be trained at all."""
    with pytest.raises(ConfigError, match=r"'decoder\.layers\.' in its name; some that there are: 0, 1"):
        add_lora(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), 1, "decoder.layers.")
