"""Products of the blocks in 8 bits, by torchao. The embedding and the output layer stay in bf16."""

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from pytest_llmbench.core.errors import NOT_MEASURED, ConfigError
from pytest_llmbench.engines.torch.ranks.decoder import Block

_LEAST = (8, 9)  # compute capability with products in 8 bits


def convert(blocks: nn.ModuleList, scaling: str, device: torch.device, *, gathered: bool) -> None:
    """Convert all linear layers of the blocks, which may be on the meta device, in place.

    With `gathered`, FSDP gathers parameters in 8 bits, if a scale is that of a whole tensor. A CPU multiplies the
    rounded numbers in fp32. Raises ConfigError if torchao is missing, or the GPU lacks products in 8 bits.
    """
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # noqa: PLC0415 - optional, and slow
    except ModuleNotFoundError as error:
        install = f"{sys.executable} -m pip install 'pytest-llmbench[fp8]'"
        raise ConfigError(f"{NOT_MEASURED}: torchao is not installed for {sys.executable}: {install}") from error
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < _LEAST:
        name = torch.cuda.get_device_name(device)
        raise ConfigError(f"precision fp8 needs compute capability 8.9, and {name} has less: set precision: bf16")
    config = replace(
        Float8LinearConfig.from_recipe_name(scaling),
        enable_fsdp_float8_all_gather=gathered and scaling == "tensorwise",
        emulate=device.type != "cuda",
    )
    convert_to_float8_training(blocks, config=config)
    for block in blocks:
        vars(block)["fuses"] = False


def rescale(model: nn.Module) -> None:
    """Compute the scales of all parameters that are gathered in 8 bits, after a step of the optimizer, in one go."""
    from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp  # noqa: PLC0415

    precompute_float8_dynamic_scale_for_fsdp(model)


def count(model: nn.Module) -> Mapping[str, int]:
    """Count the blocks' linear layers by the precision of the products of each: `fp8`, `fp8 emulated`, or `bf16`."""
    from torchao.float8.config import ScalingType  # noqa: PLC0415
    from torchao.float8.float8_linear import Float8Linear  # noqa: PLC0415

    def precision(layer: nn.Linear) -> str:
        if not isinstance(layer, Float8Linear):
            return "bf16"
        casts = (value for name, value in vars(layer.config).items() if name.startswith("cast_config_"))
        if any(cast.scaling_type is ScalingType.DISABLED for cast in casts):
            return "bf16"
        return "fp8 emulated" if layer.config.emulate else "fp8"

    blocks = (module for module in model.modules() if isinstance(module, Block))
    return Counter(precision(layer) for block in blocks for layer in block.modules() if isinstance(layer, nn.Linear))
