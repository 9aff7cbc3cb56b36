"""Low-rank updates of linear layers, which need PyTorch alone."""

import torch
from torch import nn
from torch.nn import functional

from pytest_llmbench.core.errors import ConfigError


class LoraLinear(nn.Module):
    """A linear layer with weight W + B A, where only A, of `rank` rows, and B are trained, both at the scale of W.

    It takes over the parameters of the layer that it replaces, under their names.
    """

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        super().__init__()
        self.weight = linear.weight
        self.bias = linear.bias
        self.lora_down = nn.Parameter(linear.weight.new_empty(rank, linear.in_features))
        self.lora_up = nn.Parameter(linear.weight.new_empty(linear.out_features, rank))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map [..., in] to [..., out]."""
        update = functional.linear(functional.linear(inputs, self.lora_down), self.lora_up)
        return functional.linear(inputs, self.weight, self.bias) + update


def add_lora(model: nn.Module, rank: int, within: str) -> None:
    """Freeze a model, and give every linear layer with `within` in its name an update that is trained.

    A and B are uninitialised.

    Raises:
        ConfigError: there is no such layer.
    """
    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    chosen = [(name, layer) for name, layer in layers if within in name]
    if not chosen:
        raise ConfigError(
            f"options.lora_modules: no linear layer has {within!r} in its name; some that there are: "
            f"{', '.join(name for name, _ in layers[:8])}"
        )
    model.requires_grad_(requires_grad=False)
    for name, layer in chosen:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, LoraLinear(layer, rank))
